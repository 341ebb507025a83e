"""The `existing` backend upon a cluster that is not its own: by the commands on PATH, and by slurmrestd's address with a token."""

from __future__ import annotations

import os
import subprocess

import pytest
from slurm_support import cluster, until, work  # noqa: F401 - fixtures

from orchlab import environment, faults, why
from orchlab.course import slurm_reset
from orchlab.course.folder import lab
from orchlab.course.lab import Lab
from orchlab.errors import BadInput, EnvironmentBroken
from orchlab.slurm import existing, notebook
from orchlab.slurm.client import Client, token
from orchlab.slurm.errors import NotOffered, SlurmError
from orchlab.slurm.layout import Layout

NAME = "theirs"
LONG = "#!/bin/bash\norchlab-sleep 10h\n"


@pytest.fixture
def owner(cluster, work):
    """The cluster's own client: what its administrator and other users do."""
    with Client.of(cluster, "commands") as client:
        yield client


@pytest.fixture(params=["commands", "rest"])
def env(request, cluster, owner, monkeypatch):
    """An environment that uses the cluster as one that is somebody else's."""
    if request.param == "commands":
        layout = Layout(cluster.folder)
        monkeypatch.setenv("PATH", f"{layout.bin}:{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_CONF", str(layout.conf))
        env = environment.up(NAME, kubernetes="none", slurm="existing")
        # What was chosen stays, whatever shell comes next.
        monkeypatch.delenv("SLURM_CONF")
        monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[2])
    else:
        env = environment.up(NAME, kubernetes="none", slurm="existing", slurm_url=f"unix:{Layout(cluster.folder).rest_socket}",
                             slurm_token=token(owner.transports[0]))
    yield env
    environment.down(NAME, purge=True)


@pytest.fixture
def client(env):
    with Client.of(env) as client:
        yield client


def by_commands(env) -> bool:
    return bool(existing.chosen(env).commands)


def test_it_is_read_and_used(env, client, owner, work):
    assert {node.name: node.gres for node in client.nodes()} == {node.name: node.gres for node in owner.nodes()}
    assert existing.describe(env) == "9 nodes with 42 GPUs"
    job = client.submit("#!/bin/bash\nsrun -n1 true\n", job_name="guest", chdir=str(work), output="/dev/null")
    waiting = client.submit(LONG, job_name="guest", hold=True, chdir=str(work), output="/dev/null")
    assert waiting in {found.id for found in client.queue()} and existing.submitted(env.folder) == {job, waiting}
    client.wait(job, seconds=60)
    past = until(lambda: next((found for found in client.accounting([job]) if found.ended and found.name == "guest"), None), 30)
    assert past.state == "COMPLETED" and f"{job}.0" in {step.id for step in past.steps}
    with pytest.raises(SlurmError, match="Invalid partition name specified"):
        client.submit("#!/bin/bash\n", partition="nope")
    until(lambda: why.ask(env, f"job/{waiting}")[0].diagnosis.cause == "Its owner holds it.")
    assert [state.healthy for state in env.health()] == [True]
    assert environment.up(NAME).record.slurm == "existing", "what was chosen stays"


def test_a_script_is_tested_where_there_are_commands(env, work):
    (work / "job.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:h100:9\n")
    if by_commands(env):
        assert "can ever give that" in why.refused(env, work / "job.sh")[0].diagnosis.cause
        (work / "job.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:h100:8\n")
        assert "finds nothing to refuse" in why.refused(env, work / "job.sh")[0].diagnosis.cause
    else:
        with pytest.raises(NotOffered, match="test-only"):
            why.refused(env, work / "job.sh")


def test_a_shell_and_a_notebook_have_its_commands_but_none_that_change_it(env, owner, work):
    if not by_commands(env):
        assert (env.folder / existing.FOLDER / "token").stat().st_mode & 0o777 == 0o600
        with pytest.raises(EnvironmentBroken, match="there are no commands"):
            notebook.slurm(env, "squeue")
        return
    shell = {"env": os.environ | {"PATH": f"{env.variables()['PATH']}:{os.environ['PATH']}"}, "input": LONG, "text": True, "timeout": 30}
    said = subprocess.run(["sbatch", "-H", "-o", "/dev/null"], capture_output=True, check=True, **shell)
    job = int(said.stdout.removeprefix("Submitted batch job "))
    refused = subprocess.run(["sbatch", "-p", "nope"], capture_output=True, check=False, **shell)
    assert refused.returncode == 1 and "Invalid partition name specified" in refused.stderr
    assert existing.submitted(env.folder) == {job}
    assert "JobHeldUser" in notebook.slurm(env, "squeue")
    assert "NodeName=cpu-0" in notebook.slurm(env, "scontrol show node cpu-0")
    notebook.slurm(env, f"scontrol release {job}")
    for line in ("scontrol update node=cpu-0 state=drain reason=x", "scontrol reconfigure", "scontrol", "sacctmgr add account x"):
        with pytest.raises(BadInput, match="never changes"):
            notebook.slurm(env, line, text="update node=cpu-0 state=drain reason=x\n")
    assert owner.nodes()[0].flags == ()


def test_reset_and_down_leave_the_cluster_and_others_jobs_alone(cluster, env, client, owner, work):
    """Nodes that somebody drained, reservations, accounts and other jobs of the same user are not the lab's."""
    options = {"chdir": str(work), "output": "/dev/null"}
    notebook.slurm(cluster, "scontrol update node=cpu-1 state=drain reason='fan is loud'")
    notebook.slurm(cluster, "scontrol create reservation=kept starttime=now duration=60 users=root nodes=t4-0")
    try:
        others = owner.submit(LONG, **options)
        mine, second = client.submit(LONG, **options), client.submit(LONG, array="0-3%1", **options)
        until(lambda: owner.job(others).state == owner.job(mine).state == "RUNNING")
        before = _looks(cluster, owner)
        done = slurm_reset.cluster(env, lab("13"))
        assert "2 jobs of the lab cancelled" in done[0]
        until(lambda: all(job.ended_for_good for number in (mine, second) for job in owner.jobs(number)), 30)
        again = client.submit(LONG, **options)
        until(lambda: owner.job(again).state == "RUNNING")
        environment.down(NAME)
        assert {owner.job(others).state, owner.job(again).state} == {"RUNNING"}, "down leaves jobs as they are"
        assert _looks(cluster, owner) == before
        environment.down(NAME, purge=True)
        until(lambda: owner.job(again).ended_for_good, 30)
        assert owner.job(others).state == "RUNNING"
        assert _looks(cluster, owner) == before
    finally:
        notebook.slurm(cluster, "scontrol delete reservation=kept")
        notebook.slurm(cluster, "scontrol update node=cpu-1 state=resume")


def _looks(cluster, owner) -> tuple:
    """What must not change: daemons, nodes out of service, reservations, accounts, QoS."""
    daemons = {state.name: state.pid for state in cluster.health(probe=False)}
    return (daemons, {node.name: ("DRAIN" in node.flags, node.reason) for node in owner.nodes()},
            owner.reservations(), notebook.slurm(cluster, "sacctmgr -nP show assoc"), notebook.slurm(cluster, "sacctmgr -nP show qos"))


def test_faults_are_refused(env):
    for kind, target in (("gres-types", ""), ("munge-key", "h100-0"), ("daemon-down", "slurmctld")):
        with pytest.raises(BadInput, match="existing cluster, which orchlab never changes"):
            faults.cause(env, kind, target)
    with pytest.raises(BadInput, match="is of Kubernetes, and environment 'theirs' has none"):
        faults.cause(env, "node-down", "h100-0")
    assert faults.held(environment.Environment.load(NAME)) == []


def test_a_lab_that_changes_its_cluster_says_so(env):
    with pytest.raises(BadInput, match="lab 12 does not run on it: it changes its cluster"):
        Lab("12", NAME, quiet=True)


def test_the_token_is_nowhere_but_in_its_file(env, capfd):
    if by_commands(env):
        assert not (env.folder / existing.FOLDER / "token").exists()
        return
    secret = (env.folder / existing.FOLDER / "token").read_text()
    holders = [path for path in env.folder.rglob("*") if path.is_file() and secret in path.read_text(errors="replace")]
    assert holders == [env.folder / existing.FOLDER / "token"]
    assert existing.claims(secret)["sun"] == existing.chosen(env).user
    assert secret not in "".join(capfd.readouterr())


def test_a_token_that_slurm_refuses_is_refused(cluster, owner):
    head, body, _ = token(owner.transports[0]).split(".")
    forged, address = f"{head}.{body}.{'A' * 43}", f"unix:{Layout(cluster.folder).rest_socket}"
    with pytest.raises(EnvironmentBroken, match="slurmrestd.socket reach no Slurm") as refused:
        environment.up(NAME, kubernetes="none", slurm="existing", slurm_url=address, slurm_token=forged)
    assert forged not in str(refused.value)
    assert environment.names() == [cluster.name]
