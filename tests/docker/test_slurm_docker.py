"""Slurm in containers: the fleet as on the local backend, jobs on GPUs, one client contract, healing, and nothing left afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import test_slurm_client as contract
from docker_support import daemon_pid, run, traces, until
from test_slurm_client import (  # noqa: F401 - the contract that the local backend is held to as well
    test_a_refusal_is_slurms_own_text,
    test_all_ways_tell_the_same_of_a_running_job,
    test_all_ways_tell_the_same_of_nodes_partitions_and_qos,
    test_an_arrays_waiting_tasks_and_a_dependency,
    test_bad_input_is_named_before_slurm_is_asked,
    test_submit_with_every_option_then_cancel,
)

from orchlab import environment
from orchlab.errors import EnvironmentBroken, TimeLimitReached
from orchlab.slurm import accounts, compose, containers, docker, notebook
from orchlab.slurm.client import Client
from orchlab.slurm.errors import SlurmError

WAYS = ["commands", "rest"]
# The first test waits for the engine's installation, the base and the image as well.
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(autouse=True)
def offered(monkeypatch):
    """What the contract asks: pyslurm of this machine's Python cannot reach into the containers."""
    monkeypatch.setattr(contract, "OFFERED", WAYS)


@pytest.fixture(params=WAYS)
def client(request, cluster):
    with Client.of(cluster, request.param) as client:
        yield client


@pytest.fixture
def commands(cluster):
    with Client.of(cluster, "commands") as client:
        yield client


def inside(cluster, service: str, *words: str, user: str = "root") -> str:
    return run("docker", "exec", "--user", user, compose.container(cluster.name, service), *words, seconds=60)


def output(commands, work, script: str, **options) -> str:
    job = commands.submit(f"#!/bin/bash\n{script}\n", chdir=str(work), output=str(work / "out.%j"), **options)
    commands.wait(job, seconds=60)
    return (work / f"out.{job}").read_text()


# -- what there is


def test_every_node_of_the_fleet_is_idle_with_its_typed_gpus(cluster, commands):
    nodes = {node.name: node for node in commands.nodes()}
    assert {name: dict(node.gres) for name, node in nodes.items()} == {
        **{f"h100-{i}": {"gpu:h100": 8} for i in range(4)}, **{f"a100-{i}": {"gpu:a100": 4} for i in range(2)},
        "t4-0": {"gpu:t4": 2, "shard:t4": 8}, "cpu-0": {}, "cpu-1": {}}
    assert {node.state for node in nodes.values()} == {"IDLE"}
    assert (nodes["h100-0"].cpus, nodes["h100-0"].memory) == (192, 2 * 1024 * 1024), "the fleet's figures, not this machine's"
    assert [part.name for part in commands.partitions()] == ["all", "short", "h100", "a100", "t4", "cpu"]
    assert set(accounts.ACCOUNTS) <= {share.account for share in commands.shares()}


def test_status_has_a_row_for_every_container(cluster, work):
    states = cluster.health()
    assert [state.name for state in states] == ["db", "dbd", "ctld", "restd", "login", *(node.name for node in cluster.fleet.nodes())]
    assert all(state.healthy and state.pid and state.memory > 2**20 for state in states), states


def test_nothing_is_privileged_and_only_loopback_is_published(cluster, engine):
    names = [compose.container(cluster.name, service) for service in ("db", "dbd", "ctld", "restd", "login", "h100-0")]
    for item in json.loads(engine.run("inspect", *names).stdout):
        host = item["HostConfig"]
        assert not host["Privileged"] and host["CapDrop"] == ["ALL"] and "SYS_ADMIN" not in " ".join(host["CapAdd"])
        assert "no-new-privileges:true" in host["SecurityOpt"] and host["NetworkMode"] not in ("host", "default")
        assert not [mount for mount in item["Mounts"] if mount["Source"].endswith((".sock", "socket"))]
        published = {port["HostIp"] for ports in (host["PortBindings"] or {}).values() for port in ports}
        assert published == ({"127.0.0.1"} if item["Name"].endswith("-restd") else set())


def test_secrets_are_this_environments_own_and_only_where_they_are_needed(cluster, engine):
    keys = cluster.folder / "slurm-docker" / "keys"
    assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o600} and keys.stat().st_mode & 0o777 == 0o700
    image_ = docker.chosen_for(cluster.folder).image
    assert engine.run("run", "--rm", "--entrypoint", "find", image_, "/", "-xdev", "-name", "munge.key").stdout == ""
    assert sorted(inside(cluster, "h100-0", "ls", "/run/secrets").split()) == ["munge_key"]
    assert sorted(inside(cluster, "ctld", "ls", "/run/secrets").split()) == ["jwt_key", "munge_key"]
    password = (keys / "database.password").read_text()
    for path in (cluster.folder / "slurm-docker" / "etc").iterdir():
        assert password not in path.read_text()


# -- jobs


def test_srun_and_sbatch_see_the_devices_that_they_got(cluster, commands, work):
    text = output(commands, work, "echo gpus=$CUDA_VISIBLE_DEVICES on=$SLURMD_NODENAME", gres="gpu:h100:2", ntasks=1)
    assert text == "gpus=0,1 on=h100-0\n"
    said = notebook.slurm(cluster, "srun --gres=gpu:a100:3 bash -c 'echo gpus=$CUDA_VISIBLE_DEVICES $(hostname) $(pwd)'", folder=work)
    assert said == f"gpus=0,1,2 a100-0 {work}\n"
    both = notebook.slurm(cluster, "srun -N2 -n2 --gpus-per-task=h100:8 bash -c 'echo $(hostname):$CUDA_VISIBLE_DEVICES'")
    assert {line.split(":")[1] for line in both.split()} == {"0,1,2,3,4,5,6,7"} and len(set(both.split())) == 2
    assert notebook.slurm(cluster, "srun --gres=shard:3 bash -c 'echo $(hostname):$CUDA_VISIBLE_DEVICES'") == "t4-0:0\n"


def test_the_callers_variables_and_the_clock_reach_the_job(cluster, commands, work, monkeypatch):
    monkeypatch.setenv("ORCHLAB_SECRET", "stays here")
    text = output(commands, work, "echo word=$WORD; date +%s.%N; orchlab-sleep 2m; date +%s.%N; env", environment={"WORD": "two words\nand a line"})
    assert "word=two words and a line" in text and "120 s of simulated run time, 2.000 s real" in text
    assert "ORCHLAB_" not in text and "DOCKER_HOST" not in text


def test_an_srun_that_is_ended_ends_its_step(cluster, commands, work):
    with pytest.raises(TimeLimitReached):
        notebook.slurm(cluster, "srun -J slow orchlab-sleep 10h", seconds=3)
    until(lambda: not [job for job in commands.queue() if job.name == "slow"], 30)
    assert "srun" not in inside(cluster, "login", "ps", "-eo", "args")


def test_accounting_has_the_job_and_its_steps(client, work):
    begun = time.time() - 2
    job = client.submit("#!/bin/bash\nsrun -n1 true\nexit 7\n", job_name="kept", gres="gpu:a100:1", chdir=str(work), output="/dev/null")
    client.wait(job, seconds=60)
    past = until(lambda: next((found for found in client.accounting([job]) if found.ended and found.name == "kept"), None), 30)
    assert (past.id, past.account, past.state, past.exit_code) == (job, "lab", "FAILED", 7)
    assert begun < past.submitted <= past.started <= past.ended
    assert {step.id for step in past.steps} == {f"{job}.batch", f"{job}.0"}
    assert past.tres["gres/gpu"] == past.tres["gres/gpu:a100"] == 1


def test_hold_release_and_requeue(commands, work):
    job = commands.submit("#!/bin/bash\norchlab-sleep 10h\n", hold=True, chdir=str(work), output="/dev/null")
    until(lambda: commands.job(job).reason == "JobHeldUser")
    commands.release(job)
    until(lambda: commands.job(job).state == "RUNNING")
    commands.requeue(job)
    until(lambda: commands.job(job).restarts == 1)
    with pytest.raises(SlurmError, match="Invalid job id specified"):
        commands.hold(99_999_999)


def test_a_token_that_is_refused_is_renewed_once(cluster, work):
    with Client.of(cluster, "rest") as rest:
        transport = rest.transports[0]
        assert transport._url.hostname == "127.0.0.1" and rest.nodes()
        transport._current = "eyJ.not.valid"
        assert rest.nodes()
        transport._token = lambda: "eyJ.not.valid"
        transport._current = ""
        with pytest.raises(SlurmError):
            rest.nodes()


def test_a_controller_that_does_not_answer_ends_in_a_time_limit(cluster, commands, work):
    name = compose.container(cluster.name, "ctld")
    run("docker", "pause", name)
    try:
        for way in WAYS:
            with Client.of(cluster, way, seconds=3) as client:
                begun = time.monotonic()
                with pytest.raises((TimeLimitReached, SlurmError)):
                    client.jobs()
                assert time.monotonic() - begun < 15, way
    finally:
        run("docker", "unpause", name)
    until(lambda: commands.version(), 30)
    assert until(lambda: commands.nodes(), 60)


def test_the_shell_is_on_the_login_node(cluster, work):
    done = subprocess.run([Path(sys.executable).parent / "orchlab", "shell", "slurm", "--name", cluster.name], input="hostname; sinfo -h -p t4 -o %G\n", capture_output=True,
                          text=True, timeout=60, check=True)
    assert done.stdout.split() == ["login", "gpu:t4:2,shard:t4:8"]


# -- healing


@pytest.mark.parametrize("service, daemon", [("ctld", "slurmctld"), ("dbd", "slurmdbd"), ("db", "mariadbd"), ("restd", "slurmrestd"), ("t4-0", "slurmd"), ("cpu-0", "munged")])
def test_a_killed_daemon_comes_back_by_itself_and_its_jobs_go_on(cluster, commands, work, service, daemon):
    job = commands.submit("#!/bin/bash\norchlab-sleep 25m\n", job_name=daemon, partition="t4", chdir=str(work), output="/dev/null")
    # slurmctld writes its state down every 5 s.
    until(lambda: (found := commands.job(job)).state == "RUNNING" and time.time() - found.started > 8)
    os.kill(daemon_pid(cluster.name, service, daemon), signal.SIGKILL)
    until(lambda: all(state.healthy for state in cluster.health()), 60)
    until(lambda: _ended_well(commands, job), 90)
    past = until(lambda: next((found for found in commands.accounting([job]) if found.state == "COMPLETED"), None), 60)
    assert past.nodes == ("t4-0",)


def _ended_well(commands, job) -> bool:
    try:
        found = commands.job(job)
    except (SlurmError, TimeLimitReached, EnvironmentBroken):
        return False  # slurmctld is on its way back
    assert found.restarts == 0
    return found.state == "COMPLETED"


def test_a_killed_node_fails_its_job_which_runs_again_elsewhere_and_up_brings_the_node_back(cluster, commands, work):
    job = commands.submit("#!/bin/bash\norchlab-sleep 10h\n", gres="gpu:a100:4", chdir=str(work), output="/dev/null")
    first = until(lambda: found.nodes[0] if (found := commands.job(job)).state == "RUNNING" else None)
    other = {"a100-0": "a100-1", "a100-1": "a100-0"}[first]
    run("docker", "kill", compose.container(cluster.name, first))
    until(lambda: (found := commands.job(job)).state == "RUNNING" and found.restarts == 1 and found.nodes == (other,), 120)
    assert not next(state for state in cluster.health() if state.name == first).healthy
    untouched = run("docker", "inspect", "--format", "{{.State.StartedAt}}", compose.container(cluster.name, other))
    environment.up(cluster.name)
    until(lambda: next(node for node in commands.nodes() if node.name == first).state == "IDLE", 30)
    assert untouched == run("docker", "inspect", "--format", "{{.State.StartedAt}}", compose.container(cluster.name, other))
    assert commands.job(job).nodes == (other,)


def test_down_removes_what_is_ours_only_and_up_finds_accounting_again(cluster, engine, commands, work):
    job = commands.submit("#!/bin/bash\ntrue\n", job_name="before-down", chdir=str(work), output="/dev/null")
    commands.wait(job)
    until(lambda: commands.accounting([job]))
    image_ = docker.chosen_for(cluster.folder).image
    stranger = run("docker", "run", "--detach", "--entrypoint", "sleep", image_, "600").strip()
    run("docker", "network", "create", "orchlab-slurm-stranger")
    try:
        assert environment.down(cluster.name)
        assert traces(engine, cluster.name) == [f"orchlab-slurm_{volume}" for volume in ("database", "home", "state")]
        assert environment.down(cluster.name), "again is harmless"
        environment.up(cluster.name)
        assert {found.name for found in commands.accounting([job])} == {"before-down"}
        assert run("docker", "inspect", "--format", "{{.State.Status}}", stranger).strip() == "running"
        assert "orchlab-slurm-stranger" in run("docker", "network", "ls", "--format", "{{.Name}}").split()
    finally:
        run("docker", "rm", "--force", stranger)
        run("docker", "network", "rm", "orchlab-slurm-stranger")


def test_another_environment_of_the_same_name_is_refused(cluster, engine, home):
    with pytest.raises(EnvironmentBroken, match="belongs to another environment"):
        environment.up(cluster.name, kubernetes="none", slurm="docker")
    environment.down(cluster.name, purge=True)
    assert traces(engine, cluster.name), "the other one's are all there"
    assert {container.state for container in engine.containers(compose.project(cluster.name))} == {"running"}


def test_the_compose_file_is_taken_as_it_is(cluster, engine):
    words = [*engine.compose_words, "--project-name", "x", "--file", str(cluster.folder / "slurm-docker" / "compose.yaml"), "config"]
    said = run(*words, seconds=60)
    assert "container_name: orchlab-slurm-h100-3" in said and containers.LABEL in said
