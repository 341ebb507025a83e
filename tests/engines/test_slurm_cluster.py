"""A real Slurm on this machine: what its nodes offer, what jobs see, why jobs wait, what accounting keeps, what a notebook and a view
get."""

from __future__ import annotations

import re
import time

import psutil
import pytest
from slurm_support import cluster, until, work  # noqa: F401 - fixtures

from orchlab.errors import BadInput, TimeLimitReached
from orchlab.slurm import notebook, why
from orchlab.slurm.client import Client
from orchlab.slurm.errors import SlurmError
from orchlab.slurm.feed import Feed


@pytest.fixture
def client(cluster):
    with Client.of(cluster, "commands") as client:
        yield client


def run(client, work, script: str, seconds: float = 60, **options) -> str:
    """Submits, waits for the end, returns the output."""
    job = client.submit(f"#!/bin/bash\n{script}\n", chdir=str(work), output=str(work / "out.%j"), **options)
    client.wait(job, seconds=seconds)
    return (work / f"out.{job}").read_text()


def test_every_node_of_the_fleet_is_idle_with_its_typed_gpus(cluster, client, work):
    nodes = {node.name: node for node in client.nodes()}
    assert {name: dict(node.gres) for name, node in nodes.items()} == {
        **{f"h100-{i}": {"gpu:h100": 8} for i in range(4)},
        **{f"a100-{i}": {"gpu:a100": 4} for i in range(2)},
        "t4-0": {"gpu:t4": 2, "shard:t4": 8},
        "cpu-0": {},
        "cpu-1": {},
    }
    assert {node.state for node in nodes.values()} == {"IDLE"}
    assert (nodes["h100-0"].cpus, nodes["h100-0"].memory) == (192, 2 * 1024 * 1024), "the fleet's figures, not this machine's"
    assert {"zone-a", "rack-a1", "h100"} <= set(nodes["h100-0"].features)
    assert [part.name for part in client.partitions()] == ["all", "short", "h100", "a100", "t4", "cpu"]


def test_all_daemons_listen_on_loopback_only(cluster, work):
    states = cluster.health()
    assert all(state.healthy for state in states), [(state.name, state.detail) for state in states if not state.healthy]
    for state in states:
        for connection in psutil.Process(state.pid).net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip == "127.0.0.1", (state.name, connection.laddr)


def test_a_job_sees_the_devices_that_it_got_and_no_trace_of_ours(cluster, client, work):
    text = run(client, work, "echo gpus=$CUDA_VISIBLE_DEVICES on=$SLURMD_NODENAME; env", gres="gpu:h100:2", ntasks=1)
    assert "gpus=0,1 on=h100-0" in text
    assert "LD_PRELOAD" not in text
    assert f"SLURM_CONF={cluster.folder}" in text, "commands inside a job talk to the same cluster"
    both = run(
        client,
        work,
        "srun bash -c 'echo task=$SLURM_PROCID gpus=$CUDA_VISIBLE_DEVICES preload=$LD_PRELOAD.' | sort",
        gpus="2",
        gpus_per_task="1",
        ntasks=2,
    )
    assert len(re.findall(r"task=\d gpus=\d preload=\.", both)) == 2


def test_two_nodes_of_one_rack_are_preferred(client, work):
    text = run(client, work, "srun -n2 bash -c 'echo $SLURMD_NODENAME:$CUDA_VISIBLE_DEVICES' | sort", nodes=2, ntasks=2, gres="gpu:h100:8")
    first, second = (line.split(":") for line in text.split())
    assert first[1] == second[1] == "0,1,2,3,4,5,6,7"
    assert {first[0], second[0]} in ({"h100-0", "h100-1"}, {"h100-2", "h100-3"})


def test_shards_share_one_gpu(client, work):
    jobs = [
        client.submit(
            "#!/bin/bash\necho gpus=$CUDA_VISIBLE_DEVICES; orchlab-sleep 5m\n", gres="shard:2", chdir=str(work), output=str(work / "out.%j")
        )
        for _ in range(2)
    ]
    until(lambda: all(client.job(job).state == "RUNNING" for job in jobs))
    assert [client.job(job).nodes for job in jobs] == [("t4-0",), ("t4-0",)]
    until(lambda: all((work / f"out.{job}").exists() and "gpus=0" in (work / f"out.{job}").read_text() for job in jobs))


def test_orchlab_sleep_scales_with_the_clock_and_ends_on_sigterm(cluster, client, work):
    text = run(client, work, "date +%s.%N; orchlab-sleep 2m; date +%s.%N; orchlab-sleep soon; echo status=$?")
    begun, ended = (float(line) for line in re.findall(r"^\d+\.\d+$", text, re.M))
    assert "120 s of simulated run time, 2.000 s real" in text
    assert ended - begun >= 2
    assert "soon is not a time" in text and "status=2" in text
    job = client.submit(
        "#!/bin/bash\ntrap 'echo caught; exit 0' USR1\norchlab-sleep 10h & wait\n", chdir=str(work), output=str(work / "out.%j")
    )
    until(lambda: (work / f"out.{job}").exists() and "simulated" in (work / f"out.{job}").read_text())
    notebook.slurm(cluster, f"scancel --batch --signal=USR1 {job}")
    client.wait(job, seconds=30)
    assert "caught" in (work / f"out.{job}").read_text()


REASONS = [
    ("JobHeldUser", {"hold": True}, "holds it"),
    ("PartitionTimeLimit", {"partition": "short", "time": "60"}, "more time than its partition allows"),
    ("PartitionNodeLimit", {"partition": "short", "nodes": 3}, "more nodes than its partition allows"),
    ("QOSMaxGRESPerUser", {"qos": "capped", "gpus": "6"}, "limit of QoS capped"),
]


@pytest.mark.parametrize("reason, options, cause", REASONS, ids=[reason for reason, _, _ in REASONS])
def test_a_job_waits_for_a_reason_that_is_explained(client, work, reason, options, cause):
    job = client.submit("#!/bin/bash\nsleep 1\n", chdir=str(work), **options)
    until(lambda: client.job(job).reason == reason)
    diagnosis = why.job(client, job)
    assert diagnosis.known and cause in diagnosis.cause and diagnosis.remedy
    assert any(reason in line for line in diagnosis.evidence)


def test_resources_priority_and_a_groups_limit_are_explained_with_numbers(client, work):
    def sleeper(**options):
        return client.submit("#!/bin/bash\norchlab-sleep 2h\n", chdir=str(work), output="/dev/null", **options)

    holder = sleeper(nodes=4, gres="gpu:h100:6", job_name="holder")
    until(lambda: client.job(holder).state == "RUNNING")
    first, second = sleeper(nodes=4, gres="gpu:h100:8"), sleeper(nodes=4, gres="gpu:h100:8")
    until(lambda: {client.job(first).reason, client.job(second).reason} == {"Resources", "Priority"})
    text = str(why.job(client, first))
    assert "h100-0: 191 of 192 CPUs free, 2 of 8 gpu:h100 free" in text and "32 gpu:h100 on 4 node(s)" in text
    assert f"ahead of it: {first}" in str(why.job(client, second))
    for _ in range(2):
        sleeper(account="team-b", gres="gpu:a100:4")
    third = sleeper(account="team-b", gres="gpu:h100:1")
    until(lambda: client.job(third).reason == "AssocGrpGRES")
    assert "running under account team-b: 2 jobs with 8 GPUs" in str(why.job(client, third))


def test_an_array_runs_as_many_tasks_as_its_limit_and_what_depends_on_it_waits(client, work):
    array = client.submit("#!/bin/bash\norchlab-sleep 1m\n", array="0-5%2", gres="gpu:a100:1", chdir=str(work), output="/dev/null")
    after = client.submit("#!/bin/bash\ntrue\n", dependency=f"afterok:{array}", chdir=str(work), output="/dev/null")
    waiting = until(lambda: next((job for job in client.jobs(array) if job.reason == "JobArrayTaskLimit"), None))
    assert waiting.label.startswith(f"{array}_[") and waiting.label.endswith("%2]")
    most = 0
    while not all(job.ended_for_good for job in client.jobs(array)):
        most = max(most, sum(job.state == "RUNNING" for job in client.jobs(array)))
        assert client.job(after).reason in ("Dependency", "")
        time.sleep(0.3)
    assert most == 2
    client.wait(after, seconds=30)
    past = until(
        lambda: (
            [job for job in found if job.ended]
            if len(found := client.accounting([array])) == 6 and all(job.ended for job in found)
            else None
        )
    )
    assert {job.state for job in past} == {"COMPLETED"} and sorted(job.array_task for job in past) == list(range(6))
    assert all(job.tres["gres/gpu"] == job.tres["gres/gpu:a100"] == 1 for job in past)
    assert all(step.state == "COMPLETED" for job in past for step in job.steps)


def test_a_dependency_on_a_failure_is_never_satisfied(client, work):
    failing = client.submit("#!/bin/bash\nexit 3\n", chdir=str(work), output="/dev/null")
    after = client.submit("#!/bin/bash\ntrue\n", dependency=f"afterok:{failing}", chdir=str(work))
    until(lambda: client.job(after).reason == "DependencyNeverSatisfied")
    assert (client.job(failing).state, client.job(failing).exit_code) == ("FAILED", 3)
    assert "error of its own" in why.job(client, failing).cause


def test_a_job_of_higher_qos_preempts_and_the_lower_one_is_requeued(client, work):
    low = client.submit("#!/bin/bash\norchlab-sleep 5h\n", qos="low", gres="gpu:t4:2", chdir=str(work), output="/dev/null")
    until(lambda: client.job(low).state == "RUNNING")
    high = client.submit("#!/bin/bash\norchlab-sleep 30s\n", qos="high", gres="gpu:t4:2", chdir=str(work), output="/dev/null")
    client.wait(high, seconds=60)
    again = until(lambda: job if (job := client.job(low)).state == "RUNNING" and job.restarts == 1 else None, 60)
    assert again.held[0].node == "t4-0"


REFUSALS = [
    ({"gres": "gpu:v100:1"}, "Requested node configuration is not available"),
    ({"gres": "foo:1"}, "Invalid generic resource (gres) specification"),
    ({"array": "0-5000"}, "Invalid job array specification"),
    ({"account": "nobody"}, "Invalid account or account/partition combination specified"),
    ({"partition": "nope"}, "Invalid partition name specified"),
    ({"qos": "nope"}, "Invalid qos specification"),
    ({"constraint": "nope"}, "Invalid feature specification"),
]


@pytest.mark.parametrize("options, text", REFUSALS, ids=[text for _, text in REFUSALS])
def test_a_refusal_has_slurms_text_and_is_explained(client, work, options, text):
    with pytest.raises(SlurmError) as refused:
        client.submit("#!/bin/bash\ntrue\n", **options)
    assert refused.value.text == text
    assert why.refusal(refused.value).known
    assert not why.refusal("sbatch: error: Batch job submission failed: Something quite new").known


def test_a_drained_node_and_a_running_one_are_told_apart(cluster, client, work):
    notebook.slurm(cluster, "scontrol update node=cpu-1 state=drain reason='fan is loud'")
    try:
        diagnosis = until(lambda: found if "drained" in (found := why.node(client, "cpu-1")).cause else None)
        assert any("fan is loud" in line for line in diagnosis.evidence) and "state=resume" in diagnosis.remedy
    finally:
        notebook.slurm(cluster, "scontrol update node=cpu-1 state=resume")
    until(lambda: "nothing is wrong" in why.node(client, "cpu-1").cause)
    with pytest.raises(SlurmError, match="Invalid node name"):
        why.node(client, "cpu-77")


def test_notebook_commands_are_the_real_ones_with_time_limits(cluster, client, work):
    job, said = notebook.sbatch(
        cluster, f"-o {work}/out -J cell", "#SBATCH --gres=gpu:a100:1\necho $SLURM_JOB_NAME $CUDA_VISIBLE_DEVICES\n", work
    )
    assert said == f"Submitted batch job {job}"
    client.wait(job, seconds=30)
    assert (work / "out").read_text() == "cell 0\n"
    assert "JOBID" in notebook.slurm(cluster, "squeue")
    assert "error: invalid partition" in notebook.slurm(cluster, "sbatch -p nope --wrap true").lower()
    with pytest.raises(BadInput, match="no command of Slurm's"):
        notebook.slurm(cluster, "rm -rf /")
    with pytest.raises(BadInput, match="terminal"):
        notebook.slurm(cluster, "srun --pty bash")
    with pytest.raises(SlurmError, match="Invalid partition name specified"):
        notebook.sbatch(cluster, "-p nope", "true")
    with pytest.raises(TimeLimitReached):
        notebook.slurm(cluster, "srun -J slow orchlab-sleep 10h", seconds=2)
    until(lambda: not [found for found in client.queue() if found.name == "slow"], 20)


def test_a_feed_draws_an_arrays_life(cluster, client, work):
    with Feed(client, cluster.fleet.nodes()) as feed:
        feed.ready(20)
        array = client.submit(
            "#!/bin/bash\norchlab-sleep 3m\n", array="0-2%1", gres="gpu:t4:2", job_name="lives", chdir=str(work), output="/dev/null"
        )
        snapshot = feed.wait(lambda shot: any(unit.id == f"{array}_0" for unit in shot.placed()), 30)
        assert {unit.id: unit.reason for unit in snapshot.waiting() if unit.id.startswith(f"{array}_")} == dict.fromkeys(
            [f"{array}_1", f"{array}_2"], "JobArrayTaskLimit"
        )
        node = next(node for node in snapshot.nodes if node.name == "t4-0")
        assert (node.zone, node.capacity["gpu:t4"], node.devices["gpu:t4"]) == ("zone-a", 2, ("0", "1"))
        feed.wait(lambda shot: len([unit for unit in shot.units if unit.id.startswith(f"{array}_") and unit.stage == "ended"]) == 3, 60)
    records = {record.id: record for record in feed.timeline.records() if record.id.startswith(f"{array}_")}
    assert [records[f"{array}_{task}"].outcome for task in range(3)] == ["COMPLETED"] * 3
    assert all(
        record.holds[0].shares[0].devices == ("0", "1") and record.holds[0].shares[0].resource == "gpu:t4" for record in records.values()
    )
    starts = sorted(record.holds[0].start for record in records.values())
    assert all(later - earlier >= 2 for earlier, later in zip(starts, starts[1:], strict=False)), "one task at a time"
    assert not feed._thread.is_alive()
