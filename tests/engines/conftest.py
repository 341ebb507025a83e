"""A real control plane, shared by the tests of a session. Tests that break it make one of their own."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from simulator_support import namespace

from orchlab import environment as environments
from orchlab.supervisor import leftovers


@pytest.fixture(scope="session")
def environment():
    """An environment `tests` with the default fleet, up for the whole session."""
    folder = Path(tempfile.mkdtemp(prefix="ol", dir="/tmp"))
    before = os.environ.get("ORCHLAB_HOME")
    os.environ["ORCHLAB_HOME"] = str(folder)
    try:
        yield environments.up("tests", slurm="none")
    finally:
        os.environ["ORCHLAB_HOME"] = str(folder)
        environments.down("tests")
        assert leftovers(str(folder / "tests")) == []
        shutil.rmtree(folder, ignore_errors=True)
        if before is None:
            del os.environ["ORCHLAB_HOME"]
        else:
            os.environ["ORCHLAB_HOME"] = before


@pytest.fixture
def client(environment):
    """A client of that environment. Some files have one of their own, which lives longer or leaves less behind."""
    return environment.client()


@pytest.fixture
def where(client):
    """The name of a namespace of the test's own."""
    with namespace(client) as name:
        yield name


@pytest.fixture
def own(home):
    """Makes environments of the test's own, without Slurm unless it asks for one, and takes them all down at its end, checking that nothing is left."""
    made: list[str] = []

    def bring_up(name: str = "own", **settings):
        made.append(name)
        return environments.up(name, **({"slurm": "none"} | settings))

    yield bring_up
    for name in dict.fromkeys(made):
        environments.down(name)
        assert leftovers(str(home / name)) == []


SMALL = {"zones": {"zone-a": ["rack-a1"]},
         "pools": [{"name": "gpu", "count": 2, "gpus": {"model": "H100-80", "count": 8}, "cpu": 96, "memory": "1Ti"}]}


@pytest.fixture
def small_fleet() -> dict:
    """Two nodes with 8 H100 each, no taint."""
    return SMALL
