"""Every kind of broken lab is found, by file, with a cure."""

import nbformat
import pytest
from course_support import change, sound_lab
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from orchlab.course import lint


def on_cells(act):
    def apply(lab):
        notebook = nbformat.read(lab.notebook, as_version=4)
        act(notebook.cells)
        nbformat.write(notebook, lab.notebook)
    return apply


def on_file(name, old, new):
    return lambda lab: change(lab.folder / name, old, new)


def write(name, text):
    def apply(lab):
        (lab.folder / name).parent.mkdir(exist_ok=True)
        (lab.folder / name).write_text(text)
    return apply


def say(text):
    return on_cells(lambda cells: cells.append(new_markdown_cell(text)))


def exercise(cells):
    return next(cell for cell in cells if "exercise" in cell.metadata.get("tags", []))


def retag(*tags):
    return on_cells(lambda cells: exercise(cells).metadata.update(tags=list(tags)))


def ran(source, **output):
    return on_cells(lambda cells: cells.append(new_code_cell(source, execution_count=9, outputs=[new_output(**output)] if output else [])))


def in_cells(old, new):
    def act(cells):
        assert any(old in cell.source for cell in cells)
        for cell in cells:
            cell.source = cell.source.replace(old, new)
    return on_cells(act)


def remove(name):
    return lambda lab: (lab.folder / name).unlink()


BROKEN = {
    "notebook missing": (lambda lab: lab.notebook.unlink(), "labs/42-some-lab.ipynb: is missing", "scripts/new-lab"),
    "folder missing": (lambda lab: lab.folder.rename(lab.home / "elsewhere"), "labs/42-some-lab/: is missing", "scripts/new-lab"),
    "lab.toml missing": (remove("lab.toml"), "labs/42-some-lab/lab.toml: ", "scripts/new-lab"),
    "lab.toml wrong": (on_file("lab.toml", "minutes = 15", "minutes = 9999"), "minutes: 9999", "folder.py"),
    "notebook not JSON": (lambda lab: lab.notebook.write_text("{"), "labs/42-some-lab.ipynb: is not a valid notebook", "JupyterLab"),
    "no checks.py": (remove("checks.py"), "labs/42-some-lab/checks.py: ", "restore"),
    "checks.py does not load": (write("checks.py", "import nothing_here"), "labs/42-some-lab/checks.py: ", "mend"),
    "check missing": (
        on_file("checks.py", "def one_gpu", "def two_gpus"),
        "checks.py: has no check for the exercise 'one-gpu'",
        "def one_gpu(lab)",
    ),
    "one hint": (
        on_file("lab.toml", '  "The GPU nodes carry a taint; the pod needs a toleration for the key nvidia.com/gpu.",\n', ""),
        "hints",
        "folder.py",
    ),
    "start missing": (
        on_file("lab.toml", "hints = [", 'start = "manifests/given.yaml"\nhints = ['),
        "lab.toml: exercise 'one-gpu' starts from",
        "add labs/42",
    ),
    "no solution": (remove("solutions/one-gpu.yaml"), "labs/42-some-lab/solutions/: ", "one-gpu.yaml"),
    "no wrong answer": (remove("wrong/one-gpu.two.yaml"), "labs/42-some-lab/wrong/: has no wrong answer", "one-gpu.WHAT.yaml"),
    "wrong answer says no reason": (
        on_file("wrong/one-gpu.two.yaml", "# refused (wrong)", "# no"),
        "wrong/one-gpu.two.yaml: its first line",
        "# refused (wrong)",
    ),
    "stray solution": (write("solutions/two-gpus.yaml", "a: 1"), "solutions/two-gpus.yaml: belongs to no exercise", "EXERCISE.yaml"),
    "stray wrong answer": (write("wrong/one-gpu.txt", "a"), "wrong/one-gpu.txt: belongs to no exercise", "EXERCISE"),
    "bad fleet": (write("fleet.yaml", "pools: []"), "labs/42-some-lab/fleet.yaml: ", "cure"),
    "bad manifest": (write("manifests/pod.yaml", "a: ["), "labs/42-some-lab/manifests/pod.yaml: is not YAML", "mend"),
    "takes the default environment": (
        on_file("lab.toml", "minutes", 'environments = ["default"]\nminutes'),
        "lab.toml: environments: 'default'",
        "lab42",
    ),
    "title differs": (on_file("lab.toml", 'title = "Some lab"', 'title = "Other"'), ".ipynb: its first cell", "# 42 · Other"),
    "no goal": (in_cells("**Goal.**", "Goal:"), ".ipynb: the first cell names no goal", "**Goal.**"),
    "time differs": (
        on_file("lab.toml", "minutes = 15", "minutes = 20"),
        ".ipynb: the first cell does not give the time",
        "About 20 minutes",
    ),
    "nothing to predict": (in_cells("**Predict.**", "Note:"), ".ipynb: asks the learner to predict nothing", "**Predict.**"),
    "opens another lab": (in_cells('Lab("42")', 'Lab("41")'), ".ipynb: does not open the lab", 'Lab("42")'),
    "exercise not tagged": (retag(), "has 0 cells for the exercise 'one-gpu'", 'tag one code cell "exercise" and "exercise:one-gpu"'),
    "exercise half tagged": (retag("exercise:one-gpu"), "is tagged ['exercise:one-gpu']", "two tags"),
    "tag unknown": (retag("exercise", "exercise:three"), "tagged as exercise 'three'", "lab.toml"),
    "never checked": (in_cells('lab.check("one-gpu")', "lab.progress()"), "never checks the exercise 'one-gpu'", 'lab.check("one-gpu")'),
    "solution given away": (
        on_cells(lambda cells: exercise(cells).update(source="%%apply\n" + open_solution())),
        "holds its solution",
        "leave the learner",
    ),
    "never run": (on_cells(lambda cells: exercise(cells).update(execution_count=None)), "was never run", "scripts/execute-labs 42"),
    "stored error": (
        ran("1/0", output_type="error", ename="ZeroDivisionError", evalue="division by zero", traceback=[]),
        "ends in ZeroDivisionError",
        "mend the cell",
    ),
    "machine path in output": (
        ran("x", output_type="stream", name="stdout", text="see /home/somebody/state/x"),
        "names a path of the machine",
        "do not print it",
    ),
    "dead link": (say("see [the notes](42-some-lab/notes.md#top)"), "link 42-some-lab/notes.md#top leads nowhere", "labs/"),
    "dead HTML link": (say('<a href="nowhere.html">x</a>'), "link nowhere.html leads nowhere", "labs/"),
    "missing image": (say("![a map](42-some-lab/map.png)"), "image 42-some-lab/map.png leads nowhere", "add the file"),
    "image without text": (
        lambda lab: (write("map.png", "")(lab), say("![](42-some-lab/map.png)")(lab)),
        "has no text for those",
        "describe it",
    ),
    "no widget.py": (ran('lab.widget("map")'), "labs/42-some-lab/widget.py: ", "restore"),
    "widget function missing": (
        lambda lab: (write("widget.py", "x = 1\n")(lab), ran('lab.widget("map")')(lab)),
        "has no function 'map'",
        "def map(lab)",
    ),
    "exclamation": (say("Well done!"), "has an exclamation mark", "plainly"),
    "other kernel": (
        lambda lab: change(lab.notebook, '"name": "python3"', '"name": "mykernel"'),
        "another kernel than python3",
        "execute-labs",
    ),
}


def open_solution():
    from orchlab.course import newlab

    return newlab.SOLUTION.format(gpus=1)


def test_a_sound_lab_has_no_findings(tmp_path):
    sound_lab(tmp_path)
    assert lint.all_labs(tmp_path) == []


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_lab_is_found_by_file_and_with_a_cure(tmp_path, what):
    breakage, problem, cure = BROKEN[what]
    breakage(sound_lab(tmp_path))
    findings = [str(finding) for finding in lint.all_labs(tmp_path)]
    hits = [text for text in findings if problem in text]
    assert hits, findings
    assert all(text.startswith("labs/42-some-lab") and "\n    cure: " in text for text in findings)
    assert any(cure in text for text in hits), hits


def test_two_labs_with_one_number(tmp_path):
    sound_lab(tmp_path)
    sound_lab(tmp_path / "more", slug="twin").notebook.rename(tmp_path / "42-twin.ipynb")
    (tmp_path / "more" / "42-twin").rename(tmp_path / "42-twin")
    assert ["labs/42-twin: has the number of labs/42-some-lab"] == [str(f).splitlines()[0] for f in lint.all_labs(tmp_path)]


def test_code_may_hold_what_text_may_not(tmp_path):
    say("`a != b`, `![x](y)`, and ```\nrm -rf! \n```")(sound_lab(tmp_path))
    assert lint.all_labs(tmp_path) == []
