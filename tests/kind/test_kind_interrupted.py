"""An `up` that is killed, an engine that goes away, a cluster that nobody may have: a clear message, and nothing is left after `down`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from door import Door
from kind_support import traces, until

from orchlab import environment
from orchlab.environment import Environment
from orchlab.errors import EngineUnavailable, OrchlabError
from orchlab.kube import kind_cluster

pytestmark = pytest.mark.timeout(3000)
UP = [sys.executable, "-c", "from orchlab.cli import main; main()", "up", "--kubernetes", "kind", "--slurm", "none", "--name"]


@pytest.fixture
def name(engine, home_for_kind):
    yield "cut"
    env = Environment.load("cut") if "cut" in environment.names() else None
    environment.down("cut", purge=True)
    assert env is None or traces(engine, env) == []


def containers(engine) -> list[str]:
    return engine.run("ps", "--all", "--quiet", "--filter", f"label={kind_cluster.CLUSTER_LABEL}").stdout.split()


@pytest.mark.parametrize("how_far", ["first container", "second container"])
def test_an_up_that_is_killed_leaves_nothing_after_down(engine, name, how_far):
    before = set(containers(engine))
    process = subprocess.Popen([*UP, name], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: len(set(containers(engine)) - before) >= (1 if how_far == "first container" else 2) or process.poll() is not None, 300, 0.05)
    assert process.poll() is None, process.stderr.read()
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    env = Environment.load(name)
    environment.down(name)
    assert traces(engine, env) == []


def test_an_engine_that_does_not_answer_is_named(monkeypatch, home_for_kind):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{home_for_kind}/nobody")
    with pytest.raises(EngineUnavailable, match="no Docker Engine is running"):
        environment.up("cut", kubernetes="kind", slurm="none")
    environment.down("cut", purge=True)


def test_a_node_image_that_is_none_is_named_and_nothing_is_left(engine, name, monkeypatch):
    monkeypatch.setenv("ORCHLAB_KIND_IMAGE", "registry.example/no-such-node:v1")
    with pytest.raises(OrchlabError, match="kind create cluster failed"):
        environment.up(name, kubernetes="kind", slurm="none")
    assert traces(engine, Environment.load(name)) == []


@pytest.fixture
def door(engine, home_for_kind):
    """A way to the engine that a test may shut. It is open again while what the test made goes."""
    door = Door(engine, home_for_kind / "engine.sock")
    yield door
    door.close()


@pytest.mark.parametrize("moment", ["before a node", "between nodes"])
def test_an_engine_that_stops_midway_is_named_and_what_is_left_goes_once_it_is_back(engine, door, name, monkeypatch, moment):
    before = set(containers(engine))
    monkeypatch.setenv("DOCKER_HOST", door.address)
    process = subprocess.Popen([*UP, name], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    come = (lambda: door.has_seen("/networks/create")) if moment == "before a node" else (lambda: set(containers(engine)) - before)
    until(lambda: come() or process.poll() is not None, 300, 0.05)
    door.close()
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 1 and "Traceback" not in said, said
    assert "failed: no Docker Engine is running" in said and "then orchlab down removes what is left" in said, said
    with pytest.raises(OrchlabError, match="no Docker Engine is running"):
        environment.up(name, kubernetes="kind", slurm="none")
    door.open()
    environment.down(name)
    assert traces(engine, Environment.load(name)) == []


def test_a_disk_that_is_nearly_full_is_named_before_anything_is_made(engine, name, monkeypatch):
    before = containers(engine)
    monkeypatch.setattr(kind_cluster.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    with pytest.raises(OrchlabError, match=r"the engine's disk has 1\.0 GiB left .* a kind cluster needs 3 GiB") as refused:
        environment.up(name, kubernetes="kind", slurm="none")
    assert "docker system prune" in refused.value.remedy
    assert containers(engine) == before
