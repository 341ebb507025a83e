"""A kind cluster with the default fleet, for the tests of this folder only."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kind_support import node_image, traces

from orchlab import environment
from orchlab.environment import Environment

# What kubelets set for the whole machine, and nobody puts back; and how many files may be watched.
SYSCTLS = ("vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops", "kernel.keys.root_maxkeys", "kernel.keys.root_maxbytes",
           "fs.inotify.max_user_instances")
INSTANCES = 1024


@pytest.fixture(scope="package")
def sysctls() -> Iterator[None]:
    """Room for two clusters beside other tests, where root may make it; at the end the machine's settings are put back."""
    paths = [Path("/proc/sys") / name.replace(".", "/") for name in SYSCTLS]
    before = {path: path.read_text() for path in paths if path.exists()}
    instances = Path("/proc/sys/fs/inotify/max_user_instances")
    if os.access(instances, os.W_OK) and int(instances.read_text()) < INSTANCES:
        instances.write_text(str(INSTANCES))
    yield
    for path, text in before.items():
        if os.access(path, os.W_OK) and path.read_text() != text:
            path.write_text(text)


@pytest.fixture(scope="package")
def home_for_kind(engine, base, sysctls) -> Iterator[Path]:
    """The state folder of kind environments; the node image is there."""
    node_image(engine)
    with tempfile.TemporaryDirectory(prefix="ol", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCHLAB_HOME", folder)
        yield Path(folder)
        for name in environment.names():
            environment.down(name, purge=True)


@pytest.fixture(scope="package")
def cluster(engine, home_for_kind) -> Iterator[Environment]:
    """The environment `default` on kind, clock 60. At the end nothing of it is left in Docker."""
    env = environment.up("default", kubernetes="kind", slurm="none")
    yield env
    environment.down("default", purge=True)
    assert traces(engine, env) == []


@pytest.fixture(autouse=True)
def at_home(request, monkeypatch) -> None:
    """Every test of this folder speaks to that state folder."""
    if "home_for_kind" in request.fixturenames or "cluster" in request.fixturenames:
        monkeypatch.setenv("ORCHLAB_HOME", str(request.getfixturevalue("home_for_kind")))


@pytest.fixture
def kubectl(cluster):
    """kubectl on the cluster: its standard output; with check=False the whole result."""
    def run(*words: str, check: bool = True, seconds: float = 60, text: str | None = None):
        done = subprocess.run(["kubectl", "--kubeconfig", str(cluster.kubeconfig), *words], capture_output=True, text=True, timeout=seconds, check=False, input=text)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout if check else done

    return run
