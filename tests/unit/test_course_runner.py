import nbformat
import pytest
from course_support import sound_lab

from orchlab import runner
from orchlab.course import solutions
from orchlab.errors import BadInput
from orchlab.runner import Cell, Report


def test_exercise_cells_hold_their_solutions_in_the_copy_and_only_there(tmp_path):
    lab = sound_lab(tmp_path)
    before = lab.notebook.read_bytes()
    (target := tmp_path / "copy").mkdir()
    copy = runner.solved_copy(lab, target)
    cells = nbformat.read(copy, as_version=4).cells
    solved = [cell.source for cell in cells if runner.exercise_of(cell)]
    assert solved == [solutions.cell(lab.solution("one-gpu"))]
    assert solved[0].startswith("%%apply\napiVersion: v1\n")
    assert lab.notebook.read_bytes() == before
    assert (target / lab.name / "checks.py").exists()


def test_the_short_form_attaches_and_does_the_named_exercises_only():
    def exercise(name):
        return nbformat.v4.new_code_cell(f"# {name}", metadata={"tags": ["exercise", f"exercise:{name}"]})

    text, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    cells = [text("# Lab"), text("## 1. Attach"), code("attach"), text("## 2. See\n### Part"), code("see"),
             text("## Exercise: a"), exercise("a"), code("check a"), text("## Exercise: b"), exercise("b"), text("## End"), code("end")]
    assert [cell.source for cell in runner.short_form(cells, ["b"])] == ["# Lab", "## 1. Attach", "attach", "## Exercise: b", "# b"]
    assert [cell.source for cell in runner.short_form(cells, ["b", "a"]) if cell.cell_type == "code"] == ["attach", "# a", "check a", "# b"]


def test_a_short_form_of_an_unknown_exercise_is_refused_before_anything_runs(home):
    with pytest.raises(BadInput, match="exercise: 'nothing-like-it': is not in lab 13"):
        runner.run("13", only=["sweep", "nothing-like-it"])
    assert not (home / "default").exists()


def test_a_wrong_answer_s_first_line_is_for_the_proof_not_for_the_cell(tmp_path):
    lab = sound_lab(tmp_path)
    path = lab.wrong("one-gpu")[0]
    assert solutions.refusal(path) == ("wrong", "asks for 2 GPUs")
    assert solutions.cell(path).startswith("%%apply\napiVersion")
    cell = lab.folder / "wrong" / "one-gpu.cell.ipy"
    cell.write_text("# refused (not yet): no pod\n%%kubectl create -f -\nkind: Pod\n")
    assert solutions.cell(cell) == "%%kubectl create -f -\nkind: Pod"


def test_a_cell_is_named_by_the_heading_above_it():
    cells = [
        nbformat.v4.new_code_cell("1"),
        nbformat.v4.new_markdown_cell("# Lab\ntext\n## Part `a`\nmore # not a heading"),
        nbformat.v4.new_code_cell("2"),
    ]
    assert runner.cell_titles(cells) == ["(top)", "Part `a`", "Part `a`"]


def test_a_report_passes_only_if_every_check_did_and_no_cell_failed():
    good = Report("01", "T", "x.ipynb", {"a": True}, [Cell(3, "Part", 1.5)], 12)
    assert good.ok and good.text().splitlines()[0] == "Lab 01, T: passed in 12 s, 1 of 1 checks passed"
    assert "    1.5 s  cell 3: Part" in good.text()
    assert not Report("01", "T", "x", {"a": True, "b": False}).ok
    bad = Report("01", "T", "x", {"a": True}, error="cell 3: Part failed: ValueError: no")
    assert not bad.ok and "FAILED" in bad.text() and bad.error in bad.text()


def test_only_the_last_runs_of_a_lab_are_kept(tmp_path, home):
    lab, other = sound_lab(tmp_path), sound_lab(tmp_path, "43", "other")
    kept = runner._report_folder(other)
    made = [runner._report_folder(lab) for _ in range(runner.REPORTS_KEPT + 3)]
    assert [path.exists() for path in made] == [False] * 3 + [True] * runner.REPORTS_KEPT
    assert kept.exists()
