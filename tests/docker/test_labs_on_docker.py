"""Labs 12 and 13 on the `docker` backend: lab 13 by nbval, lab 12 by its checks. One cluster, the one of the other tests here.

The stored outputs are those of `local`: only the cells tagged nbval-check-output are compared, the others have to run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchlab.course import folder

sys.path.insert(0, str(Path(__file__).parents[1] / "labs"))
import proof  # noqa: E402

# The first test waits for the engine's installation, the base and the image as well, where it runs alone.
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def proved(cluster, monkeypatch, tmp_path) -> str:
    monkeypatch.setenv("ORCHLAB_HOME", str(cluster.folder.parent))
    monkeypatch.setenv("ORCHLAB_PROGRESS", str(tmp_path / "progress.json"))
    return cluster.name


@pytest.mark.parametrize("function", [proof.untouched, proof.wrong_answers, proof.solutions_pass], ids=lambda function: function.__name__)
def test_lab_12_by_its_checks(proved, function):
    function(folder.lab("12"), proved)


def test_lab_13_by_nbval(proved):
    lab = folder.lab("13")
    proof.stored_outputs(lab, proved, all_cells=False)
    proof.reset.cluster(lab, proved)
