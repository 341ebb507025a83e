"""Horizontal bars over time as SVG: rows with a name, bars that can be reached by the keyboard, gaps where nothing was seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from orchlab.timeline import Gap
from orchlab.views import svg
from orchlab.views.cards import FILLS
from orchlab.views.labels import Labels
from orchlab.views.style import Style
from orchlab.views.svg import num, rect, text, width_of
from orchlab.views.text import plain

WIDTH, MARGIN, ROW, BAR, TOP = 960, 14, 26, 20, 78
# From this length on, in seconds: the axis' unit in seconds and its name.
_UNITS = ((7200, 3600, "hours"), (600, 60, "minutes"), (0, 1, "seconds"))
# CSS of what waits at a barrier: a unit in a row of its own, and who holds a device (among bars that have a unit's look, which is never grey).
BARRIER, VAIN = "f1 crossed", "waiting crossed"
_PATTERN = {"waiting": 1, "starting": 6, BARRIER: 5, VAIN: 5}


@dataclass(frozen=True, slots=True)
class Bar:
    """From `start` to `end` (seconds since 1970), `height` from 0 to 1. It has a unit's `look` or a CSS class; `mark` is written in it."""

    start: float
    end: float
    words: str
    look: Style | None = None
    css: str = ""
    mark: str = ""
    height: float = 1.0


@dataclass(slots=True)
class Row:
    name: str
    words: str
    bars: list[Bar] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Axis:
    """Shows `start` to `end` (seconds since 1970), counted from `zero`, between `left` and `right` (pixels)."""

    start: float
    end: float
    zero: float
    left: float
    right: float

    def x(self, moment: float) -> float:
        inside = min(max(moment, self.start), self.end) - self.start
        return self.left + inside * (self.right - self.left) / (self.end - self.start)

    def shows(self, start: float, end: float) -> bool:
        return end >= self.start and start <= self.end


def bars_svg(title: str, labels: Labels, rows: Sequence[Row], span: tuple[float, float], zero: float, gaps: Sequence[Gap], prefix: str,
             legend: Sequence[tuple[str, str]] = (), note: str = "", empty: str = "nothing yet") -> str:
    """The rows as one SVG element, 960 px wide. `span` is what the axis shows, `zero` the moment from which it counts; `legend` pairs
    CSS classes with words."""
    name_width = min(260.0, max([90.0, *(width_of(row.name) + 14 for row in rows)]))
    axis = Axis(span[0], max(span[1], span[0] + 1), zero, MARGIN + name_width, WIDTH - MARGIN - 4)
    bottom = TOP + max(1, len(rows)) * ROW
    out = [text(MARGIN, 27, title, "h", WIDTH - 2 * MARGIN, 17), *svg.badges(labels, WIDTH - MARGIN, 34), *_legend(legend, note, prefix)]
    out += _ticks(axis, bottom)
    out += [_row(row, number, axis, name_width, prefix) for number, row in enumerate(rows)]
    out += [_gap(gap, axis, bottom) for gap in gaps if rows and axis.shows(gap.start, gap.end)]
    if not rows:
        out.append(text(axis.left + 8, TOP + 17, empty))
    return svg.picture(title, WIDTH, bottom + 42, prefix, out)


def _row(row: Row, number: int, axis: Axis, name_width: float, prefix: str) -> str:
    y = TOP + number * ROW
    out = [f'<g role="group" tabindex="-1" data-k="r{number}"><title>{escape(plain(row.words))}</title>',
           text(MARGIN, y + 17, row.name, "", name_width - 8)]
    for place, bar in enumerate(row.bars):
        if axis.shows(bar.start, bar.end):
            words = escape(plain(bar.words))
            out.append(f'<g role="img" tabindex="-1" data-k="r{number}/{place}"><title>{words}</title>{_bar(bar, axis, y, prefix)}</g>')
    return "".join([*out, "</g>"])


def _bar(bar: Bar, axis: Axis, y: float, prefix: str) -> str:
    # A bar that is shorter than a pixel or two would not be seen.
    left, wide, high = axis.x(bar.start), max(axis.x(bar.end) - axis.x(bar.start), 2.0), max(BAR * bar.height, 1.0)
    box = f'x="{num(left)}" y="{num(y + 3 + BAR - high)}" width="{num(wide)}" height="{num(high)}" rx="2"'
    css = f"f{FILLS[bar.look.fill]}" if bar.look else bar.css
    pattern = bar.look.pattern if bar.look else _PATTERN.get(bar.css, 0)
    shapes = f'<rect class="bar {css}" {box}/>' + (f'<rect fill="url(#{prefix}p{pattern})" {box}/>' if pattern else "")
    if bar.mark and wide > width_of(bar.mark, 12, bold=True) + 4:
        ink = f"code i{FILLS[bar.look.fill]}" if bar.look else "mark"
        shapes += f'<text class="{ink}" x="{num(left + wide / 2)}" y="{num(y + 17)}">{escape(bar.mark)}</text>'
    return shapes


def _ticks(axis: Axis, bottom: float) -> list[str]:
    unit, name = next((unit, name) for least, unit, name in _UNITS if axis.end - axis.zero >= least)
    step = _step((axis.end - axis.start) / unit / 9)
    number = -int(-(axis.start - axis.zero) / unit // step)
    out = [text(axis.left, bottom + 33, f"{name} after the first submission", "s")]
    while (moment := axis.zero + number * step * unit) <= axis.end:
        label = f"{number * step:g}"
        out.append(f'<path class="grid" d="M{num(axis.x(moment))},{TOP}V{num(bottom)}"/>')
        out.append(text(axis.x(moment) - width_of(label, 10.5) / 2, bottom + 15, label, "s"))
        number += 1
    return out


def _step(least: float) -> float:
    """The smallest of …, 0.1, 0.2, 0.5, 1, 2, 5, 10, … that is not below `least`."""
    power = 1e-3
    while True:
        for digit in (1, 2, 5):
            if digit * power >= least:
                return digit * power
        power *= 10


def _legend(legend: Sequence[tuple[str, str]], note: str, prefix: str) -> list[str]:
    out, x = [], float(MARGIN)
    for css, words in legend:
        box = f'x="{num(x)}" y="40" width="16" height="14" rx="2"'
        hatch = f'<rect fill="url(#{prefix}p{_PATTERN[css]})" {box}/>' if css in _PATTERN else ""
        out.append(f'<g><rect class="bar {css}" {box}/>{hatch}{text(x + 22, 51, words, "s")}</g>')
        x += 36 + width_of(words, 10.5)
    return [*out, *([text(x, 51, note, "s")] if note else [])]


def _gap(gap: Gap, axis: Axis, bottom: float) -> str:
    words = f"gap: not seen from {gap.start - axis.zero:.1f} s to {gap.end - axis.zero:.1f} s: {gap.why}"
    left, wide = axis.x(gap.start), max(axis.x(gap.end) - axis.x(gap.start), 2.0)
    return (f'<g role="img" tabindex="-1" data-k="gap{num(gap.start)}"><title>{escape(plain(words))}</title>'
            f'{rect(left, TOP, wide, bottom - TOP, "gap")}{text(left, TOP - 3, "gap", "s")}</g>')
