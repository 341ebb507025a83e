"""What lab 03's board shows and its buttons do, and that every fault of faults.toml is what the file says, against the live cluster."""

import time

import pytest

from orchlab.course import Lab, folder, reset
from orchlab.errors import BadInput, TimeLimitReached

LAB = folder.lab("03")
DESK = LAB.module("desk")


@pytest.fixture
def board(proved):
    reset.cluster(LAB, proved)
    made = Lab("03", proved, quiet=True).widget("tickets")
    yield made
    made.close()


def until(look, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def panel(board) -> str:
    return board.view._parts[0].panel.html


def test_buttons_open_a_ticket_and_judge_a_cause_and_picture_and_text_follow(board):
    assert board.text.splitlines()[1].split() == ["burst", "new", "-", "-", "-", "-"]
    board.ticket.value = "scan"
    board.opener.click()
    assert board.settled().startswith("ticket scan: scan waits."), board.said
    assert board.lab.get("node/t4-0")["spec"]["unschedulable"] is True
    until(lambda: "! open" in panel(board) and "<b>scan</b> scan waits." in panel(board))
    assert "cordon" not in panel(board), "the board shows the symptom only"

    board.cause.value = "taint"
    board.judge.click()
    assert board.settled().startswith("scan: not taint. The scheduler would count nodes")
    board.cause.value = "cordoned"
    board.judge.click()
    assert "scan: cordoned, that is it. Diagnosed after" in board.settled() and board.said.endswith("wrong words: 1")
    until(lambda: "? diagnosed" in panel(board))
    with pytest.raises(TimeLimitReached, match="scan was not mended within .* were unschedulable"):
        board.mended(0.3)

    board.lab.kubectl("uncordon", "t4-0")
    assert "scan: mended after" in board.mended()
    until(lambda: "✔ mended" in panel(board))
    assert any(line.split()[:2] == ["scan", "mended"] for line in board.text.splitlines())
    with pytest.raises(BadInput, match="is not a cause that the board knows"):
        board.diagnose("gremlins")
    with pytest.raises(BadInput, match="is not on the board"):
        board.open("gremlins")


def test_a_new_board_finds_the_tickets_and_the_next_ticket_takes_back_the_fault_of_the_one_before(board):
    board.open("detector")
    again = Lab("03", board.lab.env.name, quiet=True).widget("tickets")
    try:
        assert "open is detector" in again.text
        again.open("llm")
        assert not any(taint["key"] == "team" for taint in again.lab.get("node/t4-0")["spec"]["taints"])
        assert again.lab.get("deployment/detector") is None and again.lab.get("pod/llm")
        assert any(line.split()[:2] == ["detector", "closed"] for line in again.text.splitlines())
        assert again.lab.check("detector").message == "The ticket detector is not open."
    finally:
        again.close()


def test_every_fault_causes_its_symptom_and_none_is_mended_by_itself(board):
    lab, causes = board.lab, DESK.causes(board.lab)
    faults = DESK.faults(lab)
    assert {found.cause for found in faults.values()} == causes.keys()
    for found in faults.values():
        DESK.open_ticket(lab, found.id)
        if not found.refused:
            kind, name = found.target.split("/")
            assert lab.get(found.target) and name == found.id and kind in ("pod", "deployment")
            assert found.words in DESK.words(lab, found.id)
        assert DESK.look(lab).mended is None and not DESK.touched(lab), found.id
    DESK.clear(lab)
    assert lab.pods() == [] and lab.get("node/t4-0")["status"]["allocatable"]["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize(("ticket", "words", "arguments"), [
    ("detector", "a machine of others", ["patch", "deployment", "detector", "--type", "merge", "-p",
                                         '{"spec": {"template": {"spec": {"nodeSelector": {"orchlab/pool": "a100"}}}}}']),
    ("ocr", "t4-0 is to stay shared", ["label", "node", "t4-0", "nvidia.com/device-plugin.config-"]),
    ("train", "replicas of serve run", ["scale", "deployment", "serve", "--replicas", "0"]),
    ("infer", "Four replicas are wanted", ["scale", "deployment", "infer", "--replicas", "2"]),
    ("render", "It belongs on every GPU node", ["patch", "daemonset", "collector", "--type", "merge", "-p",
                                                '{"spec": {"template": {"spec": {"nodeSelector": {"orchlab/pool": "h100"}}}}}']),
])
def test_what_helps_one_at_the_cost_of_others_is_refused(board, ticket, words, arguments):
    board.open(ticket)
    board.lab.kubectl(*arguments)
    until(lambda: words in board.lab.check(ticket).message)
    assert board.lab.check(ticket).status == "wrong"
