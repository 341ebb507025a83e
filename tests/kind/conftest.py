"""A kind cluster with the default fleet, for the tests of this folder only: nothing of it runs beside other tests."""

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

# What kubelets set for the whole machine, and nobody puts back.
SYSCTLS = ("vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops", "kernel.keys.root_maxkeys", "kernel.keys.root_maxbytes")


@pytest.fixture(scope="package")
def sysctls() -> Iterator[None]:
    """Puts the machine's settings back at the end."""
    paths = [Path("/proc/sys") / name.replace(".", "/") for name in SYSCTLS]
    before = {path: path.read_text() for path in paths if path.exists()}
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
