"""Charts over time as SVG, for live views: quick to draw, with a keyboard path and the page's own theme. plots.py has them in plotly."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from orchlab.snapshot import ClusterSnapshot
from orchlab.timeline import Interval, Timeline
from orchlab.views import labels as made
from orchlab.views import svg
from orchlab.views.bars import BARRIER, VAIN, Bar, Row, bars_svg
from orchlab.views.labels import Labels
from orchlab.views.style import Styles
from orchlab.views.text import device_names

MOST_ROWS = 60


def gantt_svg(timeline: Timeline, snapshot: ClusterSnapshot | None = None, title: str = "Who waited, who ran",
              labels: Labels | None = None, now: float | None = None, last: float | None = None, prefix: str | None = None) -> str:
    """A row per unit: waiting (and why), starting, at its barrier, running. The 60 units submitted last; `last` shows only so many seconds."""
    now = time.time() if now is None else now
    zero, span = _span(timeline, now, last)
    bars = [bar for bar in timeline.per_unit(now) if bar.end >= span[0]]
    names = names_of(list(dict.fromkeys((bar.unit, *bar.row) for bar in bars)))
    keep = list(names)[-MOST_ROWS:]
    rows = []
    for unit in keep:
        mine = [bar for bar in bars if bar.unit == unit]
        words = [f"{bar.what} {_times(bar, zero)}" + (f" ({bar.text})" if bar.text else "") for bar in mine]
        rows.append(Row(names[unit], f"{names[unit]}: {'; '.join(words)}", [
            Bar(bar.start, bar.end, f"{names[unit]} {text}", css=BARRIER if bar.what == "barrier" else bar.what)
            for bar, text in zip(mine, words, strict=True)]))
    legend = [("waiting", "waiting"), ("starting", "on a node, starting"), ("running", "running")]
    if any(bar.what == "barrier" for bar in bars):
        legend.insert(2, (BARRIER, "at its barrier"))
    return bars_svg(title, labels or made.of_times(snapshot), rows, span, zero, timeline.gaps(), prefix or svg.ids(title), legend,
                    _left_out(len(names) - len(keep), "earlier units"), "nothing was submitted yet")


def devices_svg(timeline: Timeline, snapshot: ClusterSnapshot | None = None, title: str = "Who held each GPU",
                labels: Labels | None = None, now: float | None = None, last: float | None = None, prefix: str | None = None,
                styles: Styles | None = None) -> str:
    """A row per GPU that was held, a bar for who held it, in the look it has on the map; grey and hatched while it was held in vain, at a
    barrier that was not released. The first 60 GPUs by name."""
    now = time.time() if now is None else now
    zero, span = _span(timeline, now, last)
    looks = looks_of(timeline, styles or Styles())
    bars = [bar for bar in timeline.per_device(now) if bar.end >= span[0]]
    names = device_names({bar.row for bar in bars}, snapshot)
    rows = {}
    for row in list(names)[:MOST_ROWS]:
        mine = [bar for bar in bars if bar.row == row]
        words = [f"{looks[bar.unit].code} {bar.name} {_times(bar, zero)}" + (", in vain: at its barrier" if bar.what == "vain" else "")
                 + (", ended in a gap" if bar.uncertain else "") for bar in mine]
        rows[row] = Row(names[row], f"{names[row]}: {'; '.join(words)}", [
            Bar(bar.start, bar.end, f"{names[row]}: {text}", None if bar.what == "vain" else looks[bar.unit], VAIN, looks[bar.unit].code)
            for bar, text in zip(mine, words, strict=True)])
    return bars_svg(title, labels or made.of_times(snapshot), list(rows.values()), span, zero, timeline.gaps(), prefix or svg.ids(title),
                    [(VAIN, "held in vain, at a barrier")] if any(bar.what == "vain" for bar in bars) else (),
                    note=_left_out(len(names) - len(rows), "more GPUs"), empty="no GPU was held yet")


def occupancy_svg(timeline: Timeline, snapshot: ClusterSnapshot | None = None, title: str = "GPUs held on each node",
                  labels: Labels | None = None, now: float | None = None, last: float | None = None, prefix: str | None = None) -> str:
    """A row per node on which GPUs were held: how many, as a number and as the bar's height. The first 60 nodes."""
    now = time.time() if now is None else now
    zero, span = _span(timeline, now, last)
    total = {node.name: sum(node.capacity.values()) for node in (snapshot.nodes if snapshot else ())}
    rows = []
    for node, pieces in steps_of(timeline, now).items():
        top = max(total.get(node, 0), *(level for *_, level in pieces))
        name = f"{node} (of {total[node]})" if node in total else node
        words = [f"{level} held from {at - zero:.1f} s to {until - zero:.1f} s" for at, until, level in pieces]
        rows.append(Row(name, f"{name}: {'; '.join(words)}", [
            Bar(at, until, f"{node}: {text}", css="held", mark=str(level), height=level / top)
            for (at, until, level), text in zip(pieces, words, strict=True)]))
    return bars_svg(title, labels or made.of_times(snapshot), rows[:MOST_ROWS], span, zero, timeline.gaps(), prefix or svg.ids(title),
                    [("held", "height: GPUs held")], _left_out(len(rows) - MOST_ROWS, "more nodes"), "no GPU was held yet")


def steps_of(timeline: Timeline, now: float) -> dict[str, list[tuple[float, float, int]]]:
    """Per node on which anything was held: (from, to, devices) wherever it was above 0."""
    answer = {}
    for node, levels in timeline.occupancy(now).items():
        ends = [*(at for at, _ in levels[1:]), max(now, levels[-1][0])]
        pieces = [(at, until, level) for (at, level), until in zip(levels, ends, strict=True) if level]
        if pieces:
            answer[node] = pieces
    return answer


def looks_of(timeline: Timeline, styles: Styles) -> dict:
    """The look of each unit by its id, given in the order of submission."""
    return {r.id: styles.of(r.group if styles.by == "group" and r.group else r.id) for r in timeline.records()}


def names_of(units: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """Row names by unit id, of (id, namespace, name): the name where it is the only one, else with namespace, else with part of the id."""
    names = Counter(name for _, _, name in units)
    full = Counter((namespace, name) for _, namespace, name in units)
    return {unit: name if names[name] == 1 else f"{namespace}/{name}" + ("" if full[namespace, name] == 1 else f" {unit[:8]}")
            for unit, namespace, name in units}


def _span(timeline: Timeline, now: float, last: float | None) -> tuple[float, tuple[float, float]]:
    zero, end = timeline.span(now)
    return zero, (zero if last is None else max(zero, end - last), end)


def _times(bar: Interval, zero: float) -> str:
    return f"from {bar.start - zero:.1f} s" + (" on" if bar.open else f" to {bar.end - zero:.1f} s")


def _left_out(number: int, what: str) -> str:
    return f"{number} {what} are left out: see the text" if number > 0 else ""
