import json
import random
from dataclasses import replace

import pytest
from views_support import GPU, ZERO, unit

from orchlab.errors import BadInput
from orchlab.snapshot import LastRun, Share
from orchlab.timeline import Timeline

WORDS = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu."


def life(name="p", on="n1", gpus=2):
    """What a watch shows of a pod's usual life, as (unit, seen at)."""
    fresh = unit(name, gpus)
    bound = unit(name, gpus, on, bound=ZERO + 5)
    return [
        (fresh, ZERO + 0.2),
        (replace(fresh, reason="Unschedulable", message=WORDS), ZERO + 0.5),
        (replace(fresh, reason="Unschedulable", message="1 node(s) were unschedulable"), ZERO + 3),
        (replace(bound, shares=(Share(on, GPU, gpus),), reason="ContainerCreating"), ZERO + 5.4),
        (replace(bound, reason="ContainerCreating"), ZERO + 5.6),
        (replace(bound, phase="Running", started=ZERO + 7), ZERO + 7.3),
        (replace(bound, phase="Succeeded", started=ZERO + 7, ended=ZERO + 17, outcome="Succeeded"), ZERO + 17.9),
    ]


def fed(observations, timeline=None):
    timeline = timeline or Timeline()
    for version, (what, at) in enumerate(observations, 1):
        timeline.apply(what, at, version)
    return timeline


def test_a_usual_life():
    record, = fed(life()).records()
    assert [(w.stage, w.reason, w.message, w.start - ZERO, w.end - ZERO) for w in record.waits] == [
        ("waiting", "", "", pytest.approx(0.2), 0.5), ("waiting", "Unschedulable", WORDS, 0.5, 3),
        ("waiting", "Unschedulable", "1 node(s) were unschedulable", 3, pytest.approx(5.4)),
        ("starting", "ContainerCreating", "", pytest.approx(5.4), pytest.approx(7.3))]
    hold, = record.holds
    assert (hold.start - ZERO, hold.end - ZERO) == (pytest.approx(5.4), pytest.approx(17.9))
    assert hold.shares == (Share("n1", GPU, 2, ("GPU-n1-0", "GPU-n1-1")),), "devices that became known later are those of the hold"
    run, = record.runs
    assert (run.start - ZERO, run.end - ZERO, run.outcome) == (pytest.approx(7.3), pytest.approx(17.9), "Succeeded")
    assert record.waited(ZERO + 100) == pytest.approx(5.2) and record.device_seconds(ZERO + 100) == pytest.approx(25)


def test_stamps_in_whole_seconds_are_refined_by_a_seeing_within_that_second_only():
    late = [(what, at + 40) for what, at in life()]
    record, = fed(late).records()
    assert record.submitted == ZERO and record.holds[0].start == ZERO + 5 and record.runs[0].end == ZERO + 17
    early, = fed([(what, at - 30) for what, at in life()]).records()
    assert early.submitted == ZERO, "a clock that lags behind the orchestrator's is not believed"


@pytest.mark.parametrize("seed", range(5))
def test_repeats_and_late_news_change_nothing(seed):
    dice = random.Random(seed)
    clean, dirty = fed(life()), Timeline()
    for version, (what, at) in enumerate(life(), 1):
        dirty.apply(what, at, version)
        for old in dice.choices(range(version), k=3):
            assert not dirty.apply(*[life()[old][0], at + dice.random()], old + 1)
    assert dirty.to_json() == clean.to_json()


def test_an_observation_that_was_overtaken_is_ignored():
    steps = life()
    timeline = Timeline()
    timeline.apply(*steps[0], 1)
    timeline.apply(*steps[5], 6)
    assert not timeline.apply(*steps[2], 3)
    record, = timeline.records()
    assert record.runs[0].end is None and all(wait.end is not None for wait in record.waits)


def test_first_seen_when_it_ran_already():
    record, = fed([life()[5]]).records()
    assert [(w.stage, w.start - ZERO, w.end - ZERO) for w in record.waits] == [
        ("waiting", 0, 5), ("starting", 5, pytest.approx(7.3))]


def test_first_seen_when_it_had_ended():
    record, = fed([(life()[6][0], ZERO + 99)]).records()
    assert (record.holds[0].start, record.holds[0].end) == (ZERO + 5, ZERO + 17)
    assert (record.runs[0].start, record.runs[0].end, record.outcome) == (ZERO + 7, ZERO + 17, "Succeeded")
    assert record.device_seconds(ZERO + 99) == 24


def test_deleted_while_waiting_and_while_running():
    timeline = fed(life("waits")[:3])
    fed(life("runs")[:6], timeline)
    for id in ("uid-waits", "uid-runs"):
        assert timeline.gone(id, ZERO + 20) and not timeline.gone(id, ZERO + 25), "only the first deletion is news"
    runs, waits = sorted(timeline.records(), key=lambda r: r.name)
    assert (runs.outcome, runs.ended, runs.holds[0].end, runs.runs[0].end) == ("deleted", ZERO + 20, ZERO + 20, ZERO + 20)
    assert (waits.outcome, waits.waits[-1].end, waits.holds) == ("deleted", ZERO + 20, [])
    assert not timeline.apply(life("runs")[5][0], ZERO + 30, 99), "what is gone doesn't come back"


def test_a_unit_that_ended_keeps_its_outcome_when_it_is_deleted():
    timeline = fed(life())
    timeline.gone("uid-p", ZERO + 60)
    record, = timeline.records()
    assert (record.outcome, record.ended) == ("Succeeded", pytest.approx(ZERO + 17.9, rel=0, abs=1e-3))


def test_a_gap_leaves_the_end_of_what_vanished_in_it_uncertain():
    timeline = fed(life("gone")[:6])
    fed(life("stays")[:6], timeline)
    timeline.mark_gap(ZERO + 10, ZERO + 20, "the watch expired")
    timeline.relisted([(life("stays")[5][0], 6), (unit("new", submitted=ZERO + 15), 9)], ZERO + 20)
    records = {r.name: r for r in timeline.records()}
    assert records["gone"].holds[0].uncertain and records["gone"].holds[0].end == ZERO + 20
    assert records["stays"].ended is None and not records["stays"].holds[0].uncertain
    assert records["new"].submitted == ZERO + 15, "the orchestrator's stamp tells when, though nobody watched"
    assert [(g.start, g.end, g.why) for g in timeline.gaps()] == [(ZERO + 10, ZERO + 20, "the watch expired")]
    assert not timeline.gaps("Node") and timeline.gaps("Pod") == timeline.gaps()
    timeline.mark_gap(ZERO + 30, ZERO + 31, "nodes", "Node")
    assert len(timeline.gaps()) == 1, "what was missed of nodes is no gap in the lives of units"


def test_relisting_one_kind_leaves_the_others_alone():
    timeline = fed([(replace(unit("j", on="n1"), kind="Job", started=ZERO + 1), ZERO + 1.5)])
    timeline.relisted([], ZERO + 9, kind="Pod")
    assert timeline.records()[0].ended is None


def test_restarts():
    bound = replace(unit("p", 1, "n1", bound=ZERO), phase="Running")
    crash = LastRun(0, ZERO + 1, ZERO + 4, "Error (exit 1)")
    timeline = fed([
        (replace(bound, started=ZERO + 1), ZERO + 1.1),
        (replace(bound, reason="CrashLoopBackOff", message="back-off 10s", last_run=crash), ZERO + 4.2),
        (replace(bound, started=ZERO + 14, restarts=1, last_run=crash), ZERO + 14.5),
        (replace(bound, started=ZERO + 14, restarts=1, last_run=crash), ZERO + 15),
        # Two more runs of which a gap left only the last trace.
        (replace(bound, started=ZERO + 60, restarts=3, last_run=LastRun(2, ZERO + 40, ZERO + 45, "OOMKilled (exit 137)")), ZERO + 60.5)])
    record, = timeline.records()
    assert [(r.number, round(r.start - ZERO, 1), r.end and round(r.end - ZERO, 1), r.outcome) for r in record.runs] == [
        (0, 1.1, 4.2, "Error (exit 1)"), (1, 14.5, 60.5, ""), (2, 40, 45, "OOMKilled (exit 137)"), (3, 60.5, None, "")]
    assert record.waits[-1].reason == "CrashLoopBackOff"
    assert (round(record.waits[-1].start - ZERO, 1), round(record.waits[-1].end - ZERO, 1)) == (4.2, 14.5)
    assert len(record.holds) == 1, "a restart in place keeps its devices"
    assert timeline.to_rows(ZERO + 61)[0]["restarts"] == 3


def test_a_job_that_is_requeued_holds_twice():
    """Slurm's way: one job id, several allocations, on several nodes."""
    both = (Share("n1", GPU, 2, ("a", "b")), Share("n2", GPU, 2, ("c", "d")))
    job = replace(unit("j", 4), kind="Job")
    timeline = fed([
        (job, ZERO), (replace(job, shares=both, bound=ZERO + 10, started=ZERO + 10), ZERO + 10),
        (replace(job, reason="BeginTime"), ZERO + 20),
        (replace(job, shares=(Share("n3", GPU, 4),), bound=ZERO + 30, started=ZERO + 30, restarts=1), ZERO + 30)])
    record, = timeline.records()
    assert [(h.start - ZERO, h.end and h.end - ZERO) for h in record.holds] == [(10, 20), (30, None)]
    assert timeline.device_seconds("node", ZERO + 40) == {"n1": 20, "n2": 20, "n3": 40}
    assert [(w.reason, w.start - ZERO, w.end - ZERO) for w in record.waits] == [("", 0, 10), ("BeginTime", 20, 30)]


def test_bars_per_device_and_occupancy():
    timeline = fed(life("a", gpus=2))
    fed([(replace(unit("b", 1, "n1", known=False), bound=ZERO + 6, started=ZERO + 6), ZERO + 6.5)], timeline)
    bars = timeline.per_device(ZERO + 20)
    assert [(b.row, b.name, round(b.start - ZERO, 1), round(b.end - ZERO, 1), b.open) for b in bars] == [
        (("n1", "GPU-n1-0"), "a", 5.4, 17.9, False), (("n1", "GPU-n1-1"), "a", 5.4, 17.9, False), (("n1", "~0"), "b", 6.5, 20, True)]
    steps = [(round(at - ZERO, 1), level) for at, level in timeline.occupancy(ZERO + 20)["n1"]]
    assert steps == [(5.4, 2), (6.5, 3), (17.9, 1)]
    assert timeline.occupancy(ZERO + 20, resource="nvidia.com/mig-1g.10gb") == {}


def test_holds_without_ids_share_rows_one_after_the_other():
    one = replace(unit("one", 1, "n1", known=False), bound=ZERO, started=ZERO, ended=ZERO + 5, outcome="Succeeded")
    two = replace(unit("two", 1, "n1", known=False), bound=ZERO + 5, started=ZERO + 5)
    three = replace(unit("three", 1, "n1", known=False), bound=ZERO + 6, started=ZERO + 6)
    timeline = fed([(one, ZERO + 90), (two, ZERO + 90), (three, ZERO + 90)])
    assert [(b.name, b.row[1]) for b in timeline.per_device(ZERO + 99)] == [("one", "~0"), ("two", "~0"), ("three", "~1")]


def test_occupancy_of_many_agrees_with_device_seconds():
    """The area under the steps is what was held, counted the other way round."""
    dice, timeline = random.Random(3), Timeline()
    for number in range(200):
        start = dice.randint(0, 500)
        what = unit(f"p{number}", dice.randint(1, 8), f"n{dice.randint(0, 5)}", known=False, bound=ZERO + start, started=ZERO + start,
                    ended=ZERO + start + dice.randint(0, 90) if dice.random() < 0.8 else None, outcome="Succeeded")
        timeline.apply(what, ZERO + 5000)
    now = ZERO + 6000
    for node, steps in timeline.occupancy(now).items():
        area = sum(level * (until - at) for (at, level), (until, _) in zip(steps, [*steps[1:], (now, 0)], strict=True))
        assert area == pytest.approx(timeline.device_seconds("node", now)[node])
    total = sum(timeline.device_seconds("unit", now).values())
    assert total == pytest.approx(sum(timeline.device_seconds("node", now).values())) and total > 0


def test_sums_by_group_and_a_bad_way_to_add_up():
    timeline = fed([(replace(unit(f"p{i}", 2, "n1", 2 * i), group="Job/train", bound=ZERO, started=ZERO), ZERO) for i in range(2)])
    assert timeline.device_seconds("group", ZERO + 10) == {"Job/train": 40}
    with pytest.raises(BadInput) as caught:
        timeline.device_seconds("rack")
    assert caught.value.field == "by" and "node" in caught.value.remedy


def test_rows_tell_the_story():
    timeline = fed(life())
    fed([(replace(unit("big", 16), reason="Unschedulable", message=WORDS, submitted=ZERO + 1), ZERO + 1.5)], timeline)
    first, second = timeline.to_rows(ZERO + 31.5)
    assert first == {
        "unit": "Pod lab/p", "group": "", "wants": 2, "submitted": 0.0, "waited": 5.2, "waits for": "", "node": "n1",
        "devices": "GPU-n1-0,GPU-n1-1", "bound": 5.2, "started": 7.1, "restarts": 0, "ended": 17.7, "outcome": "Succeeded",
        "device-seconds": 25.0}
    assert (second["waits for"], second["waited"], second["node"], second["ended"]) == (f"Unschedulable: {WORDS}", 30, "", None)


def test_json_there_and_back():
    timeline = fed(life())
    fed(life("q")[:5], timeline)
    timeline.mark_gap(ZERO + 1, ZERO + 2, "why")
    text = json.dumps(timeline.to_json())
    again = Timeline.from_json(json.loads(text))
    assert json.dumps(again.to_json()) == text and again.to_rows(ZERO + 50) == timeline.to_rows(ZERO + 50)
    again.gone("uid-q", ZERO + 51)
    assert not again.goes_on(), "what was read can be fed further"
    with pytest.raises(BadInput):
        Timeline.from_json({"schema": 99})


def test_old_ended_units_are_let_go_and_counted():
    timeline = Timeline(keep=3)
    for number in range(5):
        fed([(step[0], step[1]) for step in life(f"p{number}")], timeline)
    fed(life("alive")[:6], timeline)
    assert [r.name for r in timeline.records()] == ["alive", "p2", "p3", "p4"] and timeline.dropped == 2


def test_span_and_an_empty_timeline():
    timeline = Timeline()
    assert timeline.span() == (0, 0) and timeline.to_rows() == [] and timeline.occupancy() == {} and not timeline.goes_on()
    fed(life()[:6], timeline)
    assert timeline.span(ZERO + 50) == (pytest.approx(ZERO + 0.2, rel=0, abs=1e-3), ZERO + 50)
    fed(life(), timeline)
    assert timeline.span(ZERO + 50)[1] == pytest.approx(ZERO + 17.9, rel=0, abs=1e-3), "nothing goes on: the span ends with the last end"
