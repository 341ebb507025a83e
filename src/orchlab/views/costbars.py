"""What sharing a GPU costs its clients, from the model in orchlab.gpus.sharing_cost: bars side by side, and the same as a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from orchlab.errors import BadInput
from orchlab.gpus.sharing_cost import WAYS, Cost
from orchlab.views import svg
from orchlab.views.labels import Labels
from orchlab.views.style import PATTERNS
from orchlab.views.svg import num, rect
from orchlab.views.text import table

WIDTH, MARGIN, NAMES, ROW, TOP, GAP = 860, 14, 110, 34, 92, 30
LABELS = Labels(modelled="all figures; no GPU was measured")
NAME = {"whole": "whole GPUs", "time-slicing": "time-slicing", "mps": "MPS", "mig": "MIG"}
# Of a cost: the heading and the figure.
_CHARTS = (("latency of one client's request, ms", lambda cost: cost.latency_ms), ("requests of all clients per second and GPU",
                                                                                 lambda cost: cost.total_throughput / cost.gpus))


def cost_svg(costs: Sequence[Cost | BadInput], title: str, labels: Labels = LABELS, prefix: str | None = None) -> str:
    """Two bar charts, a row per way of sharing in the order of WAYS; a way that is refused says why. 860 px wide."""
    prefix = prefix or svg.ids(title)
    out = [svg.text(MARGIN, 27, title, "h", WIDTH - 2 * MARGIN, 17), *svg.badges(labels, WIDTH - MARGIN, 34)]
    room = (WIDTH - 2 * MARGIN - NAMES - GAP) / 2
    for column, (heading, figure) in enumerate(_CHARTS):
        left = MARGIN + NAMES + column * (room + GAP)
        out.append(svg.text(left, TOP - 12, heading, "s"))
        most = max((figure(cost) for cost in costs if isinstance(cost, Cost)), default=1.0)
        for number, cost in enumerate(costs):
            y = TOP + number * ROW
            if isinstance(cost, Cost):
                out.append(_bar(number, figure(cost), most, left, y, room, f"{NAME[cost.way]}: {heading}: {figure(cost):.1f}", prefix))
            elif column == 0:
                out.append(svg.text(left, y + 17, str(cost.problem), "s", 2 * room + GAP, 10.5))
    for number, way in enumerate(WAYS[:len(costs)]):
        out.append(svg.text(MARGIN, TOP + number * ROW + 17, NAME[way], "n"))
    return svg.picture(title, WIDTH, TOP + len(costs) * ROW + 12, prefix, out)


def _bar(number: int, value: float, most: float, left: float, y: float, room: float, words: str, prefix: str) -> str:
    wide = max(2.0, (room - 70) * value / most)
    box = f'x="{num(left)}" y="{num(y)}" width="{num(wide)}" height="{ROW - 10}" rx="2"'
    pattern = number % len(PATTERNS)
    hatch = f'<rect fill="url(#{prefix}p{pattern})" {box}/>' if pattern else ""
    return (f'<g role="img" tabindex="-1" data-k="{escape(words.partition(":")[0])}{num(left)}"><title>{escape(words)}</title>'
            f'{rect(left, y, wide, ROW - 10, f"bar f{number}", 2)}{hatch}{svg.text(left + wide + 6, y + 17, f"{value:.1f}")}</g>')


def cost_text(costs: Sequence[Cost | BadInput], ways: Sequence[str] = WAYS) -> str:
    """The text twin: latency, slowdown against being alone, throughput, memory and isolation of each way."""
    rows = []
    for way, cost in zip(ways, costs, strict=True):
        if isinstance(cost, Cost):
            rows.append([NAME[way], f"{cost.gpus}", f"{cost.latency_ms:.1f}", f"{cost.slowdown:.1f}x", f"{cost.throughput:.1f}",
                         f"{cost.total_throughput / cost.gpus:.1f}", f"{cost.memory_mib}", "yes" if cost.memory_isolated else "no",
                         "yes" if cost.fault_isolated else "no", cost.detail])
        else:
            rows.append([NAME[way], "-", "-", "-", "-", "-", "-", "-", "-", str(cost.problem)])
    heads = ["", "GPUs", "latency ms", "slowdown", "requests/s", "all/s and GPU", "memory MiB", "own memory", "faults stay", "detail"]
    return f"{LABELS.text()}\n\n{table(heads, rows)}"
