"""A real Slurm cluster for tests, brought up once for all modules that ask for it."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from orchlab import environment
from orchlab.slurm import notebook
from orchlab.slurm.client import Client
from orchlab.supervisor import leftovers

_shared: dict[str, environment.Environment] = {}


@pytest.fixture(scope="session")
def cluster():
    """The default fleet on the local backend, without Kubernetes; clock 60. Job output goes to `home`."""
    if "env" not in _shared:
        # Short: unix sockets.
        os.environ["ORCHLAB_HOME"] = tempfile.mkdtemp(prefix="ol", dir="/tmp")
        _shared["home"] = os.environ["ORCHLAB_HOME"]
        _shared["env"] = environment.up("slurm", kubernetes="none", slurm="local")
    env = _shared["env"]
    yield env
    if _shared.pop("env", None):
        os.environ["ORCHLAB_HOME"] = _shared["home"]
        environment.down("slurm", purge=True)
        assert leftovers(str(env.folder)) == []
        shutil.rmtree(_shared.pop("home"))


@pytest.fixture
def work(cluster, monkeypatch) -> Path:
    """A folder for a test's jobs; at the end none of its jobs is left."""
    monkeypatch.setenv("ORCHLAB_HOME", str(cluster.folder.parent))
    folder = Path(tempfile.mkdtemp(prefix="work", dir=cluster.folder))
    yield folder
    notebook.slurm(cluster, f"scancel -u {pwd.getpwuid(os.geteuid()).pw_name}")
    with Client.of(cluster, "commands") as client:
        until(lambda: not [job for job in client.jobs() if not job.ended_for_good or job.state == "COMPLETING"], 30)


def until(condition, seconds: float = 60):
    """The first true value of `condition`, asked twice a second."""
    deadline = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.5)
