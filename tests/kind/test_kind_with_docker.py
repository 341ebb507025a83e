"""Both container backends in one environment: within 4 GiB, and each with its labs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchlab import environment
from orchlab.course import folder

sys.path.insert(0, str(Path(__file__).parents[1] / "labs"))
import proof  # noqa: E402

pytestmark = pytest.mark.timeout(1200)
MOST = 4 * 2**30


@pytest.fixture
def both(cluster, base, monkeypatch, tmp_path):
    """The environment of the kind cluster, with a Slurm in containers beside it."""
    monkeypatch.setenv("ORCHLAB_PROGRESS", str(tmp_path / "progress.json"))
    yield environment.up(cluster.name, slurm="docker")
    environment.up(cluster.name, slurm="none")


def test_kind_and_slurm_in_containers_fit_in_four_gib_and_a_lab_of_each_passes(both):
    states = both.health()
    assert all(state.healthy for state in states), [state for state in states if not state.healthy]
    assert {"slurmctld", "kind"} <= {"slurmctld" if "ctld" in state.name else "kind" if "control-plane" in state.name else "" for state in states}
    assert 2**30 < sum(state.memory for state in states) < MOST
    for number in ("00", "13"):
        lab = folder.lab(number)
        proof.untouched(lab, both.name)
        proof.solutions_pass(lab, both.name)
