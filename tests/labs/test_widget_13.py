"""What lab 13's sliders and button do, against the live cluster."""

import time

import pytest

from orchlab.course import Lab, folder, reset


@pytest.fixture
def tool(proved):
    reset.cluster(folder.lab("13"), proved)
    made = Lab("13", proved, quiet=True).widget("array", tasks=3, limit=0, gpus=8, minutes=3)
    yield made
    made.close()


def until(look, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def test_an_array_goes_to_the_real_scheduler_and_text_and_picture_follow(tool):
    assert "#SBATCH --array=0-2\n#SBATCH --gres=gpu:h100:8\norchlab-sleep 3m" in tool.script
    until(lambda: tool.text == "3 tasks x 8 GPUs: 3 running")
    until(lambda: "3 running" in tool.status.value and tool.view.text.count("widget") >= 24)
    assert len({job.nodes for job in tool.lab.slurm.jobs(tool.job)}) == 3, "a task with all GPUs of a node has the node"
    assert tool.settled() == "3 tasks x 8 GPUs: 3 completed"


def test_the_limit_of_the_array_and_the_nodes_limit_give_their_own_reasons(tool):
    tool.tasks.value, tool.limit.value, tool.minutes.value = 6, 2, 10
    tool.settled()
    tool.submit()
    until(lambda: tool.text == "6 tasks x 8 GPUs: 2 running, 4 waiting (JobArrayTaskLimit)")
    first = tool.job
    tool.limit.value = 0
    tool.submit()
    until(lambda: tool.job != first and tool.text == "6 tasks x 8 GPUs: 4 running, 2 waiting (Resources)")
    assert all(job.state in ("CANCELLED", "COMPLETING") for job in tool.lab.slurm.jobs(first)), "the button cancels the array before"
    tool.lab.slurm.cancel(tool.job)
