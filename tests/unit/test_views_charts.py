import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from test_timeline import fed, life
from views_support import ZERO, node, unit

from orchlab import views
from orchlab.snapshot import ClusterSnapshot, Event
from orchlab.timeline import Timeline
from orchlab.views.bars import _step

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "x</title><script>alert(1)</script><a href='javascript:alert(2)'>y</a>"
NOW = ZERO + 30
SNAPSHOT = ClusterSnapshot.of([node("n1", 4), node("n2", 4)])
SVGS = (views.gantt_svg, views.devices_svg, views.occupancy_svg)
FIGURES = (views.gantt, views.gantt_devices, views.occupancy)
TEXTS = (views.gantt_text, views.devices_text, views.occupancy_text)


@pytest.fixture
def timeline():
    timeline = fed(life("first", "n1", 2))
    fed(life("second", "n2", 4)[:6], timeline)
    big = replace(unit("big", 16), reason="Unschedulable", message="9 Insufficient nvidia.com/gpu", submitted=ZERO + 1)
    fed([(big, ZERO + 1.5)], timeline)
    timeline.mark_gap(ZERO + 10, ZERO + 12, "the watch expired")
    return timeline


def titles(svg):
    return {e.get("data-k"): e.findtext(f"{SVG}title") for e in ElementTree.fromstring(svg).iter() if e.get("data-k")}


def test_gantt_text_and_picture_say_the_same(timeline):
    said = titles(views.gantt_svg(timeline, now=NOW))
    text = views.gantt_text(timeline, NOW)
    rows = [title for key, title in said.items() if re.fullmatch(r"r\d+", key)]
    assert [row.split(":")[0] for row in rows] == ["first", "second", "big"]
    assert [re.search(r"lab/(\S+)", line)[1] for line in text.splitlines() if "lab/" in line] == ["first", "second", "big"]
    for record, row in zip(timeline.to_rows(NOW), rows, strict=True):
        if record["started"] is not None:
            assert f"running from {record['started']:.1f} s" in row and f"{record['started']:.1f}" in text
        if record["ended"] is not None:
            assert f"to {record['ended']:.1f} s (Succeeded)" in row
        if record["waits for"]:
            assert record["waits for"] in row and record["waits for"] in text
    gap = next(title for key, title in said.items() if key.startswith("gap"))
    assert gap in text and "not seen from 9.8 s to 11.8 s: the watch expired" in gap


def test_devices_text_and_picture_say_the_same(timeline):
    said = titles(views.devices_svg(timeline, SNAPSHOT, now=NOW))
    text = views.devices_text(timeline, NOW, snapshot=SNAPSHOT)
    bars = [title for key, title in said.items() if "/" in key]
    assert bars == [*(f"n1 GPU {i}: A first from 5.2 s to 17.7 s" for i in range(2)),
                    *(f"n2 GPU {i}: B second from 5.2 s on" for i in range(4))]
    lines = [re.split(r" {2,}", line) for line in text.splitlines() if line.startswith("n")]
    assert lines == [*([f"n1 GPU {i}", f"GPU-n1-{i}", "first", "5.2", "17.7", "Succeeded"] for i in range(2)),
                     *([f"n2 GPU {i}", f"GPU-n2-{i}", "second", "5.2", "goes on"] for i in range(4))]


def test_occupancy_text_and_picture_say_the_same(timeline):
    said = titles(views.occupancy_svg(timeline, SNAPSHOT, now=NOW))
    assert said["r0"] == "n1 (of 4): 2 held from 5.2 s to 17.7 s" and said["r1"] == "n2 (of 4): 4 held from 5.2 s to 29.8 s"
    text = views.occupancy_text(timeline, NOW)
    assert re.search(r"n1 +25\.0 +2 +5\.2=2 17\.7=0", text) and re.search(r"n2 +98\.4 +4 +5\.2=4", text)


def test_plotly_shows_the_same_bars(timeline):
    figure = views.gantt(timeline, SNAPSHOT, now=NOW)
    bars = {trace.name: [(y, round(base, 1), round(base + x, 1)) for y, base, x in zip(trace.y, trace.base, trace.x, strict=True)]
            for trace in figure.data}
    expected = {"waiting": [], "starting": [], "running": []}
    for bar in timeline.per_unit(NOW):
        expected[bar.what].append((bar.name, round(bar.start - ZERO - 0.2, 1), round(bar.end - ZERO - 0.2, 1)))
    assert bars == expected and len({t.marker.pattern.shape for t in figure.data}) == 3
    held = views.gantt_devices(timeline, SNAPSHOT, now=NOW).data[0]
    assert list(held.y) == [*("n1 GPU 0", "n1 GPU 1"), *(f"n2 GPU {i}" for i in range(4))] and list(held.text) == ["A"] * 2 + ["B"] * 4
    levels = views.occupancy(timeline, SNAPSHOT, now=NOW).data[0]
    assert list(zip(levels.y, levels.text, strict=True)) == [("n1 (of 4)", "2"), ("n2 (of 4)", "4")]


@pytest.mark.parametrize("figure", FIGURES)
def test_plotly_has_titles_units_labels_and_the_gap(figure, timeline):
    layout = figure(timeline, SNAPSHOT, now=NOW).layout
    assert layout.title.text and "simulated: run times, nodes and GPUs" in layout.title.subtitle.text
    assert "seconds" in layout.xaxis.title.text and layout.yaxis.title.text
    assert [(round(s.x0, 1), round(s.x1, 1)) for s in layout.shapes] == [(9.8, 11.8)]


@pytest.mark.parametrize("view", SVGS)
def test_svg_has_a_title_a_unit_labels_and_the_gap(view, timeline):
    svg = view(timeline, SNAPSHOT, now=NOW)
    assert "seconds after the first submission" in svg and "simulated: run times, nodes and GPUs" in svg and "real: waiting times" in svg
    assert ElementTree.fromstring(svg).findtext(f"{SVG}title") and "not seen from 9.8 s" in svg
    assert svg == view(timeline, SNAPSHOT, now=NOW)


@pytest.mark.parametrize("view", [*SVGS, *FIGURES])
def test_names_and_reasons_cannot_become_markup(view):
    evil = replace(unit("p", 2, "n1", known=False), name=EVIL, namespace=EVIL, reason=EVIL, message=EVIL, bound=ZERO, outcome=EVIL)
    named = replace(evil, id="2", shares=(replace(evil.shares[0], node=EVIL, devices=(EVIL, EVIL + "2")),), started=ZERO)
    timeline = fed([(evil, ZERO + 1), (named, ZERO + 2)])
    timeline.mark_gap(ZERO, ZERO + 1, EVIL)
    figure = view(timeline, SNAPSHOT, title=EVIL, labels=views.Labels(EVIL), now=NOW)
    # to_json of a figure escapes < itself: what counts is what plotly will read out of it.
    words = figure if isinstance(figure, str) else repr(figure.to_plotly_json())
    assert "<script" not in words and "<a" not in words


@pytest.mark.parametrize("view", [*SVGS, *FIGURES])
def test_nothing_happened_yet(view):
    view(Timeline(), SNAPSHOT, now=NOW)
    assert all("no" in text(Timeline(), NOW) for text in TEXTS)


def test_units_of_one_name_are_told_apart():
    timeline = fed([(replace(unit("p"), id="12345678-a"), ZERO), (replace(unit("p"), id="abcdefgh-b"), ZERO),
                    (replace(unit("p"), namespace="other", id="3"), ZERO), (unit("q"), ZERO)])
    said = titles(views.gantt_svg(timeline, now=NOW))
    assert sorted(said[f"r{i}"].split(":")[0] for i in range(4)) == ["lab/p 12345678", "lab/p abcdefgh", "other/p", "q"]


def test_what_is_left_out_is_said():
    timeline = fed([(unit(f"p{i}", 1, f"n{i}", bound=ZERO, started=ZERO), ZERO + 1) for i in range(70)])
    assert "10 earlier units are left out: see the text" in views.gantt_svg(timeline, now=NOW)
    assert "10 more GPUs are left out" in views.devices_svg(timeline, now=NOW) and "10 more nodes" in views.occupancy_svg(timeline, now=NOW)
    assert all("10 rows left out" in f(timeline, now=NOW).layout.title.subtitle.text for f in FIGURES)
    assert views.gantt_text(timeline, NOW).count("lab/p") == 70, "the text leaves out nothing"


def test_only_the_last_seconds(timeline):
    said = titles(views.gantt_svg(timeline, now=ZERO + 100, last=60))
    assert [said[key].split(":")[0] for key in said if re.fullmatch(r"r\d+", key)] == ["second", "big"]


@pytest.mark.parametrize("length, unit_name", [(30, "seconds"), (900, "minutes"), (10_000, "hours")])
def test_the_axis_speaks_in_fitting_units(length, unit_name):
    svg = views.gantt_svg(fed([(unit("p"), ZERO)]), now=ZERO + length)
    ticks = re.findall(r'class="s">([0-9.]+)</text>', svg)
    assert f"{unit_name} after the first submission" in svg and ticks[0] == "0" and 4 <= len(ticks) <= 11


@pytest.mark.parametrize("least, step", [(0.3, 0.5), (1, 1), (1.1, 2), (2.1, 5), (70, 100)])
def test_steps(least, step):
    assert _step(least) == pytest.approx(step)


def test_events_newest_first_in_the_picture_and_last_in_the_text():
    events = [Event(str(i), ZERO + i, ["Normal", "Warning"][i % 2], f"R{i}", "Pod p", f"<b>m{i}", count=1 + i) for i in range(5)]
    snapshot = ClusterSnapshot.of([], events=reversed(events))
    html, text = views.events_html(snapshot, last=3), views.events_text(snapshot, last=3)
    assert html.index("R4") < html.index("R3") < html.index("R2") and "R1" not in html
    assert "&lt;b&gt;m4 (×5)" in html and "<b>m" not in html
    assert html.count("ol-warn") == 1
    assert [line.split()[2] for line in text.splitlines() if line.startswith("22:13")] == ["R2", "R3", "R4"]
    assert re.search(r"22:13:22 +Normal +R2 +Pod p +<b>m2 \(x3\)$", text, re.MULTILINE)
    assert "no events" in views.events_text(ClusterSnapshot()) and "no events" in views.events_html(ClusterSnapshot())


@pytest.fixture
def gang():
    """Two of three pods at a barrier that is released at 11 s for one of them and never for the other, and a pod without one."""
    made = Timeline()
    for number, released in enumerate((11, None)):
        one = unit(f"w{number}", 2, "n1", 2 * number, bound=ZERO, started=ZERO + 1, phase="Running", barrier="g")
        made.apply(one, ZERO + 1.5)
        if released:
            made.apply(replace(one, released=ZERO + released), ZERO + released)
    made.apply(unit("alone", 1, "n2", bound=ZERO, started=ZERO + 1, phase="Running"), ZERO + 1.5)
    return made


def test_devices_held_in_vain_are_apart_in_the_bars_the_text_and_both_pictures(gang):
    now, snapshot = ZERO + 30, ClusterSnapshot.of([node("n1"), node("n2")])
    bars = [(bar.name, bar.what, bar.start - ZERO, bar.end - ZERO, bar.open) for bar in gang.per_device(now)]
    assert bars[:2] == [("w0", "vain", 0, 11, False), ("w0", "held", 11, 30, True)] and bars[-1] == ("alone", "held", 0, 30, True)
    assert [bar for bar in bars if bar[0] == "w1"] == [("w1", "vain", 0, 30, True)] * 2
    text = views.devices_text(gang, now, snapshot=snapshot)
    assert text.count("in vain: at its barrier") == 4 and text.splitlines()[0].endswith("use")
    picture = views.devices_svg(gang, snapshot, now=now)
    ElementTree.fromstring(picture)
    assert picture.count("in vain: at its barrier") == 2 * 4 and "held in vain, at a barrier" in picture
    held, vain = views.gantt_devices(gang, snapshot, now=now).data
    assert (len(held.y), len(vain.y)) == (3, 4) and vain.marker.pattern.shape == "x" and vain.name == "held in vain, at a barrier"


def test_a_unit_at_its_barrier_has_a_bar_of_its_own(gang):
    now = ZERO + 30
    bars = [(bar.name, bar.what, bar.start - ZERO, bar.end - ZERO, bar.open) for bar in gang.per_unit(now) if bar.what in ("barrier", "running")]
    assert bars == [("alone", "running", 1.5, 30, True), ("w0", "barrier", 1.5, 11, False), ("w0", "running", 11, 30, True),
                    ("w1", "barrier", 1.5, 30, True)]
    assert ">at its barrier<" in views.gantt_svg(gang, now=now)
    assert [trace.name for trace in views.gantt(gang, now=now).data] == ["waiting", "starting", "barrier", "running"]
    lines = [line.split() for line in views.gantt_text(gang, now).splitlines()]
    assert lines[0][-5:] == ["released", "s", "in", "vain", "GPU-seconds"]
    assert [line[-1] for line in lines[1:]] == ["0.0", "22.0", "60.0"]


def test_where_nothing_has_a_barrier_nothing_speaks_of_one(timeline):
    now = ZERO + 100
    for shown in (views.gantt_text(timeline, now), views.devices_text(timeline, now), views.gantt_svg(timeline, now=now),
                  views.devices_svg(timeline, now=now), views.gantt(timeline, now=now).to_json(), views.gantt_devices(timeline, now=now).to_json()):
        assert "barrier" not in shown and "vain" not in shown
