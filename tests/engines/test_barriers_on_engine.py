"""Gangs on simulated nodes: who waits at a barrier, who is released, who times out."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from simulator_support import create, get, kill, phase_is, pod, until

from orchlab import accounting
from orchlab.kube.feed import Feed

GPU = "nvidia.com/gpu"
HERE = {"kubernetes.io/hostname": "h100-0"}


def worker(number: int, size: int = 6, gpus: int = 1, policy: str = "Never", **notes: str) -> dict:
    notes = {"barrier": "gang", "barrier-size": str(size), "run-for": "2m"} | {key.replace("_", "-"): value for key, value in notes.items()}
    return pod(f"w{number}", gpus, notes, policy, nodeSelector=HERE)


def pods_of(client, where: str) -> list[dict]:
    return [one for one in client.list(f"/api/v1/namespaces/{where}/pods")[0] if one["metadata"]["name"].startswith("w")]


def next_of(found: dict) -> str:
    return next((c["reason"] for c in found["status"].get("conditions") or [] if c["type"] == "orchlab/simulated"), "")


def waiting(client, where: str) -> list[dict]:
    return [one for one in pods_of(client, where) if next_of(one) == "AtBarrier"]


def released(found: dict) -> str | None:
    return found["metadata"]["annotations"].get("orchlab/barrier-released")


def log(client, where: str, name: str) -> str:
    return client.request("GET", f"/api/v1/namespaces/{where}/pods/{name}/log")["text"]


def moment(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)


def test_five_of_six_hold_their_devices_and_wait_until_the_sixth_gets_room(client, where):
    create(client, where, pod("other", 3, policy="Always", nodeSelector=HERE))
    phase_is(client, where, "other", "Running")
    create(client, where, *(worker(number) for number in range(6)))
    until(lambda: len(waiting(client, where)) == 5)
    last = until(lambda: next((one for one in pods_of(client, where) if one["status"]["phase"] == "Pending"), None))["metadata"]["name"]
    first = waiting(client, where)[0]["metadata"]["name"]
    until(lambda: "waiting at the barrier: 5 of 6" in log(client, where, first))
    assert "run time" not in log(client, where, first)
    # Twice the run time that they declare: none has begun it.
    begun = [moment(one["status"]["startTime"]) for one in waiting(client, where)]
    until(lambda: all((datetime.now(b.tzinfo) - b).total_seconds() > 4.5 for b in begun))
    found = pods_of(client, where)
    assert sorted(one["status"]["phase"] for one in found) == ["Pending"] + ["Running"] * 5 and not any(map(released, found))
    client.delete(f"/api/v1/namespaces/{where}/pods/other")
    done = [phase_is(client, where, one["metadata"]["name"], "Succeeded") for one in found]
    assert len({released(one) for one in done}) == 1 and last in {one["metadata"]["name"] for one in done}
    for one in done:
        over = one["status"]["containerStatuses"][0]["state"]["terminated"]
        # Two simulated minutes from the release on, at 60 to 1; an end is stamped in whole seconds.
        assert 0.9 <= (moment(over["finishedAt"]) - moment(released(one))).total_seconds() <= 6
    assert "the barrier is released after" in log(client, where, first)


def test_the_feed_tells_what_was_held_in_vain(client, where):
    with Feed(client, where) as feed:
        feed.ready()
        create(client, where, *(worker(number, size=3, gpus=2) for number in range(2)))
        until(lambda: len(waiting(client, where)) == 2)
        before = until(lambda: (found := accounting.account(feed.timeline.records(), time.time(), 8, GPU)).total.vain > 4 and found)
        assert before.total.useful == 0 and before.total.held == pytest.approx(before.total.vain)
        create(client, where, worker(2, size=3, gpus=2))
        for number in range(3):
            phase_is(client, where, f"w{number}", "Succeeded")
        until(lambda: not feed.timeline.goes_on())
        after = accounting.account(feed.timeline.records(), time.time(), 8, GPU)
        # Three pods with two GPUs run for two seconds; ends are stamped in whole seconds.
        assert after.total.vain >= before.total.vain and 6 <= after.total.useful <= 24 and after.total.failed == after.total.lost == 0
        assert {bar.what for bar in feed.timeline.per_device()} == {"vain", "held"}


def test_who_waits_for_too_long_fails_and_says_how_many_were_there(client, where):
    create(client, where, *(worker(number, barrier_timeout="3m", size=3) for number in range(2)))
    failed = [phase_is(client, where, f"w{number}", "Failed") for number in range(2)]
    for one in failed:
        over = one["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (over["exitCode"], over["reason"]) == (1, "Error") and released(one) is None
        assert (moment(over["finishedAt"]) - moment(over["startedAt"])).total_seconds() >= 2
    counts = {one["metadata"]["annotations"]["orchlab/barrier-missed"] for one in failed}
    assert "0/2/3" in counts and counts <= {"0/2/3", "0/1/3"}
    assert any("barrier timeout: 2 of 3 pods were there" in log(client, where, f"w{number}") for number in range(2))
    said = until(lambda: len(found := [e["message"] for e in client.list(f"/api/v1/namespaces/{where}/events")[0]
                                       if e["reason"] == "BarrierTimeout"]) == 2 and found)
    assert any(message.startswith("barrier gang: 2 of 3 pods were Running after 3s of real time") for message in said)


def test_a_container_that_missed_its_barrier_restarts_in_place_and_waits_again(client, where):
    create(client, where, worker(0, size=2, policy="OnFailure", barrier_timeout="2m"))
    until(lambda: (one := get(client, where, "w0"))["status"].get("containerStatuses", [{}])[0].get("restartCount") == 1
          and next_of(one) == "AtBarrier")
    create(client, where, worker(1, size=2))
    for number in range(2):
        phase_is(client, where, f"w{number}", "Succeeded")


def test_a_member_that_dies_after_the_release_stops_nobody_and_its_successor_waits_anew(client, where):
    create(client, where, *(worker(number, size=3, run_for="1h") for number in range(2)), worker(2, size=3, run_for="30s", exit="error"))
    phase_is(client, where, "w2", "Failed")
    assert all(released(get(client, where, f"w{number}")) for number in range(2))
    create(client, where, worker(3, size=3, run_for="30s"))
    # With those that still run it is complete again.
    phase_is(client, where, "w3", "Succeeded")
    create(client, where, worker(4, size=3, run_for="30s"))
    phase_is(client, where, "w4", "Succeeded")
    client.delete(f"/api/v1/namespaces/{where}/pods/w0")
    until(lambda: len(pods_of(client, where)) == 4)
    create(client, where, worker(5, size=3))
    until(lambda: next_of(get(client, where, "w5")) == "AtBarrier")
    assert get(client, where, "w1")["status"]["phase"] == "Running"


def test_a_restart_of_the_simulator_and_of_kwok_loses_nobody(client, where, environment):
    create(client, where, *(worker(number, size=4, barrier_timeout="1h") for number in range(3)))
    until(lambda: len(waiting(client, where)) == 3)
    kill(environment, "simulator")
    kill(environment, "kwok")
    create(client, where, worker(3, size=4))
    done = [phase_is(client, where, f"w{number}", "Succeeded", seconds=90) for number in range(4)]
    assert len({released(one) for one in done}) == 1


def test_a_deadline_of_the_pod_goes_on_at_the_barrier_and_after_it(client, where):
    early, late = worker(0, size=2), worker(1, size=2, run_for="1h")
    early["spec"]["activeDeadlineSeconds"], late["spec"]["activeDeadlineSeconds"] = 300, 4
    create(client, where, early)
    until(lambda: next_of(get(client, where, "w0")) == "DeadlineAtBarrier")
    create(client, where, late)
    phase_is(client, where, "w0", "Succeeded")
    assert phase_is(client, where, "w1", "Failed")["status"]["reason"] == "DeadlineExceeded"
    alone = worker(2, size=9)
    alone["spec"]["activeDeadlineSeconds"] = 2
    create(client, where, alone)
    assert phase_is(client, where, "w2", "Failed")["status"]["reason"] == "DeadlineExceeded"


def test_bad_values_are_warned_about(client, where):
    create(client, where, pod("a", notes={"barrier": "g"}), pod("b", notes={"barrier-size": "2"}),
           pod("c", notes={"barrier": "g", "barrier-size": "many", "barrier-timeout": "1m"}))
    for name in "abc":
        phase_is(client, where, name, "Succeeded")
    said = until(lambda: len(found := [e["message"] for e in client.list(f"/api/v1/namespaces/{where}/events")[0]
                                       if e["reason"] == "BadAnnotation"]) == 3 and found)
    assert sum("orchlab/barrier-size" in message for message in said) == 3
