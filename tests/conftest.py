"""Fixtures for all tests. Every test has its own state folder; engines come from the usual cache."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from docker_engine import base, engine  # noqa: F401 - fixtures
from sharing import pytest_collection_modifyitems, pytest_xdist_make_scheduler  # noqa: F401 - hooks

from orchlab.paths import cache_home


@pytest.fixture
def home(monkeypatch) -> Path:
    """An ORCHLAB_HOME of its own, short enough for unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="ol", dir="/tmp"))
    monkeypatch.setenv("ORCHLAB_CACHE", str(cache_home()))  # stays when a test changes HOME
    monkeypatch.setenv("ORCHLAB_HOME", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _course_home():
    """The state folder of the environment on which labs and browser tests run, brought up once."""
    from orchlab import environment
    from orchlab.supervisor import leftovers

    folder = Path(tempfile.mkdtemp(prefix="ol", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCHLAB_HOME", str(folder))
        # Kubernetes comes up even where Slurm cannot be had; then each Slurm lab fails with the reason.
        environment.up("default")
    yield folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCHLAB_HOME", str(folder))
        for name in environment.names():
            environment.down(name)
            assert leftovers(str(folder / name)) == []
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def course(_course_home, monkeypatch) -> str:
    """The name of that environment, for one test."""
    monkeypatch.setenv("ORCHLAB_HOME", str(_course_home))
    return "default"
