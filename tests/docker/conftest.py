"""A Slurm cluster in containers, on the Docker Engine of tests/docker_engine.py."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from docker_support import traces, until

from orchlab import environment
from orchlab.slurm.client import Client

# The client contract is kept with the local backend's tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))


@pytest.fixture(scope="package")
def cluster(engine, base):
    """The default fleet in containers, without Kubernetes; clock 60. Removed at the end, and that nothing is left is checked."""
    home = Path(tempfile.mkdtemp(prefix="ol", dir="/tmp"))
    images = {line for line in engine.run("image", "ls", "--quiet", "--no-trunc").stdout.split()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCHLAB_HOME", str(home))
        try:
            yield environment.up("slurm", kubernetes="none", slurm="docker")
        finally:
            environment.down("slurm", purge=True)
            left = traces(engine, "slurm")
            shutil.rmtree(home)
            for found in set(engine.run("image", "ls", "--quiet", "--no-trunc").stdout.split()) - images:
                engine.run("image", "rm", "--force", found, check=False)
    assert left == []


@pytest.fixture
def work(cluster, monkeypatch) -> Path:
    """A folder that the containers see too; at the end none of the test's jobs is left."""
    monkeypatch.setenv("ORCHLAB_HOME", str(cluster.folder.parent))
    folder = Path(tempfile.mkdtemp(prefix="work", dir=cluster.folder / "work"))
    yield folder
    with Client.of(cluster, "commands") as client:
        for job in client.queue():
            client.cancel(job.id)
        until(lambda: not [job for job in client.jobs() if not job.ended_for_good or job.state == "COMPLETING"], 60)
