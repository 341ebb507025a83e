import json
import multiprocessing
import os
import stat

import pytest
from course_support import sound_lab

from orchlab.course import progress
from orchlab.course.answers import not_yet, passed
from orchlab.course.lab import next_hint
from orchlab.errors import BadInput, OrchlabError


@pytest.fixture
def lab(tmp_path, home):
    return sound_lab(tmp_path)


def test_progress_counts_attempts_and_keeps_the_first_success(lab, home):
    progress.note(lab, "one-gpu", answer=not_yet("nothing there"))
    assert progress.of(lab, "one-gpu") == {"passed": "", "attempts": 1, "hints": 0, "solved": False}
    first = progress.note(lab, "one-gpu", answer=passed("runs"))["passed"]
    assert first
    progress.note(lab, "one-gpu", answer=not_yet("gone again"))
    assert progress.of(lab, "one-gpu")["passed"] == first and progress.of(lab, "one-gpu")["attempts"] == 3
    file = home / "progress.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_hints_climb_one_by_one_and_the_last_stays(lab):
    assert str(next_hint(lab, "one-gpu")).startswith("Hint 1 of 2: An extended resource")
    last = str(next_hint(lab, "one-gpu"))
    assert last.startswith("Hint 2 of 2: The GPU nodes carry a taint") and 'lab.solve("one-gpu")' in last
    assert str(next_hint(lab, "one-gpu")) == last
    assert progress.of(lab, "one-gpu")["hints"] == 2
    with pytest.raises(BadInput, match="exercise: 'two': is not in lab 42"):
        next_hint(lab, "two")


def test_a_damaged_file_is_set_aside_not_lost(lab, home):
    file = home / "progress.json"
    file.write_text('{"schema": 1, "labs": ')
    assert progress.of(lab, "one-gpu")["attempts"] == 0
    progress.note(lab, "one-gpu", answer=passed("runs"))
    aside = [path for path in home.iterdir() if "damaged" in path.name]
    assert [path.read_text() for path in aside] == ['{"schema": 1, "labs": ']
    assert json.loads(file.read_text())["labs"]["42"]["one-gpu"]["passed"]


def test_a_newer_file_is_not_touched(lab, home):
    (home / "progress.json").write_text('{"schema": 99, "labs": {}}')
    with pytest.raises(OrchlabError, match="newer orchlab"):
        progress.note(lab, "one-gpu", hints=1)
    assert json.loads((home / "progress.json").read_text())["schema"] == 99


def _pass(arguments):
    lab, name = arguments
    progress.note(lab, name, answer=passed("runs"))


def test_notebooks_that_pass_at_the_same_moment_lose_nothing(lab, home):
    assert os.environ["ORCHLAB_HOME"] == str(home)
    names = [f"exercise-{number}" for number in range(24)]
    with multiprocessing.get_context("fork").Pool(8) as pool:
        pool.map(_pass, [(lab, name) for name in names], chunksize=1)
    assert sorted(progress.load()["42"]) == sorted(names)


def test_the_table_says_it_in_words(lab):
    progress.note(lab, "one-gpu", answer=not_yet("nothing there"), hints=1)
    text = str(progress.table([lab], detailed=True))
    assert "42  Some lab" in text and "0 of 1 exercises passed" in text and "1 checks, 1 hints" in text
    progress.note(lab, "one-gpu", answer=passed("runs"), solved=True)
    assert "✔ one-gpu" in str(progress.table([lab], detailed=True)) and "solution shown" in str(progress.table([lab], detailed=True))


def test_in_a_browser_it_is_a_table_with_a_bar_and_the_same_words(lab, tmp_path):
    progress.note(lab, "one-gpu", answer=passed("runs"))
    shown = progress.table([lab])._repr_html_()
    assert "<progress max='1' value='1' aria-label='lab 42: 1 of 1'>" in shown and "<td>1 of 1</td>" in shown and "Some lab" in shown
    assert "<pre>    ✔ one-gpu" in progress.table([lab], detailed=True)._repr_html_()


def test_a_lab_that_cannot_be_read_is_listed_with_the_reason(lab, tmp_path):
    broken = sound_lab(tmp_path, "43", "broken")
    (broken.folder / "lab.toml").unlink()
    listed = progress.table([lab, type(lab)(tmp_path, "43-broken")]).splitlines()
    assert listed[0].startswith("42  Some lab") and listed[1].startswith("43  43-broken: labs/43-broken/lab.toml")
