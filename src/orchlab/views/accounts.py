"""What orchlab.accounting has added up, as bars and as text: by team, by priority, and each eviction."""

from __future__ import annotations

from html import escape

from orchlab import accounting
from orchlab.accounting import Account, Sum
from orchlab.clock import Clock
from orchlab.views import svg
from orchlab.views.labels import Labels
from orchlab.views.svg import num, rect
from orchlab.views.text import plain, table

WIDTH, MARGIN, NAMES, ROW, TOP = 860, 14, 170, 30, 84
# Of a sum: what it is called, its figure, its fill in the palette and its hatch; what is held and useful comes first.
_PARTS = (("useful", lambda one: one.useful, 2, 0), ("overhead", lambda one: one.overhead, 4, 6), ("failed", lambda one: one.failed, 3, 1),
          ("lost to evictions", lambda one: one.lost, 6, 5))
# Shown only where a gang waited at a barrier.
_VAIN = ("held in vain", lambda one: one.vain, 1, 2)
LABELS = Labels("who waited, who was evicted", "run times and GPU-hours")
MODELLED = Labels("who waited, who was evicted", "run times and GPU-hours", "checkpoints")


def labels_of(found: Account) -> Labels:
    """Checkpoints are a supposition about the work."""
    return LABELS if found.checkpoint is None else MODELLED


def account_svg(found: Account, scale: Clock | None = None, title: str = "What it cost", labels: Labels | None = None,
                prefix: str | None = None) -> str:
    """A row of stacked bars for all, for each team and for each priority, in GPU-hours; for all with what nobody held. 860 px wide."""
    prefix = prefix or svg.ids(title)
    rows = _rows(found)
    most = max([found.total.held + (found.idle or 0.0), *(one.held for _, one in rows), 1e-9])
    out = [svg.text(MARGIN, 27, title, "h", WIDTH - 2 * MARGIN, 17), *svg.badges(labels or labels_of(found), WIDTH - MARGIN, 34)]
    left = float(MARGIN)
    for words, _, fill, hatch in _parts(found.total):
        out += _piece(left, 62, 16, 12, f"f{fill}", hatch, prefix)
        out.append(svg.text(left + 22, 72, words, "s"))
        left += 44 + svg.width_of(words, 10.5)
    out += [rect(left, 62, 16, 12, "free", 2), svg.text(left + 22, 72, "idle", "s")]
    room = WIDTH - 2 * MARGIN - NAMES - 110
    for number, (name, one) in enumerate(rows):
        idle = (found.idle or 0.0) if one is found.total else 0.0
        out.append(_row(number, name, one, idle, room / most, prefix, scale, _parts(found.total)))
    return svg.picture(title, WIDTH, TOP + max(1, len(rows)) * ROW + 10, prefix, out)


def account_text(found: Account, scale: Clock | None = None, labels: Labels | None = None) -> str:
    """The text twin: sums, the evictions one by one, and what is simulated time in it."""
    if not found.total.units:
        return f"{(labels or labels_of(found)).text()}\n\nnothing was submitted"
    heads = ["", "units", "mean wait", "longest wait", "evicted", "held", "useful", "lost", "failed", "overhead"]
    vain = [lambda one: one.vain] if found.total.vain else []
    heads += ["in vain"] if vain else []
    rows = [[name, f"{one.units}", accounting.minutes(one.mean_wait, scale), accounting.minutes(one.longest_wait, scale), f"{one.evictions}",
             *(accounting.hours(part, scale) for part in (one.held, one.useful, one.lost, one.failed, one.overhead, *(part(one) for part in vain)))]
            for name, one in _rows(found)]
    parts = [(labels or labels_of(found)).text(), summary(found, scale), table(heads, rows)]
    if found.evictions:
        rows = [[e.unit, e.priority, e.how, f"{e.devices} GPUs", f"ran {accounting.minutes(e.ran, scale)}",
                 f"lost {accounting.hours(e.lost, scale)}"] for e in found.evictions]
        parts.append(table(["evicted", "priority", "how", "held", "for", "cost"], rows))
    return "\n\n".join([*parts, "\n".join(accounting.notes(found, scale))])


def summary(found: Account, scale: Clock | None = None) -> str:
    """One line: how long it took, how much was used and how much of that was lost."""
    words = [f"{found.total.units} units in {accounting.minutes(found.makespan, scale)}", f"{found.total.evictions} evicted",
             f"{accounting.hours(found.total.lost, scale)} lost",
             *([f"{accounting.hours(found.total.vain, scale)} held in vain"] if found.total.vain else [])]
    if found.capacity:
        words += [f"{found.devices} GPUs held {accounting.share(found.utilisation)} of the time, usefully {accounting.share(found.goodput)}",
                  f"{accounting.hours(found.idle, scale)} idle"]
    return "; ".join(words)


def _parts(total: Sum) -> tuple[tuple, ...]:
    return (*_PARTS, _VAIN) if total.vain else _PARTS


def _rows(found: Account) -> list[tuple[str, Sum]]:
    return [("all", found.total), *((f"team {plain(one.name)}", one) for one in found.teams),
            *((f"priority {plain(one.name)}", one) for one in found.priorities)]


def _row(number: int, name: str, one: Sum, idle: float, scale_x: float, prefix: str, scale: Clock | None,
         parts: tuple[tuple, ...]) -> str:
    y, left = TOP + number * ROW, float(MARGIN + NAMES)
    words = [f"{part} {accounting.hours(figure(one), scale)}" for part, figure, _, _ in parts]
    words += [f"idle {accounting.hours(idle, scale)}"] if idle else []
    told = f"{name}: held {accounting.hours(one.held, scale)}; {', '.join(words)}; {one.evictions} evicted"
    out = [f'<g role="img" tabindex="-1" data-k="a{number}"><title>{escape(told)}</title>', svg.text(MARGIN, y + 15, name, "n", NAMES - 8),
           # Rows are equally wide for the arrow keys, whatever their bars are.
           f'<rect fill="none" x="{MARGIN}" y="{num(y)}" width="{WIDTH - 2 * MARGIN}" height="{ROW - 10}"/>']
    for _, figure, fill, hatch in parts:
        wide = figure(one) * scale_x
        if wide > 0:
            out += _piece(left, y, wide, ROW - 10, f"f{fill}", hatch, prefix)
            left += wide
    if idle:
        out.append(rect(left, y, idle * scale_x, ROW - 10, "free", 2))
        left += idle * scale_x
    out.append(svg.text(left + 6, y + 15, accounting.hours(one.held, scale), "s"))
    return "".join([*out, "</g>"])


def _piece(x: float, y: float, wide: float, high: float, css: str, hatch: int, prefix: str) -> list[str]:
    box = f'x="{num(x)}" y="{num(y)}" width="{num(wide)}" height="{num(high)}" rx="2"'
    return [f'<rect class="bar {css}" {box}/>'] + ([f'<rect fill="url(#{prefix}p{hatch})" {box}/>'] if hatch else [])
