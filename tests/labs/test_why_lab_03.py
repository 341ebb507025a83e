"""`orchlab why` on every fault of lab 03, injected into the live cluster: the cause that it names is the one that the lab teaches."""

from __future__ import annotations

import tomllib

import pytest

from orchlab.course import folder, reset
from orchlab.course.lab import Lab
from orchlab.kube import why

LAB = folder.lab("03")
FAULTS = {one["id"]: one for one in tomllib.loads((LAB.folder / "faults.toml").read_text(encoding="utf-8"))["faults"]}
# What the answer has to say, by the lab's word for the cause.
SAYS = {
    "refused": ("must be equal to", "must be an integer"),
    "insufficient": ("more than any node",),
    "taint": ("does not tolerate the taint team=vision",),
    "selector": ("No node matches its node selector",),
    "resource-name": ("No node advertises nvidia.com/mig-1g.10gb",),
    "plugin": ("The device plugin is not ready",),
    "quota": ("It would exceed ResourceQuota team",),
    "init-container": ("its init container warm-up asks",),
    "cordoned": ("cordoned",),
    "cpu": ("ds/collector -n lab-03 holds 12 cpu",),
    "idle-holder": ("deploy/sandbox -n lab-03 holds 16 nvidia.com/gpu",),
    "shared": ("it shares GPU",),
}


@pytest.fixture(scope="module")
def desk(_course_home):
    """The lab, and what injects its faults; afterwards everything is as at the start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCHLAB_HOME", str(_course_home))
        reset.cluster(LAB, "default")
        lab = Lab("03", "default", quiet=True)
        yield lab, lab.load("desk")
        reset.cluster(LAB, "default")


@pytest.mark.parametrize("ticket", FAULTS)
def test_why_names_the_cause_that_the_lab_teaches(desk, course, ticket):
    lab, tickets = desk
    wanted = FAULTS[ticket]
    tickets.open_ticket(lab, ticket)
    if wanted.get("refused"):
        path = lab.path(wanted["target"])
        answers = why.refused(lab.client, path.read_text(encoding="utf-8"), wanted["target"], lab.namespace)
    else:
        kind, _, name = wanted["target"].partition("/")
        answers = why.ask(lab.client, kind, name, lab.namespace)
    said = "\n".join(f"{answer.cause}\n" + "\n".join(answer.evidence) for _, answer in answers)
    assert all(answer.known for _, answer in answers), said
    assert any(words in said for words in SAYS[wanted["cause"]]), said
