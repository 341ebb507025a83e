"""What may run beside what. Tests mostly wait for real schedulers, so several processes run them (pytest-xdist); tests that share something slow to
make, or that would get in each other's way, form a group and stay in one process: the containers on one Docker Engine, a lab, else a file."""

from __future__ import annotations

import re

import pytest

LAB = re.compile(r"tests/(?:labs|browser)/.*(?:\[|_widget_|_why_lab_)(\d\d)[-.]")
# The longest first, so that no process is left alone with one at the end.
ORDER = ("containers", "lab", "tests/browser", "tests/engines", "tests/labs", "tests/unit")


def group(nodeid: str) -> str:
    """The group of a test: `containers`, `lab NN` or its file."""
    file = nodeid.split("::", maxsplit=1)[0]
    if file.startswith(("tests/docker/", "tests/kind/")):
        return "containers"
    if found := LAB.match(nodeid):
        return f"lab {found[1]}"
    return file


def place(nodeid: str) -> tuple[int, str]:
    """Where its group comes; tests of one group keep the order in which pytest found them."""
    found = group(nodeid)
    return next((rank for rank, start in enumerate(ORDER) if found.startswith(start)), len(ORDER)), found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)
