import json
import random
from dataclasses import replace

import pytest
from views_support import ZERO, pod, stamp, unit

from orchlab import accounting
from orchlab.clock import Clock
from orchlab.errors import BadInput
from orchlab.kube.objects import unit_from
from orchlab.snapshot import LastRun, Share
from orchlab.timeline import Timeline
from orchlab.views.accounts import account_svg, account_text

PREEMPTED = "Failed: PreemptionByScheduler (exit 143)"


def life(timeline, name, gpus=2, submitted=0.0, bound=0.0, started=None, ended=None, outcome="Succeeded", **fields):
    """A pod's life in seconds after ZERO, told as a watch does."""
    fresh = unit(name, gpus, submitted=ZERO + submitted, **fields)
    timeline.apply(fresh, ZERO + submitted + 0.01)
    if bound is None:
        return
    on = replace(fresh, shares=(Share("n1", "nvidia.com/gpu", gpus),), bound=ZERO + bound)
    timeline.apply(on, ZERO + bound + 0.01)
    running = replace(on, phase="Running", started=ZERO + (bound if started is None else started))
    timeline.apply(running, running.started + 0.01)
    if ended is not None:
        timeline.apply(replace(running, phase="Failed", ended=ZERO + ended, outcome=outcome), ZERO + ended + 0.01)


def whole():
    timeline = Timeline()
    life(timeline, "r0", 4, 0, 0, ended=30, outcome=PREEMPTED, namespace="vision", priority="research")
    life(timeline, "r1", 2, 0, 10, 20, ended=60, namespace="vision", priority="research")
    life(timeline, "p0", 4, 20, 31, ended=61, namespace="speech", priority="production")
    life(timeline, "w0", 4, 30, None, namespace="speech")
    return timeline


def test_held_time_is_split_and_added_up_by_team_and_priority():
    found = accounting.account(whole().records(), ZERO + 100, devices=8)
    assert (found.total.units, found.total.waiting, found.total.evictions) == (4, 1, 1)
    assert [one.name for one in found.teams] == ["speech", "vision"]
    assert [one.name for one in found.priorities] == ["(none)", "production", "research"]
    speech, vision = found.teams
    assert vision.held == pytest.approx(4 * 30 + 2 * 50, abs=0.3) and vision.lost == pytest.approx(120, abs=0.3)
    assert vision.overhead == pytest.approx(2 * 10, abs=0.3) and vision.useful == pytest.approx(2 * 40, abs=0.3)
    assert speech.waits == [pytest.approx(11, abs=0.1), pytest.approx(70, abs=0.1)] and speech.useful == pytest.approx(120, abs=0.3)
    assert found.makespan == pytest.approx(100, abs=0.1), "somebody still waits"
    assert found.idle == pytest.approx(800 - 340, abs=1) and found.utilisation == pytest.approx(0.425, abs=0.01)
    assert found.goodput == pytest.approx(0.25, abs=0.01)
    for one in (found.total, *found.teams, *found.priorities):
        assert one.held == pytest.approx(one.useful + one.wasted)
    assert sum(one.held for one in found.teams) == pytest.approx(found.total.held) == pytest.approx(sum(o.held for o in found.priorities))


def test_an_eviction_says_who_how_and_what_it_cost_and_checkpoints_cut_that():
    found = accounting.account(whole().records(), ZERO + 100)
    eviction, = found.evictions
    assert (eviction.unit, eviction.team, eviction.priority, eviction.devices) == ("vision/r0", "vision", "research", 4)
    assert eviction.how == PREEMPTED and eviction.ran == pytest.approx(30, abs=0.1) and eviction.lost == pytest.approx(120, abs=0.3)
    assert found.capacity is None and found.idle is None and found.utilisation is None and accounting.share(found.goodput) == "-"
    saved = accounting.account(whole().records(), ZERO + 100, checkpoint=20)
    assert saved.total.lost == pytest.approx(40, abs=0.3) and saved.total.held == pytest.approx(found.total.held)


def test_failures_are_not_evictions_and_a_deletion_by_the_owner_is_neither():
    timeline = Timeline()
    life(timeline, "bad", 1, ended=10, outcome="Failed: OOMKilled (exit 137)")
    life(timeline, "gone", 1, ended=10, outcome="Failed (exit 143)")
    life(timeline, "taint", 1, ended=10, outcome="Failed: DeletionByTaintManager (exit 143)")
    found = accounting.account(timeline.records(), ZERO + 50)
    assert (found.total.failed, found.total.lost, found.total.useful) == tuple(pytest.approx(10, abs=0.1) for _ in range(3))
    assert found.makespan == pytest.approx(10, abs=0.1) and found.total.evictions == 1


def test_a_restarted_container_loses_the_runs_that_failed():
    timeline = Timeline()
    running = unit("p", 2, "n1", bound=ZERO, started=ZERO, phase="Running")
    timeline.apply(running, ZERO + 0.01)
    timeline.apply(replace(running, started=ZERO + 20, restarts=1, last_run=LastRun(0, ZERO, ZERO + 10, "Error (exit 1)")), ZERO + 20.01)
    found = accounting.account(timeline.records(), ZERO + 40)
    assert found.total.failed == pytest.approx(20, abs=0.3) and found.total.overhead == pytest.approx(20, abs=0.3)
    assert found.total.useful == pytest.approx(40, abs=0.3) and found.total.evictions == 0


def test_a_slurm_job_that_is_preempted_and_requeued_is_counted_by_account_and_qos():
    timeline = Timeline()
    job = {"id": "7", "kind": "Job", "namespace": "gpu", "group": "vision", "priority": "low", "wanted": {"gpu:a100": 4}}
    fresh = unit("train 7", **job)
    running = replace(fresh, shares=(Share("n1", "gpu:a100", 4),), bound=ZERO, started=ZERO, phase="Running")
    timeline.apply(running, ZERO + 0.1)
    timeline.apply(replace(fresh, restarts=1), ZERO + 50)
    again = replace(running, bound=ZERO + 80, started=ZERO + 80, restarts=1)
    timeline.apply(again, ZERO + 80.1)
    found = accounting.account(timeline.records(), ZERO + 100, devices=4, team="group")
    eviction, = found.evictions
    assert (eviction.unit, eviction.team, eviction.priority, eviction.how) == ("gpu/train 7", "vision", "low", "REQUEUED")
    assert found.total.lost == pytest.approx(200, abs=1) and found.total.useful == pytest.approx(80, abs=1)
    timeline.apply(replace(fresh, restarts=1, ended=ZERO + 110, outcome="PREEMPTED"), ZERO + 110.5)
    done = accounting.account(timeline.records(), ZERO + 200, team="group")
    assert [e.how for e in done.evictions] == ["REQUEUED", "PREEMPTED"] and done.makespan == pytest.approx(110, abs=1)


def test_nothing_and_bad_questions():
    empty = accounting.account([], ZERO)
    assert empty.makespan == 0 and account_text(empty).endswith("nothing was submitted") and "<svg" in account_svg(empty)
    with pytest.raises(BadInput, match="team"):
        accounting.account([], ZERO, team="colour")
    with pytest.raises(BadInput, match="checkpoint"):
        accounting.account([], ZERO, checkpoint=0)


def test_the_text_twin_says_what_is_simulated_time_and_the_picture_says_the_same_figures():
    found = accounting.account(whole().records(), ZERO + 100, devices=8)
    simulated, real = account_text(found, Clock(60)), account_text(found)
    assert "simulated time (1 real second is 1m of simulated time): run times" in simulated and "back-offs and grace periods" in simulated
    assert "time: all of it is the orchestrator's own" in real and "still waiting: 1" in real
    assert "ran 30.0 min" in simulated and "lost 2.00 GPU-h" in simulated and "ran 0.5 min" in real and "lost 0.03 GPU-h" in real
    picture = account_svg(found, Clock(60))
    for words in ("team vision", "priority research", "lost to evictions 2.00 GPU-h", "idle 7.67 GPU-h"):
        assert words in picture
    assert "checkpoints" not in simulated
    assert "modelled, with a checkpoint every 20.0 min" in account_text(accounting.account(whole().records(), ZERO, checkpoint=20), Clock(60))


def test_names_from_the_cluster_are_escaped():
    timeline = Timeline()
    life(timeline, "p", namespace="<b>", priority="a&b")
    picture = account_svg(accounting.account(timeline.records(), ZERO + 1))
    assert "<b>" not in picture and "a&amp;b" in picture


def test_a_preempted_pod_s_object_gives_priority_and_the_eviction():
    running = pod("p", 2, "n1", "Running")
    running["spec"]["priorityClassName"] = "research"
    gone = json.loads(json.dumps(running))
    gone["status"]["phase"] = "Failed"
    gone["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"})
    gone["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 143, "reason": "Error", "startedAt": stamp(2),
                                                                      "finishedAt": stamp(12)}}
    timeline = Timeline()
    for item, at in ((running, 2.5), (gone, 12.5)):
        timeline.apply(unit_from(item), ZERO + at)
    found = accounting.account(Timeline.from_json(timeline.to_json()).records(), ZERO + 20)
    eviction, = found.evictions
    assert eviction.priority == "research" and eviction.how == PREEMPTED and found.total.lost == pytest.approx(20, abs=2.1)


def at_barrier(timeline, name, gpus=2, bound=0.0, started=1.0, released=None, ended=None, outcome="Succeeded", **fields):
    """A pod's life at a barrier, in seconds after ZERO."""
    fresh = unit(name, gpus, submitted=ZERO + bound, barrier="g", **fields)
    on = replace(fresh, shares=(Share("n1", "nvidia.com/gpu", gpus),), bound=ZERO + bound)
    running = replace(on, phase="Running", started=ZERO + started)
    timeline.apply(on, ZERO + bound + 0.01)
    timeline.apply(running, ZERO + started + 0.01)
    if released is not None:
        running = replace(running, released=ZERO + released)
        timeline.apply(running, ZERO + released + 0.01)
    if ended is not None:
        timeline.apply(replace(running, ended=ZERO + ended, outcome=outcome), ZERO + ended + 0.01)


def test_what_is_held_before_the_release_is_held_in_vain_whatever_comes_of_it():
    timeline = Timeline()
    at_barrier(timeline, "done", 2, released=11, ended=31)
    at_barrier(timeline, "never", 4)
    at_barrier(timeline, "late", 1, ended=20, outcome="Failed (exit 1)")
    at_barrier(timeline, "evicted", 3, ended=10, outcome=PREEMPTED)
    at_barrier(timeline, "failed", 1, released=5, ended=12, outcome="Failed (exit 1)")
    life(timeline, "alone", 2, 0, 0, ended=10)
    found = accounting.account(timeline.records(), ZERO + 40, devices=16)
    assert found.total.vain == pytest.approx(2 * 11 + 4 * 40 + 20 + 3 * 10 + 5, abs=0.3)
    assert found.total.useful == pytest.approx(2 * 20 + 2 * 10, abs=0.3) and found.total.failed == pytest.approx(7, abs=0.1)
    assert found.total.lost == 0 and found.total.overhead == pytest.approx(0, abs=0.1)
    eviction, = found.evictions
    assert (eviction.devices, eviction.ran, eviction.lost) == (3, 0, 0)
    told, picture = account_text(found, Clock(60)), account_svg(found, Clock(60))
    assert "in vain" in told.splitlines()[4] and "3.95 GPU-h held in vain" in told and "in vain: held before the barrier was released" in told
    assert "held in vain 3.95 GPU-h" in picture
    again = Timeline.from_json(json.loads(json.dumps(timeline.to_json())))
    assert accounting.account(again.records(), ZERO + 40).total.vain == pytest.approx(found.total.vain)


def test_without_a_barrier_nothing_speaks_of_it():
    found = accounting.account(whole().records(), ZERO + 100, devices=8)
    assert "vain" not in account_text(found) and "vain" not in account_svg(found)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_held_is_the_sum_of_its_parts(seed):
    dice, timeline = random.Random(seed), Timeline()
    for number in range(30):
        bound, started, took = dice.uniform(0, 50), dice.uniform(0, 20), dice.uniform(0, 60)
        outcome = dice.choice(["Succeeded", PREEMPTED, "Failed (exit 1)", "Failed: OOMKilled (exit 137)", "deleted"])
        ended = bound + started + took if dice.random() < 0.7 else None
        where = {"namespace": dice.choice("ab"), "priority": dice.choice(["", "low"])}
        if dice.random() < 0.6:
            released = bound + started + dice.uniform(0, took) if dice.random() < 0.6 else None
            at_barrier(timeline, f"p{number}", dice.randint(1, 8), bound, bound + started, released, ended, outcome, **where)
        else:
            life(timeline, f"p{number}", dice.randint(1, 8), bound, bound, bound + started, ended, outcome, **where)
    found = accounting.account(timeline.records(), ZERO + dice.uniform(60, 140), devices=100, checkpoint=dice.choice([None, 7.0]))
    for one in (found.total, *found.teams, *found.priorities):
        parts = (one.lost, one.failed, one.overhead, one.vain)
        assert min(parts) >= 0 and sum(parts) <= one.held + 1e-6
        assert one.held == pytest.approx(one.useful + sum(parts))
    assert found.total.vain > 0


def test_a_pod_s_object_gives_its_barrier_and_a_copied_manifest_does_not():
    running = pod("p", 2, "n1", "Running")
    uid = running["metadata"]["uid"]
    notes = {"orchlab/admitted": uid, "orchlab/waits-at": '{"name": "g", "size": 6, "seconds": null}',
             "orchlab/barrier-released": "2026-01-01T12:00:07.250000Z"}
    running["metadata"]["annotations"] = notes
    found = unit_from(running)
    assert (found.barrier, found.released) == ("g", 1767268807.25)
    running["metadata"]["annotations"] = notes | {"orchlab/admitted": "another"}
    assert (unit_from(running).barrier, unit_from(running).released) == ("", None)
    running["metadata"]["annotations"] = notes | {"orchlab/waits-at": "6"}
    assert unit_from(running).barrier == ""
