"""What lab 08's stream of submissions does, against the live cluster."""

import time

import pytest

from orchlab.course import Lab, folder, reset
from orchlab.errors import TimeLimitReached


@pytest.fixture
def tool(proved):
    reset.cluster(folder.lab("08"), proved)
    made = Lab("08", proved, quiet=True).widget("stream")
    yield made
    made.close()


def until(look, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def test_quotas_refuse_production_evicts_and_line_pictures_and_text_say_so(tool):
    first, *words = str(tool.settled()).splitlines()
    assert first == ("vision: 4 submitted, 1 refused, 2 on a node, 0 waiting, 1 evicted, 0 done; "
                     "speech: 2 submitted, 0 refused, 2 on a node, 0 waiting, 0 evicted, 0 done")
    assert words == ['  vision: pods "vision-3" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, '
                     "used: requests.nvidia.com/gpu=6, limited: requests.nvidia.com/gpu=6"]
    assert "priorityClassName: research" in tool.manifest and "namespace: lab-08-vision" in tool.manifest
    until(lambda: tool.status.text == first)
    # The evicted pod's GPUs are given back a moment after it ended.
    until(lambda: "lab-08-vision  4 of 6" in tool.view.text and "lab-08-speech  4 of 4" in tool.view.text)
    until(lambda: "Failed: PreemptionByScheduler (exit 143)" in tool.view.text)
    quotas, costs = (part.panel.html for part in tool.view._parts)
    assert "lab-08-vision: 4 of 6 used" in quotas and "team lab-08-vision" in costs and "lost to evictions" in costs
    bill = tool.bill()
    assert "1 evicted" in bill and "lost: nothing was saved" in bill and "8 GPUs held" in bill

    before = tool.ledger.account().total.lost
    tool.checkpoint.value = 1
    until(lambda: "modelled, with a checkpoint every 1.0 min of a run" in tool.view.text)
    assert tool.ledger.account(1).total.lost < before


def test_production_that_may_not_evict_waits(tool):
    tool.settled()
    tool.policy.value = "patient"
    tool.submit()
    assert str(tool.settled()).splitlines()[0] == (
        "vision: 4 submitted, 1 refused, 3 on a node, 0 waiting, 0 evicted, 0 done; "
        "speech: 2 submitted, 0 refused, 1 on a node, 1 waiting, 0 evicted, 0 done")
    tool.vision_quota.value, tool.speech_jobs.value = 0, 0
    tool.submit()
    assert str(tool.settled()).splitlines()[0].startswith("vision: 4 submitted, 4 refused, 0 on a node")


def test_a_scheduler_that_is_down_is_a_time_limit_not_a_hang(tool):
    tool.settled()
    tool.lab.fault("daemon-down", "kube-scheduler")
    try:
        tool.submit()
        with pytest.raises(TimeLimitReached, match="the pods were not submitted within 6 s"):
            tool.settled(6)
    finally:
        tool.lab.mend()
    assert "2 on a node" in tool.settled(60)


def test_what_the_api_server_does_not_take_is_said_in_the_widget(tool):
    tool.settled()
    made = tool._pod
    tool._pod = lambda team, number: {**made(team, number), "spec": {"containers": []}}
    tool.submit()
    until(lambda: "spec.containers: Required value" in tool.status.text)


def test_closing_ends_every_thread(tool):
    tool.settled()
    tool.close()
    assert not any(thread.is_alive() for thread in tool.ledger._threads)
