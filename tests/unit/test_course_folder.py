import pytest
from course_support import change, sound_lab

from orchlab.course import folder
from orchlab.errors import BadInput, OrchlabError


def test_labs_are_found_by_number_and_name_in_order(tmp_path):
    sound_lab(tmp_path, "07", "late")
    early = sound_lab(tmp_path, "02", "early-one")
    (tmp_path / "notes").mkdir()
    (tmp_path / "scratch.ipynb").write_text("{}")
    assert [lab.name for lab in folder.labs(tmp_path)] == ["02-early-one", "07-late"]
    for wanted in ("02", "2", 2, "02-early-one", " 02 "):
        assert folder.lab(wanted, tmp_path) == early
    assert early.namespace == "lab-02"


def test_an_unknown_lab_is_refused_with_those_that_there_are(tmp_path):
    sound_lab(tmp_path, "07", "late")
    with pytest.raises(BadInput, match=r"lab: '8': there is no such lab\n→ one of: 07-late"):
        folder.lab("8", tmp_path)


def test_labs_come_from_the_repository_unless_told_otherwise(tmp_path, monkeypatch):
    monkeypatch.setenv("ORCHLAB_LABS", str(tmp_path))
    assert folder.labs_home() == tmp_path
    monkeypatch.delenv("ORCHLAB_LABS")
    assert folder.labs_home().name == "labs"


@pytest.mark.parametrize(("old", "new", "words"), [
    ("minutes = 15", "minutes = 0", "minutes: 0: "),
    ("minutes = 15", "", "minutes: 'missing'"),
    ('kubernetes = ["local"]', 'kubernetes = ["docker"]', "'docker' is none of local, kind, existing"),
    ('kubernetes = ["local"]', 'nomad = ["local"]', "backends.nomad: use one of kubernetes, slurm"),
    ('name = "one-gpu"', 'name = "One_GPU"', "exercises.0.name: 'One_GPU'"),
    ('title = "A pod', 'after = ["later"]\ntitle = "A pod', "comes after 'later', which is not an exercise above it"),
    ("minutes = 15", "minutes = 15\ncolour = 3", "colour: 3"),
    ("[[exercises]]", "[[exercises", "unreadable"),
])
def test_a_bad_lab_toml_is_refused_by_field_and_value(tmp_path, old, new, words):
    lab = sound_lab(tmp_path)
    change(lab.folder / "lab.toml", old, new)
    with pytest.raises(BadInput) as caught:
        folder.lab("42", tmp_path).file
    assert words in str(caught.value) and "labs/42-some-lab/lab.toml" in str(caught.value)


def test_modules_of_two_labs_do_not_mix_and_leave_no_bytecode(tmp_path):
    one, two = sound_lab(tmp_path, "01", "one"), sound_lab(tmp_path, "02", "two")
    (two.folder / "checks.py").write_text("def one_gpu(lab): return 2\n")
    assert one.module("checks").one_gpu is not two.module("checks").one_gpu
    assert two.module("checks").one_gpu(None) == 2
    change(two.folder / "checks.py", "2", "3")
    assert two.module("checks").one_gpu(None) == 3
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_module_that_does_not_load_is_named(tmp_path):
    lab = sound_lab(tmp_path)
    (lab.folder / "checks.py").write_text("import nothing_of_the_kind\n")
    with pytest.raises(OrchlabError, match="labs/42-some-lab/checks.py does not load: ModuleNotFoundError"):
        lab.module("checks")
    with pytest.raises(OrchlabError, match="labs/42-some-lab/widget.py is missing"):
        lab.module("widget")


def test_a_solution_is_one_file(tmp_path):
    lab = sound_lab(tmp_path)
    assert lab.solution("one-gpu").name == "one-gpu.yaml"
    (lab.folder / "solutions" / "one-gpu.ipy").write_text("%kubectl version\n")
    with pytest.raises(OrchlabError, match="has 2 solutions of 'one-gpu'"):
        lab.solution("one-gpu")


def test_a_lab_has_its_own_namespaces(tmp_path):
    lab = sound_lab(tmp_path)
    change(lab.folder / "lab.toml", "minutes = 15", 'minutes = 15\nnamespaces = ["vision", "speech"]')
    assert folder.lab("42", tmp_path).namespaces == ["lab-42", "lab-42-vision", "lab-42-speech"]
    for bad in ('"Vision"', '"a", "a"', '"-a"', '"a/b"'):
        change(lab.folder / "lab.toml", 'namespaces = ["vision", "speech"]', f"namespaces = [{bad}]")
        with pytest.raises(BadInput, match="namespaces: "):
            folder.lab("42", tmp_path).file
        change(lab.folder / "lab.toml", f"namespaces = [{bad}]", 'namespaces = ["vision", "speech"]')
