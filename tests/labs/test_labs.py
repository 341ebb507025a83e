"""Every lab under labs/ is proved in the same way; a new lab needs no new test."""

import proof
import pytest

from orchlab.course import folder, lint

LABS = folder.labs()
each_lab = pytest.mark.parametrize("lab", LABS, ids=[lab.name for lab in LABS])


def test_there_are_labs():
    assert LABS


@each_lab
def test_nothing_is_wrong_with_its_files(lab):
    findings = lint.examine(lab)
    assert not findings, "\n".join(map(str, findings))


def test_no_two_labs_share_a_number():
    assert [finding for finding in lint.all_labs() if "has the number of" in finding.problem] == []


@each_lab
def test_no_check_passes_at_the_untouched_start(lab, proved):
    proof.untouched(lab, proved)


@each_lab
def test_each_wrong_answer_is_refused_for_its_own_reason(lab, proved):
    proof.wrong_answers(lab, proved)


@each_lab
def test_each_solution_passes(lab, proved):
    proof.solutions_pass(lab, proved)


@pytest.mark.timeout(900)
@each_lab
def test_the_notebook_gives_its_stored_outputs_runs_again_solved_and_reset_gives_the_start_back(lab, proved):
    proof.run_twice_and_reset(lab, proved)
