"""What lab 01's sliders do, against the live cluster."""

import time

import pytest

from orchlab.course import Lab, folder, reset
from orchlab.errors import TimeLimitReached


@pytest.fixture
def tool(proved):
    reset.cluster(folder.lab("01"), proved)
    made = Lab("01", proved, quiet=True).widget("placement", gpus=8, count=5)
    yield made
    made.close()


def test_sliders_submit_to_the_real_scheduler_and_text_and_picture_follow(tool):
    said = str(tool.settled()).splitlines()
    assert said[0] == "5 pods x 8 GPUs: 4 placed (4 on h100), 1 pending"
    assert said[1].startswith(
        "  1 x 0/9 nodes are available: 4 Insufficient nvidia.com/gpu, 5 node(s) didn't match Pod's node affinity/selector."
    )
    assert "nvidia.com/gpu: 8" in tool.manifest

    tool.gpus.value, tool.count.value = 3, 9
    assert str(tool.settled()).splitlines()[0] == "9 pods x 3 GPUs: 8 placed (8 on h100), 1 pending"
    deadline = time.monotonic() + 10
    while "9 pods x 3 GPUs: 8 placed" not in tool.status.text or "lab-01/w-8 (3 GPUs)" not in tool.view.text:
        assert time.monotonic() < deadline, (tool.status.text, tool.view.text)
        time.sleep(0.1)

    tool.count.value = 0
    assert str(tool.settled()) == "0 pods x 3 GPUs: 0 placed, 0 pending"


def test_the_last_of_many_quick_moves_wins(tool):
    for count in (1, 7, 2, 8, 3):
        tool.count.value = count
    tool.gpus.value = 1
    assert str(tool.settled()).splitlines()[0] == "3 pods x 1 GPUs: 3 placed (3 on h100), 0 pending"
    assert [pod["metadata"]["name"] for pod in tool.submitter.pods()] == ["w-0", "w-1", "w-2"]


def test_a_cluster_that_does_not_answer_is_said_in_the_widget(tool):
    tool.settled()
    tool.submitter.place.namespace = "gone"
    tool.count.value = 2
    deadline = time.monotonic() + 10
    while "not found" not in tool.status.text:
        assert time.monotonic() < deadline, tool.status.text
        time.sleep(0.1)


def test_a_scheduler_that_is_down_is_a_time_limit_not_a_hang(tool):
    lab = Lab("01", tool.submitter.place.env.name, quiet=True)
    tool.settled()
    lab.fault("daemon-down", "kube-scheduler")
    try:
        tool.count.value = 1
        with pytest.raises(
            TimeLimitReached,
            match="not every pod was settled within [0-9.]+ s; last seen: pod/w-0 Pending; no scheduler has said anything about it",
        ):
            tool.settled(4)
    finally:
        lab.mend()
    assert "1 placed" in tool.settled(30)
