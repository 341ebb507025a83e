import stat

import pytest
from course_support import change, sound_lab

from orchlab.course import commands, working


@pytest.fixture
def lab(tmp_path, home, monkeypatch):
    monkeypatch.setenv("ORCHLAB_LABS", str(tmp_path))
    lab = sound_lab(tmp_path)
    (lab.folder / "manifests").mkdir()
    (lab.folder / "manifests" / "pod.yaml").write_text("kind: Pod\n")
    return lab


def test_the_copy_has_what_a_notebook_refers_to_but_no_answers(lab):
    assert working.update() == []
    names = sorted(str(p.relative_to(working.folder())) for p in working.folder().rglob("*") if p.is_file())
    assert names == [".orchlab-origins.json", "42-some-lab.ipynb", "42-some-lab/manifests/pod.yaml"]
    assert stat.S_IMODE(working.folder().stat().st_mode) == 0o700


def test_an_untouched_copy_is_renewed_silently(lab):
    working.update()
    change(lab.folder / "manifests" / "pod.yaml", "Pod", "Job")
    assert working.update() == []
    assert (working.folder() / "42-some-lab/manifests/pod.yaml").read_text() == "kind: Job\n"


def test_an_edited_copy_is_kept_and_the_learner_told(lab):
    working.update()
    mine = working.folder() / "42-some-lab/manifests/pod.yaml"
    mine.write_text("kind: Pod # mine\n")
    assert working.update() == []
    change(lab.folder / "manifests" / "pod.yaml", "Pod", "Job")
    for _ in range(2):
        told = working.update()
        assert len(told) == 1 and "your edited copy is kept" in told[0] and "orchlab reset 42 --notebook" in told[0]
        assert mine.read_text() == "kind: Pod # mine\n"


def test_edits_that_became_the_original_need_no_word(lab):
    working.update()
    mine = working.folder() / "42-some-lab/manifests/pod.yaml"
    mine.write_text("kind: Job\n")
    change(lab.folder / "manifests" / "pod.yaml", "Pod", "Job")
    assert working.update() == []


def test_reset_of_the_notebook_keeps_the_old_one_with_its_date(lab):
    working.update()
    mine = working.folder() / "42-some-lab.ipynb"
    texts = []
    for number in range(2):
        mine.write_text(f"my notes {number}")
        texts.append(mine.read_text())
        assert "is new again" in str(commands.reset_lab("42", notebook=True))
        assert mine.read_bytes() == lab.notebook.read_bytes()
    backups = list(working.folder().glob("42-some-lab.*.ipynb"))
    assert sorted(p.read_text() for p in backups) == texts
    assert working.renew(lab) == []


def test_a_removed_list_of_origins_overwrites_nothing(lab):
    working.update()
    mine = working.folder() / "42-some-lab.ipynb"
    mine.write_text("my notes")
    (working.folder() / ".orchlab-origins.json").write_text("garbage")
    assert "your edited copy is kept" in working.update()[0]
    assert mine.read_text() == "my notes"
