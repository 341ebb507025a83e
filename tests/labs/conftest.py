"""Labs are proved on one environment, `default`, since the stored outputs name it. Every lab's time is printed at the end."""

from __future__ import annotations

from collections import defaultdict

import pytest

from orchlab.course import folder, reset

_seconds: dict[str, float] = defaultdict(float)


@pytest.fixture
def proved(course, monkeypatch, tmp_path):
    """The environment's name; progress goes to a file of the test's own."""
    monkeypatch.setenv("ORCHLAB_PROGRESS", str(tmp_path / "progress.json"))
    return course


@pytest.fixture(scope="module", autouse=True)
def alone(request):
    """A widget is tried without what other labs' tests have left on the environment."""
    name = request.module.__name__
    if name.startswith("test_widget_"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ORCHLAB_HOME", str(request.getfixturevalue("_course_home")))
            reset.others(folder.lab(name[-2:]), "default")


def pytest_runtest_logreport(report):
    if "tests/labs/test_labs.py" in report.nodeid and "[" in report.nodeid:
        _seconds[report.nodeid.split("[")[1].rstrip("]")] += report.duration


def pytest_terminal_summary(terminalreporter):
    for name, seconds in sorted(_seconds.items()):
        terminalreporter.write_line(f"labs/{name}: {seconds:.0f} s")
