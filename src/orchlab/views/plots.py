"""Charts over time with plotly, to zoom into: Gantt per unit and per GPU, GPUs held per node. Every colour has a pattern, a letter or a
number in it. Time runs in seconds after the first submission. Names and messages come from the cluster and are escaped, since plotly
reads some HTML.

Live views draw the same with charts.py instead: a FigureWidget sends 5 MB of script each, loses what changes while it is first drawn, and
its bars can't be reached by the keyboard.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from orchlab.snapshot import ClusterSnapshot
from orchlab.timeline import Interval, Timeline
from orchlab.views import labels as made
from orchlab.views.charts import MOST_ROWS, looks_of, names_of, steps_of
from orchlab.views.labels import Labels
from orchlab.views.style import PATTERNS, Styles
from orchlab.views.text import device_names, plain

# What a unit does, its colour and pattern.
STAGES = {"waiting": ("#BBBBBB", "/"), "starting": ("#F0E442", "."), "barrier": ("#E69F00", "x"), "running": ("#56B4E9", "")}
# A device that was held in vain, until its holder's barrier was released: no unit's look is grey.
VAIN = ("#BBBBBB", "x", "#000000")
_LINE = {"color": "#333333", "width": 1}
_HOVER = "from %{customdata[1]} s to %{customdata[2]} s%{customdata[3]}<extra></extra>"


def gantt(timeline: Timeline, snapshot: ClusterSnapshot | None = None, title: str = "Who waited, who ran",
          labels: Labels | None = None, now: float | None = None) -> go.Figure:
    """A row per unit: waiting (and why), starting, at its barrier, running. The last 60 units that were submitted."""
    now = time.time() if now is None else now
    zero, end = timeline.span(now)
    bars = timeline.per_unit(now)
    units = list(dict.fromkeys((bar.unit, *bar.row) for bar in bars))
    names = {unit: _safe(name) for unit, name in list(names_of(units).items())[-MOST_ROWS:]}
    figure = go.Figure()
    for stage, (colour, pattern) in STAGES.items():
        mine = [bar for bar in bars if bar.what == stage and bar.unit in names]
        if stage == "barrier" and not mine:
            continue
        figure.add_bar(
            name=stage, orientation="h", **_bars(mine, [names[b.unit] for b in mine], zero), hovertemplate=f"%{{y}}: {stage} {_HOVER}",
            customdata=[_said(b, b.text, zero) for b in mine],
            marker={"color": colour, "line": _LINE, "pattern": {"shape": pattern, "fgcolor": "#333333", "size": 6}})
    heads = labels or made.of_times(snapshot)
    _lay_out(figure, title, heads, timeline, zero, end, list(names.values()), "pod or job", len(units) - len(names))
    return figure


def gantt_devices(timeline: Timeline, snapshot: ClusterSnapshot | None = None, title: str = "Who held each GPU",
                  labels: Labels | None = None, now: float | None = None, styles: Styles | None = None) -> go.Figure:
    """A row per GPU that was held, a bar for who held it; grey and crossed while it was held in vain, at a barrier. The first 60
    GPUs; a snapshot gives them the names that the map has."""
    now = time.time() if now is None else now
    zero, end = timeline.span(now)
    looks_by_unit = looks_of(timeline, styles or Styles())
    bars = timeline.per_device(now)
    rows = device_names({bar.row for bar in bars}, snapshot)
    names = {row: _safe(rows[row]) for row in list(rows)[:MOST_ROWS]}
    mine = [bar for bar in bars if bar.row in names]
    figure = go.Figure()
    for vain in (False, True) if any(bar.what == "vain" for bar in mine) else (False,):
        _add_holders(figure, [bar for bar in mine if (bar.what == "vain") == vain], names, zero, looks_by_unit, vain)
    heads = labels or made.of_times(snapshot)
    _lay_out(figure, title, heads, timeline, zero, end, list(names.values()), "GPU", len(rows) - len(names))
    return figure


def _add_holders(figure: go.Figure, mine: list[Interval], names: dict[tuple, str], zero: float, looks_by_unit: dict, vain: bool) -> None:
    looks = [looks_by_unit[b.unit] for b in mine]
    figure.add_bar(
        name="held in vain, at a barrier" if vain else "held", orientation="h", showlegend=vain, **_bars(mine, [names[b.row] for b in mine], zero),
        text=[look.code for look in looks], textposition="inside", insidetextanchor="middle", textangle=0,
        textfont={"color": [VAIN[2] if vain else look.ink for look in looks]},
        customdata=[_said(b, "ended in a gap, at the latest then" if b.uncertain else "in vain: at its barrier" if vain else b.text, zero, b.name)
                    for b in mine],
        hovertemplate=f"%{{y}}: %{{text}} %{{customdata[0]}} {_HOVER}",
        marker={"color": VAIN[0] if vain else [look.fill for look in looks], "line": _LINE,
                "pattern": {"shape": VAIN[1] if vain else [PATTERNS[look.pattern][0] for look in looks], "fgcolor": "#333333", "size": 6}})


def occupancy(timeline: Timeline, snapshot: ClusterSnapshot | None = None, title: str = "GPUs held on each node",
              labels: Labels | None = None, now: float | None = None) -> go.Figure:
    """A row per node on which GPUs were held: how many, as a number and a shade. The first 60 nodes."""
    now = time.time() if now is None else now
    zero, end = timeline.span(now)
    steps = steps_of(timeline, now)
    spans = [(node, *piece) for node in list(steps)[:MOST_ROWS] for piece in steps[node]]
    total = {node.name: sum(node.capacity.values()) for node in (snapshot.nodes if snapshot else ())}
    names = {node: _safe(f"{node} (of {total[node]})" if node in total else node) for node in list(steps)[:MOST_ROWS]}
    top = max([*total.values(), *(level for *_, level in spans), 1])
    figure = go.Figure()
    figure.add_bar(
        name="held", orientation="h", showlegend=False, y=[names[n] for n, *_ in spans], base=[at - zero for _, at, _, _ in spans],
        x=[until - at for _, at, until, _ in spans], text=[str(level) for *_, level in spans], textposition="inside",
        insidetextanchor="middle", textangle=0,
        customdata=[[level, f"{at - zero:.1f}", f"{until - zero:.1f}", ""] for _, at, until, level in spans],
        hovertemplate=f"%{{y}}: %{{customdata[0]}} held {_HOVER}",
        marker={"color": [level for *_, level in spans], "cmin": 0, "cmax": top, "colorscale": "Cividis", "line": _LINE,
                "showscale": False})
    heads = labels or made.of_times(snapshot)
    _lay_out(figure, title, heads, timeline, zero, end, list(names.values()), "node", len(steps) - len(names))
    return figure


def _safe(words: str) -> str:
    return escape(plain(words))


def _bars(bars: Sequence[Interval], rows: list[str], zero: float) -> dict[str, list]:
    # A bar without length would not be seen at all.
    return {"y": rows, "base": [bar.start - zero for bar in bars], "x": [max(bar.end - bar.start, 0.05) for bar in bars]}


def _said(bar: Interval, words: str, zero: float, name: str = "") -> list[str]:
    lines = "<br>".join(escape(line) for line in textwrap.wrap(plain(words), 90))
    still = " (goes on)" if bar.open else ""
    return [_safe(name), f"{bar.start - zero:.1f}", f"{bar.end - zero:.1f}", still + (f"<br>{lines}" if lines else "")]


def _lay_out(figure: go.Figure, title: str, labels: Labels, timeline: Timeline, zero: float, end: float, rows: list[str], row_title: str,
             left_out: int) -> None:
    more = f" · {left_out} rows left out" if left_out > 0 else ""
    length = max(end - zero, 1.0)
    gaps = [gap for gap in timeline.gaps() if gap.end >= zero and rows]
    figure.update_layout(
        # White in light and dark themes alike: the kernel can't know which one the page has.
        template="plotly_white", barmode="overlay", bargap=0.25, height=150 + 26 * max(2, len(rows)),
        margin={"l": 10, "r": 10, "t": 80, "b": 50},
        title={"text": _safe(title), "subtitle": {"text": _safe(labels.text()) + more, "font": {"size": 12}}},
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
        xaxis={"title": {"text": "seconds after the first submission"}, "range": [0, length * 1.02]},
        yaxis={"title": {"text": row_title}, "automargin": True, "autorange": False, "range": [max(len(rows), 1) - 0.5, -0.5],
               "type": "category", "categoryorder": "array", "categoryarray": rows, "tickmode": "array", "tickvals": rows},
        shapes=[{"type": "rect", "xref": "x", "yref": "paper", "x0": gap.start - zero, "x1": gap.end - zero, "y0": 0, "y1": 1,
                 "fillcolor": "#D55E00", "opacity": 0.18, "line": {"width": 1, "dash": "dot", "color": "#D55E00"}} for gap in gaps],
        annotations=[{"xref": "x", "yref": "paper", "x": gap.start - zero, "y": 1, "text": "gap", "showarrow": False, "xanchor": "left",
                      "yanchor": "bottom", "font": {"size": 10, "color": "#8a3c00"}, "hovertext": _safe(gap.why)} for gap in gaps])
