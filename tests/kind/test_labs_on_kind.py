"""Labs on the `kind` backend: 01 and 05 by nbval, the others by their checks. One cluster, the one of the other tests here.

The stored outputs are those of `local`: only the cells tagged nbval-check-output are compared, the others have to run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchlab.course import folder

sys.path.insert(0, str(Path(__file__).parents[1] / "labs"))
import proof  # noqa: E402

pytestmark = pytest.mark.timeout(3000)
BY_NBVAL = ("01", "05")
LABS = [lab for lab in folder.labs() if "kind" in lab.file.backends.get("kubernetes", [])]


@pytest.fixture
def proved(cluster, monkeypatch, tmp_path) -> str:
    monkeypatch.setenv("ORCHLAB_PROGRESS", str(tmp_path / "progress.json"))
    return cluster.name


@pytest.mark.parametrize("lab", [lab for lab in LABS if lab.number not in BY_NBVAL], ids=lambda lab: lab.name)
def test_a_lab_by_its_checks(lab, proved):
    proof.untouched(lab, proved)
    proof.wrong_answers(lab, proved)
    proof.solutions_pass(lab, proved)


@pytest.mark.parametrize("lab", [lab for lab in LABS if lab.number in BY_NBVAL], ids=lambda lab: lab.name)
def test_a_lab_by_nbval(lab, proved):
    proof.stored_outputs(lab, proved, all_cells=False)
    proof.reset.cluster(lab, proved)
