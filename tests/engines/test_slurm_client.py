"""One contract for every way to reach Slurm that this machine offers: the commands, slurmrestd, and pyslurm where one is installed.

pyslurm is asked in the Python that $ORCHLAB_PYSLURM_PYTHON names (default: the one that runs the tests).
"""

from __future__ import annotations

import os
import time

import pytest
from slurm_support import cluster, until, work  # noqa: F401 - fixtures

from orchlab.errors import BadInput, EngineUnavailable, EnvironmentBroken, TimeLimitReached
from orchlab.slurm import pyslurm_transport
from orchlab.slurm.client import Client
from orchlab.slurm.errors import NotOffered, SlurmError
from orchlab.slurm.layout import Layout

OFFERED = ["commands", "rest", *(["pyslurm"] if pyslurm_transport.installed() else [])]
CONTROL = [name for name in OFFERED if name != "rest"]  # slurmrestd of 22.05 cannot hold, release or requeue


@pytest.fixture(params=OFFERED)
def client(request, cluster):
    with Client.of(cluster, request.param) as client:
        yield client


@pytest.fixture
def commands(cluster):
    with Client.of(cluster, "commands") as client:
        yield client


SCRIPT = (
    "#!/bin/bash\n#SBATCH --gres=gpu:a100:2\n#SBATCH -J from-script\n#SBATCH -t 1:00:00\necho gpus=$CUDA_VISIBLE_DEVICES; orchlab-sleep"
    " 3h\n"
)


def test_all_ways_tell_the_same_of_a_running_job(cluster, commands, work):
    job = commands.submit(SCRIPT, account="team-a", chdir=str(work), output=str(work / "out"))
    until(lambda: commands.job(job).state == "RUNNING")
    told = {}
    for way in OFFERED:
        with Client.of(cluster, way) as client:
            found = client.job(job)
            told[way] = (
                found.name,
                found.account,
                found.partition,
                found.qos,
                found.state,
                found.reason,
                found.nodes,
                found.gpus,
                found.started,
                found.submitted,
                found.limit,
                found.directory,
                found.held[0].node,
                found.held[0].type,
                found.held[0].count,
                found.held[0].indices,
            )
    assert told["commands"][:8] == ("from-script", "team-a", "all", "normal", "RUNNING", "", ("a100-0",), 2)
    assert told["commands"][-5:] == (str(work), "a100-0", "a100", 2, (0, 1))
    assert told["commands"][10] == 3600
    assert all(answer == told["commands"] for answer in told.values()), told


def test_all_ways_tell_the_same_of_nodes_partitions_and_qos(cluster, commands, work):
    for way in OFFERED:
        with Client.of(cluster, way) as client:
            assert {n.name: (n.state, n.cpus, n.memory, dict(n.gres), n.features, n.partitions) for n in client.nodes()} == {
                n.name: (n.state, n.cpus, n.memory, dict(n.gres), n.features, n.partitions) for n in commands.nodes()
            }, way
            assert sorted((p.name, p.state, p.nodes, p.limit, p.default_limit, p.max_nodes) for p in client.partitions()) == sorted(
                (p.name, p.state, p.nodes, p.limit, p.default_limit, p.max_nodes) for p in commands.partitions()
            ), way
            if way != "pyslurm":  # it knows their names only, and says so by not offering them
                assert {(q.name, q.priority, q.preempts, q.max_tres_per_user) for q in client.qos()} == {
                    ("normal", 0, (), ""),
                    ("low", 0, (), ""),
                    ("high", 100, ("low",), ""),
                    ("capped", 0, (), "gres/gpu=4"),
                }, way
    short = next(part for part in commands.partitions() if part.name == "short")
    assert (short.limit, short.default_limit, short.max_nodes) == (600, 300, 2)


def test_submit_with_every_option_then_cancel(client, work):
    job = client.submit(
        "#!/bin/bash\ntrap 'echo told' TERM\necho $TOKEN\norchlab-sleep 10h & wait\n",
        job_name="all-options",
        account="team-b",
        partition="h100",
        qos="low",
        nodes=1,
        ntasks=2,
        cpus_per_task=3,
        gres="gpu:h100:3",
        mem=2048,
        time="0:30:00",
        chdir=str(work),
        output=str(work / "out"),
        error=str(work / "err"),
        comment="a comment",
        constraint="zone-b",
        requeue=False,
        environment={"TOKEN": "given", "PATH": os.environ["PATH"]},
    )
    found = until(lambda: job_ if (job_ := client.job(job)).state == "RUNNING" else None)
    assert (found.name, found.account, found.partition, found.qos, found.gpus, found.cpus, found.limit) == (
        "all-options",
        "team-b",
        "h100",
        "low",
        3,
        6,
        1800,
    )
    assert found.nodes[0] in ("h100-2", "h100-3"), "zone-b"
    until(lambda: (work / "out").exists() and "given" in (work / "out").read_text())
    client.cancel(job)
    ended = client.wait(job, seconds=60)[0]
    assert ended.state == "CANCELLED" and ended.ended >= ended.started


def test_an_arrays_waiting_tasks_and_a_dependency(client, work):
    array = client.submit("#!/bin/bash\norchlab-sleep 10h\n", array="1-4%1", chdir=str(work), output="/dev/null")
    after = client.submit("#!/bin/bash\ntrue\n", dependency=f"afterany:{array}", chdir=str(work), output="/dev/null", hold=False)
    running = until(lambda: [job for job in client.jobs(array) if job.state == "RUNNING"])
    waiting = until(lambda: next((job for job in client.jobs(array) if job.reason == "JobArrayTaskLimit"), None))
    assert (running[0].array_id, running[0].array_task, running[0].label) == (array, 1, f"{array}_1")
    assert waiting.label == f"{array}_[2-4%1]"
    found = until(lambda: job if (job := client.job(after)).reason == "Dependency" else None)
    assert found.dependency
    client.cancel(array)
    client.wait(after, seconds=60)


def test_accounting_has_the_job_and_its_steps(client, work):
    begun = time.time() - 2
    job = client.submit("#!/bin/bash\nsrun -n1 true\nexit 7\n", job_name="kept", chdir=str(work), output="/dev/null")
    client.wait(job, seconds=60)
    past = until(lambda: next((found for found in client.accounting([job]) if found.ended and found.name == "kept"), None), 30)
    transport = client.transports[0]
    # The API of 22.05 gives every exit code as 0: then the client gives none.
    right = None if transport.name == "rest" and transport.api < "v0.0.40" else 7
    assert (past.id, past.account, past.state, past.exit_code) == (job, "lab", "FAILED", right)
    assert begun < past.submitted <= past.started <= past.ended
    assert {step.id for step in past.steps} == {f"{job}.batch", f"{job}.0"}
    assert job in {found.id for found in client.accounting(since=begun - 60)}


@pytest.mark.parametrize("way", CONTROL)
def test_hold_release_and_requeue(cluster, work, way):
    with Client.of(cluster, way) as client:
        job = client.submit("#!/bin/bash\norchlab-sleep 10h\n", hold=True, chdir=str(work), output="/dev/null")
        until(lambda: client.job(job).reason == "JobHeldUser")
        client.release(job)
        until(lambda: client.job(job).state == "RUNNING")
        client.requeue(job)
        until(lambda: client.job(job).restarts == 1)
        client.hold(job)
        until(lambda: client.job(job).state == "PENDING")
        with pytest.raises(SlurmError, match="Invalid job id specified"):
            client.hold(99_999_999)
    with Client.of(cluster, "rest") as rest, pytest.raises(NotOffered):
        rest.hold(job)


def test_a_refusal_is_slurms_own_text(client, work):
    for options, text in (
        ({"partition": "nope"}, "Invalid partition name specified"),
        ({"gres": "gpu:v100:1"}, "Requested node configuration is not available"),
        ({"array": "0-5000"}, "Invalid job array specification"),
        ({"account": "nobody"}, "Invalid account or account/partition combination specified"),
    ):
        with pytest.raises(SlurmError) as refused:
            client.submit("#!/bin/bash\ntrue\n", **options)
        assert refused.value.text == text
    with pytest.raises(SlurmError, match="Invalid job id specified"):
        client.cancel(99_999_999)
    with pytest.raises(SlurmError, match="Invalid job id specified"):
        client.job(99_999_999)


def test_bad_input_is_named_before_slurm_is_asked(client):
    with pytest.raises(BadInput, match="script"):
        client.submit("echo no shebang")
    with pytest.raises(BadInput, match="nodes"):
        client.submit("#!/bin/bash\n", nodes=0)
    with pytest.raises(BadInput, match="gpu_count.*is not an option"):
        client.submit("#!/bin/bash\n", gpu_count=3)


def test_steps_priorities_shares_reservations(cluster, commands, work):
    job = commands.submit("#!/bin/bash\nsrun -n1 orchlab-sleep 10h\n", chdir=str(work), output="/dev/null")
    until(lambda: {step.id for step in commands.steps(job)} == {f"{job}.batch", f"{job}.0"})
    held = commands.submit("#!/bin/bash\ntrue\n", partition="short", time="60", chdir=str(work))
    assert until(lambda: next((part for part in commands.priorities() if part.job == str(held)), None)).total > 0
    assert {"lab", "team-a", "team-b"} <= {share.account for share in commands.shares()}
    assert commands.reservations() == []
    with Client.of(cluster, "rest") as rest, pytest.raises(NotOffered):
        rest.priorities()
    with Client.of(cluster) as whole:
        assert whole.priorities() and whole.version().startswith(Layout(cluster.folder).release().version[:5])


def test_a_token_that_is_refused_is_renewed_once(cluster, work):
    with Client.of(cluster, "rest") as rest:
        transport = rest.transports[0]
        rest.version()
        transport._current = "eyJ.not.valid"
        assert rest.nodes()
        transport._token = lambda: "eyJ.not.valid"
        transport._current = ""
        with pytest.raises(SlurmError):
            rest.jobs()


def test_a_daemon_that_does_not_answer_ends_in_a_time_limit_or_is_said_to_be_gone(cluster, work):
    slurmctld = next(state for state in cluster.health(probe=False) if state.name == "slurmctld")
    os.kill(slurmctld.pid, 19)  # SIGSTOP: it listens and does not answer
    try:
        for way in OFFERED:
            with Client.of(cluster, way, seconds=2) as client:
                begun = time.monotonic()
                with pytest.raises((TimeLimitReached, SlurmError)):
                    client.jobs()
                assert time.monotonic() - begun < 10, way
    finally:
        os.kill(slurmctld.pid, 18)
    with Client.of(cluster, "commands") as client:
        until(lambda: client.jobs() is not None, 30)


def test_an_unreadable_configuration_ends_the_worker_and_not_us(tmp_path):
    transport = pyslurm_transport.PySlurm({"SLURM_CONF": str(tmp_path / "nothing")}, seconds=15)
    with pytest.raises(EngineUnavailable, match="needs a readable slurm.conf"):
        transport.jobs()
    # One that is there and cannot be used: Slurm's library ends the process that read it.
    (tmp_path / "slurm.conf").write_text("ClusterName=x\nNonsense=1\n")
    with pytest.raises(EngineUnavailable, match="pyslurm ended at import pyslurm"):
        pyslurm_transport.PySlurm({"SLURM_CONF": str(tmp_path / "slurm.conf")}, seconds=30).jobs()


def test_an_address_that_would_show_the_token_or_answers_nothing():
    from orchlab.slurm.rest import Rest

    with pytest.raises(BadInput, match="unprotected"):
        Rest("http://login.example.org:6820", lambda: "token")
    with pytest.raises(BadInput, match="not an address"):
        Rest("ftp://x", lambda: "token")
    with pytest.raises(EnvironmentBroken, match="cannot be reached"):
        Rest("unix:/no/such/socket", lambda: "token").jobs()
