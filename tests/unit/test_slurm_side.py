"""What the course says of Slurm's jobs, and how faults change what is rendered."""

from types import SimpleNamespace

import pytest

from orchlab.course.slurm_side import sentence
from orchlab.slurm import faults
from orchlab.slurm.model import Job


@pytest.mark.parametrize("jobs, words", [
    ([], "slurmctld does not know it"),
    ([Job(7, "train", state="RUNNING", nodes=("h100-1",))], "job 7 (train) RUNNING on h100-1"),
    ([Job(7, "train", state="PENDING", reason="Resources")], "job 7 (train) PENDING (Resources)"),
    ([Job(7, "train", state="PENDING", reason="None")], "job 7 (train) PENDING"),
    ([Job(7, "train", state="FAILED", exit_code=3, nodes=("a", "b"))], "job 7 (train) FAILED, exit status 3 on a, b"),
    ([Job(9, "s", state="PENDING", reason="JobArrayTaskLimit", array_id=9, array_tasks="2-9%2"), Job(10, "s", state="RUNNING", array_id=9, array_task=0)],
     "job 9 (s): 8 PENDING (JobArrayTaskLimit), 1 RUNNING"),
])
def test_a_job_in_one_sentence(jobs, words):
    assert sentence(jobs) == words


@pytest.mark.parametrize("line, short", [
    ("NodeName=a-0 Name=gpu Type=a100 File=/dev/nvidia[0-3]", "NodeName=a-0 Name=gpu Type=a100 File=/dev/nvidia[0-2]"),
    ("NodeName=a-0 Name=gpu Type=a100 File=/dev/nvidia[0-1]", "NodeName=a-0 Name=gpu Type=a100 File=/dev/nvidia0"),
    ("NodeName=a-0 Name=gpu Type=a100 File=/dev/nvidia0", "# NodeName=a-0 Name=gpu Type=a100 File=/dev/nvidia0"),
])
def test_one_gpu_fewer_on_one_node_only(line, short):
    other = line.replace("a-0", "a-1")
    env = SimpleNamespace(folder=None, record=SimpleNamespace(faults=[{"kind": "gres-short", "target": "a-0"}]))
    changed = faults.configuration(env, {"gres.conf": f"AutoDetect=off\n{line}\n{other}\n", "slurm.conf": "GresTypes=gpu\n"})
    assert changed == {"gres.conf": f"AutoDetect=off\n{short}\n{other}\n", "slurm.conf": "GresTypes=gpu\n"}
