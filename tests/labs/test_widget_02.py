"""What lab 02's board shows and its switches do, against the live cluster."""

import time

import pytest

from orchlab.course import Lab, folder, reset
from orchlab.errors import BadInput, TimeLimitReached


@pytest.fixture
def board(proved):
    reset.cluster(folder.lab("02"), proved)
    made = Lab("02", proved, quiet=True).widget("operands")
    yield made
    made.close()


def until(look, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def test_a_switch_changes_the_live_policy_and_text_picture_and_switch_follow_it(board):
    assert board.settled().splitlines()[0] == "ClusterPolicy ready; 42 GPUs allocatable; 48 operand pods, 48 of them ready"
    until(lambda: "✔ Ready" in board.view._parts[0].panel.html and not board.switches["devicePlugin"].disabled)
    assert board.row("t4-0").splitlines()[0] == "t4-0: 2 of 2 allocatable" and "MIG manager" not in board.row("t4-0")

    board.switches["devicePlugin"].value = False
    board.wait("t4-0", "nvidia.com/gpu", "0 of 2")
    assert board.lab.get("clusterpolicy/cluster-policy")["spec"]["devicePlugin"]["enabled"] is False
    answer = board.lab.check("one-pool")
    assert answer.status == "wrong" and "ClusterPolicy has the device plugin switched off" in answer.message
    until(lambda: "0 GPUs allocatable" in board.status.text and "0 GPUs allocatable" in board.view.text)

    board.lab.client.patch("/apis/nvidia.com/v1/clusterpolicies/cluster-policy", {"spec": {"devicePlugin": {"enabled": True}}})
    until(lambda: board.switches["devicePlugin"].value)
    assert "42 GPUs allocatable" in board.settled()
    assert [line.split()[0] for line in str(board.numbers("t4-0")).splitlines()][::2] == ["2", "2"], "asked for the first time: all changes"
    with pytest.raises(BadInput, match="is not in the table"):
        board.wait("t4-0", "kubelet", "Ready")


def test_a_broken_driver_shows_in_its_own_cell_and_the_others_wait(board):
    board.settled()
    with pytest.raises(TimeLimitReached, match="driver on a100-0 is Ready"):
        board.wait("a100-0", "driver", "CrashLoopBackOff", seconds=0.2)
    board.lab.fault("driver-broken", "a100-0")
    row = str(board.wait("a100-0", "driver", "CrashLoopBackOff"))
    assert "validator      Init:0/4, in driver-validation" in row and "plugin         Init:0/1, in toolkit-validation" in row
    until(lambda: "✘ CrashLoopBackOff" in board.view._parts[0].panel.html or "✘ Error" in board.view._parts[0].panel.html)
    assert "states not ready: [" in board.lab.load("parts").conditions(board.lab, not_ready=7)
    board.lab.mend()
    assert "a100-0: 4 of 4 allocatable" in board.settled("a100-0")
    assert board.source.before("a100-0", "nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset")
    assert not board.source.before("a100-0", "nvidia-operator-validator", "nvidia-device-plugin-daemonset")


def test_closing_ends_every_thread(board):
    board.settled()
    board.close()
    assert not any(thread.is_alive() for thread in board.source._threads)
