from datetime import UTC, datetime

import pytest
from simulator_fakes import pod

from orchlab.clock import Clock
from orchlab.simulator import logs, pods
from orchlab.simulator.barriers import Barriers

NOW = 1_767_268_800.0


def stamp(after):
    return datetime.fromtimestamp(NOW + after, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def member(number, size=3, since=0.0, name="g", seconds=None, run=0, state="running", written=None, **more):
    """A pod at its barrier; its container runs since NOW + `since` or not (None)."""
    uid = f"u{number}"
    wants = f'{{"name": "{name}", "size": {size}, "seconds": {"null" if seconds is None else seconds}}}'
    notes = {pods.ADMITTED: uid, pods.BARRIER: name, pods.WAITS_AT: wants, **(written or {})}
    found = pod(f"w{number}", uid=uid, notes=notes, phase="Pending" if since is None else "Running", **more)
    if since is not None:
        found["status"]["containerStatuses"] = [{"name": "main", "restartCount": run, "state": {state: {"startedAt": stamp(since)}}}]
    return found


class Written:
    """What was written: (pod's name, annotation, value) and events."""

    def __init__(self):
        self.notes, self.events = [], []

    def note(self, pod, notes):
        self.notes += [(pod["metadata"]["name"], *item) for item in notes.items()]

    def warn(self, pod, reason, message):
        self.events.append((pod["metadata"]["name"], reason, message))

    def released(self):
        return [name for name, note, _ in self.notes if note == pods.RELEASED]


@pytest.fixture
def written():
    return Written()


@pytest.fixture
def barriers(written):
    return Barriers(written.note, written.warn)


def test_nobody_is_released_before_all_are_running_and_then_all_at_one_time(barriers, written):
    for number in range(2):
        barriers.pod(member(number), NOW)
    barriers.pod(member(2, since=None), NOW)
    assert written.notes == []
    barriers.pod(member(2), NOW + 7.25)
    assert sorted(written.released()) == ["w0", "w1", "w2"]
    assert {value for _, _, value in written.notes} == {"2026-01-01T12:00:07.250000Z"}


@pytest.mark.parametrize("third", [
    member(2, name="other"), member(2, state="waiting"), member(2, state="terminated"), member(2) | {"status": {"phase": "Succeeded"}},
    {**member(2), "metadata": {**member(2)["metadata"], "namespace": "elsewhere"}},
    {**member(2), "metadata": {**member(2)["metadata"], "deletionTimestamp": stamp(1)}}], ids=str)
def test_only_running_members_of_the_same_barrier_count(barriers, written, third):
    for one in (member(0), member(1), third):
        barriers.pod(one, NOW)
    assert written.notes == []


def test_who_leaves_is_not_counted_any_more(barriers, written):
    barriers.pod(member(0), NOW)
    barriers.pod(member(1), NOW)
    barriers.pod_gone("u0")
    barriers.pod(member(2), NOW)
    assert written.notes == []
    barriers.pod(member(3), NOW)
    assert sorted(written.released()) == ["w1", "w2", "w3"]


def test_each_pod_goes_by_its_own_size(barriers, written):
    for number, size in enumerate((2, 3, 4)):
        barriers.pod(member(number, size), NOW)
    assert sorted(written.released()) == ["w0", "w1"]


def test_a_release_is_final_and_is_not_written_twice(barriers, written):
    for number in range(3):
        barriers.pod(member(number), NOW)
    # Old news of a pod, as it was before it was released; then a restart in place.
    barriers.pod(member(0), NOW + 1)
    barriers.pod(member(0, run=1, since=2), NOW + 2)
    barriers.pod(member(1) | {"status": {"phase": "Failed"}}, NOW + 3)
    assert len(written.notes) == 3


def test_a_thousand_pods_cost_a_request_each_and_no_list(barriers, written):
    for number in range(1000):
        barriers.pod(member(number, 1000, since=None), NOW)
        barriers.pod(member(number, 1000), NOW)
        barriers.tick(NOW)
    assert sorted(written.released()) == sorted(f"w{number}" for number in range(1000)) and len(written.notes) == 1000
    for number in range(1000):
        barriers.pod(member(number, 1000, written={pods.RELEASED: stamp(0)}), NOW + 1)
    assert len(written.notes) == 1000 and written.events == []


def test_a_timeout_says_how_many_were_there(barriers, written):
    barriers.pod(member(0, seconds=20), NOW + 0.5)
    barriers.pod(member(1, seconds=20), NOW + 0.5)
    barriers.tick(NOW + 20.4)
    assert written.notes == []
    barriers.tick(NOW + 20.6)
    barriers.tick(NOW + 30)
    assert written.notes == [("w0", pods.MISSED, "0/2/3"), ("w1", pods.MISSED, "0/2/3")]
    assert written.events[0] == ("w0", "BarrierTimeout", "barrier g: 2 of 3 pods were Running after 20s of real time (orchlab/barrier-timeout); "
                                 "the container ends with exit code 1")
    # They are about to end: nobody meets them any more.
    barriers.pod(member(2), NOW + 31)
    assert written.released() == []


def test_a_released_pod_does_not_time_out_and_a_restarted_run_has_its_own_time(barriers, written):
    barriers.pod(member(0, 1, seconds=5), NOW)
    barriers.pod(member(1, 2, seconds=5, name="h"), NOW)
    barriers.tick(NOW + 6)
    barriers.pod(member(1, 2, seconds=5, name="h", run=1, since=10), NOW + 10)
    barriers.tick(NOW + 12)
    barriers.tick(NOW + 16)
    assert [note for note in written.notes if note[1] == pods.MISSED] == [("w1", pods.MISSED, "0/1/2"), ("w1", pods.MISSED, "1/1/2")]


def test_a_new_process_counts_everybody_before_it_decides(barriers, written):
    barriers.relisted([member(number, seconds=60) for number in range(2)], NOW + 40)
    assert written.notes == []
    barriers.tick(NOW + 59)
    assert written.notes == []
    barriers.tick(NOW + 61.1)
    assert len(written.notes) == 2


def test_a_release_that_was_cut_short_is_completed_with_its_own_time(barriers, written):
    over = member(0, written={pods.RELEASED: stamp(9)}) | {"status": {"phase": "Succeeded"}}
    barriers.relisted([over, member(1, written={pods.RELEASED: stamp(9)}), member(2), member(3, since=20)], NOW + 60)
    # Number 3 came later: for it only those count that run now.
    assert ("w2", pods.RELEASED, "2026-01-01T12:00:09.000000Z") in written.notes
    assert ("w3", pods.RELEASED, "2026-01-01T12:01:00.000000Z") in written.notes
    fewer = Written()
    Barriers(fewer.note, fewer.warn).relisted([over, member(3, since=20)], NOW + 60)
    assert fewer.notes == []


def test_a_fresh_list_forgets_who_is_gone(barriers, written):
    barriers.pod(member(0), NOW)
    barriers.relisted([member(1), member(2)], NOW)
    assert written.notes == []


@pytest.mark.parametrize("rewritten", [{pods.WAITS_AT: "6"}, {pods.WAITS_AT: '{"name": "g", "size": "many"}'}, {pods.WAITS_AT: "["},
                                       {pods.RELEASED: "yesterday"}])
def test_what_somebody_rewrote_does_not_hold_up_the_others(barriers, written, rewritten):
    strange = member(9, written=rewritten)
    barriers.relisted([strange, member(0), member(1)], NOW)
    barriers.pod(strange, NOW)
    assert written.notes == []
    barriers.pod(member(2), NOW)
    barriers.pod_gone("u9")
    barriers.tick(NOW)
    assert sorted(written.released()) == ["w0", "w1", "w2"]


def test_pods_on_real_kubelets_count_and_are_left_alone(barriers, written):
    real = member(2)
    real["metadata"]["annotations"] = {pods.BARRIER: "g", pods.BARRIER_SIZE: "3"}
    for one in (member(0), real, member(1)):
        barriers.pod(one, NOW)
    assert sorted(written.released()) == ["w0", "w1"]


def test_the_course_is_noted_at_ticks_while_somebody_waits(barriers):
    one = member(0)
    barriers.pod(one, NOW)
    barriers.tick(NOW + 0.5)
    barriers.pod(one, NOW + 0.8)
    barriers.tick(NOW + 1)
    barriers.pod(member(1), NOW + 1.2)
    barriers.tick(NOW + 1.5)
    assert [(at.timestamp() - NOW, present) for at, present in barriers.course(one)] == [(0.5, 1), (1.5, 2)]


def at(after):
    return datetime.fromtimestamp(NOW + after, UTC)


def told(found, after, course=()):
    return [line.text for line in logs.lines(found, "main", at(after), course=course)]


def test_the_log_tells_of_the_wait_and_counts_the_run_time_from_the_release():
    notes = {pods.REAL_SECONDS: "10.000", pods.RUN_FOR: "10m"}
    course = [(at(1), 1), (at(2), 3), (at(9), 2)]
    found = member(0, 6, seconds=20, written=notes)
    assert told(found, 5, course)[3:] == ["barrier g: waits until 6 of its pods are Running at once, 20s of real time at most",
                                          "waiting at the barrier: 1 of 6", "waiting at the barrier: 3 of 6"]
    found = member(0, 6, written=notes | {pods.RELEASED: stamp(5)})
    assert told(found, 8, course)[4:] == ["waiting at the barrier: 1 of 6", "waiting at the barrier: 3 of 6", "the barrier is released after 5s",
                                          "run time 10m (simulated), 10s of real time", "10 % of the run time", "20 % of the run time",
                                          "30 % of the run time"]


def test_the_log_of_a_run_that_missed_its_barrier_says_so():
    found = member(0, 6, written={pods.REAL_SECONDS: "10.000", pods.MISSED: "0/4/6"})
    found["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 1, "reason": "Error", "startedAt": stamp(0), "finishedAt": stamp(20)}}
    assert told(found, 30)[-2:] == ["barrier timeout: 4 of 6 pods were there", "ended: exit code 1 (Error)"]


@pytest.mark.parametrize("notes, words", [
    ({"barrier": "g"}, "orchlab/barrier-size: is missing"), ({"barrier": "", "barrier-size": "2"}, "orchlab/barrier: ''"),
    ({"barrier": "g", "barrier-size": "0"}, "orchlab/barrier-size: '0'"), ({"barrier": "g", "barrier-size": "²"}, "orchlab/barrier-size: '²'"),
    ({"barrier-size": "2"}, "orchlab/barrier-size: '2': belongs to a barrier"),
    ({"barrier-timeout": "2m"}, "orchlab/barrier-timeout: '2m': belongs to a barrier")])
def test_what_makes_no_barrier_is_warned_about_and_the_pod_runs(notes, words):
    plan = pods.plan(pod(notes={f"orchlab/{key}": value for key, value in notes.items()}), Clock(60))
    assert plan.barrier is None and len(plan.warnings) == 1 and words in plan.warnings[0]


def test_a_bad_timeout_is_none():
    notes = {pods.BARRIER: "g", pods.BARRIER_SIZE: "6", pods.BARRIER_TIMEOUT: "soon"}
    plan = pods.plan(pod(notes=notes), Clock(60))
    assert plan.barrier == pods.Barrier("g", 6, None) and "it waits for ever" in plan.warnings[0]
    assert pods.plan(pod(notes=notes | {pods.BARRIER_TIMEOUT: "20m"}), Clock(60)).barrier.seconds == 20
