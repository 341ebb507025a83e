"""The proof itself: a new lab passes it unchanged, and each kind of breakage fails it with the file and the cure."""

from __future__ import annotations

import os
import subprocess

import nbformat
import proof
import pytest
from nbformat.v4 import new_code_cell
from proof import ProofFailed

from orchlab.course import folder, lint, stored
from orchlab.paths import repository


# Made under another manager's name than %%apply's.
LEFT_BEHIND = """\
manifest = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "left-behind"}, "value": 7}
_ = lab.place.client.apply(manifest)"""


@pytest.fixture
def home(proved, tmp_path, monkeypatch):
    """A folder of labs of the test's own."""
    (tmp_path / "labs").mkdir()
    monkeypatch.setenv("ORCHLAB_LABS", str(tmp_path / "labs"))
    return tmp_path / "labs"


@pytest.fixture
def made(home):
    """What scripts/new-lab makes."""
    done = subprocess.run(
        [str(repository() / "scripts" / "new-lab"), "42", "some-lab"], capture_output=True, text=True, timeout=200, env=os.environ
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder.lab("42")


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def add_cell(lab, source, position=None):
    notebook = nbformat.read(lab.notebook, as_version=4)
    cell = new_code_cell(source, execution_count=9)
    notebook.cells.insert(len(notebook.cells) if position is None else position, cell)
    nbformat.write(notebook, lab.notebook)


@pytest.mark.timeout(600)
def test_a_new_lab_passes_the_whole_proof_unchanged(made, proved):
    assert lint.all_labs() == []
    proof.untouched(made, proved)
    proof.wrong_answers(made, proved)
    proof.solutions_pass(made, proved)
    proof.run_twice_and_reset(made, proved)


@pytest.mark.timeout(600)
def test_each_kind_of_breakage_is_named_with_file_and_cure(made, proved):
    """One environment and one lab for all of them; each breakage is undone before the next."""
    def breaks(function, words, cure, **arguments):
        with pytest.raises(ProofFailed) as caught:
            function(made, proved, **arguments)
        assert words in str(caught.value) and cure in str(caught.value), str(caught.value)

    checks, wrong, solution = (
        made.folder / "checks.py",
        made.folder / "wrong" / "one-gpu.two.yaml",
        made.folder / "solutions" / "one-gpu.yaml",
    )

    def restoring(*paths):
        return [(path, path.read_bytes()) for path in paths]

    sound = restoring(checks, wrong, solution, made.notebook)

    def mend():
        for path, content in sound:
            path.write_bytes(content)

    change(checks, 'return not_yet("There is no pod called mine.")', 'return passed("fine")')
    breaks(proof.untouched, "labs/42-some-lab/checks.py: one_gpu answers at the untouched start: ✔", "only the learner can have done")
    mend()

    change(checks, "pods.gpus(pod) != 1", "pods.gpus(pod) > 2")
    breaks(
        proof.wrong_answers,
        "labs/42-some-lab/wrong/one-gpu.two.yaml: should be refused (wrong) with 'asks for 2 GPUs', but the check answers: ✔",
        "mend one_gpu",
    )
    mend()

    change(wrong, "asks for 2 GPUs", "asks for 3 GPUs")
    breaks(proof.wrong_answers, "with 'asks for 3 GPUs', but the check answers: ✘", "first line of the wrong answer")
    mend()

    change(solution, "nvidia.com/gpu: 1", "nvidia.com/gpu: 17")
    breaks(proof.solutions_pass, "labs/42-some-lab/solutions/one-gpu.yaml: does not pass: ✘", "mend the solution")
    breaks(
        proof.solved_run,
        "labs/42-some-lab/solutions/one-gpu.yaml: did not pass the check in the notebook, with the solutions in place, which said: ✘",
        "mend the solution",
    )
    mend()

    cell = made.folder / "solutions" / "one-gpu.ipy"
    solution.rename(cell)
    cell.write_text("1 / 0\n")
    breaks(
        proof.solutions_pass,
        "labs/42-some-lab/solutions/one-gpu.ipy: cannot be run: one-gpu.ipy did not run: division by zero",
        "mend the cell",
    )
    cell.unlink()
    mend()

    add_cell(made, "import time\ntime.sleep(60)")
    breaks(
        proof.solved_run,
        "labs/42-some-lab.ipynb: with the solutions in place, cell 8: Exercise was not done within its time (5 s a cell",
        "mend that cell",
        cell_seconds=5,
    )
    breaks(proof.stored_outputs, "labs/42-some-lab.ipynb: gives other outputs", "execute-labs 42", cell_seconds=5)
    mend()

    add_cell(made, "raise ValueError('no such thing')")
    breaks(proof.solved_run, "cell 8: Exercise failed: ValueError: no such thing", "mend that cell")
    mend()

    add_cell(made, "print('new')")
    breaks(proof.stored_outputs, "labs/42-some-lab.ipynb: gives other outputs than those stored in it", "scripts/execute-labs 42")
    mend()

    add_cell(made, "assert 'created' in lab.kubectl('create', 'configmap', 'only-once')")
    proof.solved_run(made, proved)
    breaks(
        proof.solved_run,
        "labs/42-some-lab.ipynb: run a second time, with the solutions in place, cell 8: Exercise failed: AssertionError",
        "what the first run has left",
        afresh=False,
    )
    mend()

    add_cell(made, LEFT_BEHIND)
    breaks(proof.run_twice_and_reset, "after two runs of the notebook, reset leaves a difference:\n  PriorityClass", "with %%apply")
    proof.Place(proved, made.namespace).client.delete("/apis/scheduling.k8s.io/v1/priorityclasses/left-behind")


@pytest.mark.timeout(300)
def test_reset_removes_cluster_wide_objects_that_a_lab_applied(made, proved):
    add_cell(made, "%%apply\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: of-the-lab}\nvalue: 7")
    stored.renew(made)
    assert proof.Place(proved, made.namespace).get("priorityclass/of-the-lab") is not None
    proof.run_twice_and_reset(made, proved)
    assert proof.Place(proved, made.namespace).get("priorityclass/of-the-lab") is None
