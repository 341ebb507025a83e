"""Text twins: what the pictures show, as plain aligned text in a fixed order. For screen readers, tests and diffs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from orchlab.snapshot import ClusterSnapshot, Node, Unit, natural
from orchlab.timeline import Timeline
from orchlab.views import labels as made
from orchlab.views.labels import Labels
from orchlab.views.slots import slots
from orchlab.views.style import Styles


def map_text(snapshot: ClusterSnapshot, styles: Styles | None = None, labels: Labels | None = None) -> str:
    """Nodes with zone, rack and state, a letter per GPU cell (. free, x not allocatable), then who the letters are."""
    styles = (styles or Styles()).meet(snapshot)
    cells = slots(snapshot, styles)
    rows = [[node.zone or "-", node.rack or "-", node.name, node.product or "-",
             _cells(cells[node.name], styles), state_words(node), ", ".join(node.taints) or "-"] for node in by_place(snapshot)]
    parts = [(labels or made.of_map(snapshot)).text(), table(["zone", "rack", "node", "GPU", "cells", "state", "taints"], rows)]
    placed = snapshot.placed()
    if placed:
        rows = [[styles.of(styles.key(u)).code, unit_name(u), u.phase, ", ".join(u.nodes), str(u.devices_wanted)] for u in placed]
        parts.append(table(["code", "unit", "phase", "node", "GPUs"], rows))
    waiting = snapshot.waiting()
    parts.append(f"waiting: {', '.join(f'{unit_name(u)} ({u.devices_wanted} GPUs)' for u in waiting) or 'nothing'}")
    return "\n\n".join([*parts, *_trouble(snapshot)])


def pending_text(snapshot: ClusterSnapshot, labels: Labels | None = None) -> str:
    """Each unit without a node or not yet running, and why, word for word."""
    lines = [(labels or made.of_words(snapshot)).text()]
    units = pending(snapshot)
    for unit in units:
        where = f" on {', '.join(unit.nodes)}" if unit.nodes else ""
        lines.append(f"{unit_name(unit)} wants {wants(unit)}{where}: {why(unit)}")
    return "\n".join([*lines, *([] if units else ["nothing is waiting"]), *_trouble(snapshot)])


def events_text(snapshot: ClusterSnapshot, last: int = 20, labels: Labels | None = None) -> str:
    """The last events, oldest first, times in UTC."""
    rows = [[clock(e.at), e.type, e.reason, e.about, f"{e.message} (x{e.count})" if e.count > 1 else e.message]
            for e in snapshot.events[-last:]]
    body = table(["time (UTC)", "type", "reason", "about", "message"], rows) if rows else "no events"
    return "\n\n".join([(labels or made.of_words(snapshot)).text(), body, *_trouble(snapshot)])


def gantt_text(timeline: Timeline, now: float | None = None, labels: Labels | None = None) -> str:
    """A row per unit; times in seconds after the first submission."""
    now = time.time() if now is None else now
    columns = ["unit", "wants", "submitted", "waited", "bound", "started", "ended", "outcome", "node", "device-seconds", "waits for"]
    found = timeline.to_rows(now)
    heads = ["unit", "GPUs", "submitted s", "waited s", "bound s", "started s", "ended s", "outcome", "node", "GPU-seconds", "waits for"]
    if any("barrier" in row for row in found):
        columns, heads = [*columns, "released", "in vain"], [*heads, "released s", "in vain GPU-seconds"]
    rows = [[_value(row[c]) for c in columns] for row in found]
    zero, _ = timeline.span(now)
    body = table(heads, rows) if rows else "nothing was submitted"
    return "\n\n".join([*([labels.text()] if labels else []), body, *_gaps(timeline, zero)])


def devices_text(timeline: Timeline, now: float | None = None, labels: Labels | None = None,
                 snapshot: ClusterSnapshot | None = None) -> str:
    """A row per time that a device was held; times in seconds after the first submission. A snapshot gives devices their place."""
    now = time.time() if now is None else now
    zero, _ = timeline.span(now)
    bars = timeline.per_device(now)
    names = device_names({bar.row for bar in bars}, snapshot)
    order = {row: place for place, row in enumerate(names)}
    bars = sorted(bars, key=lambda bar: (order[bar.row], bar.start))
    gangs = {record.id for record in timeline.records() if record.barrier}
    rows = [[names[bar.row], bar.row[1], bar.name, f"{bar.start - zero:.1f}", "goes on" if bar.open else f"{bar.end - zero:.1f}",
             "ended in a gap, at the latest then" if bar.uncertain else bar.text]
            for bar in bars]
    heads = ["GPU", "device", "held by", "from s", "to s", "outcome"]
    if any(bar.what == "vain" for bar in bars):
        heads.append("use")
        for row, bar in zip(rows, bars, strict=True):
            row.append("in vain: at its barrier" if bar.what == "vain" else "released" if bar.unit in gangs else "")
    body = table(heads, rows) if rows else "no GPU was held"
    return "\n\n".join([*([labels.text()] if labels else []), body, *_gaps(timeline, zero)])


def occupancy_text(timeline: Timeline, now: float | None = None, labels: Labels | None = None) -> str:
    """Per node: GPU-seconds, the most held at once, and the steps as seconds=GPUs."""
    now = time.time() if now is None else now
    zero, _ = timeline.span(now)
    seconds = timeline.device_seconds("node", now)
    rows = [[node, f"{seconds.get(node, 0.0):.1f}", str(max(level for _, level in steps)),
             " ".join(f"{at - zero:.1f}={level}" for at, level in steps)]
            for node, steps in timeline.occupancy(now).items() if any(level for _, level in steps)]
    body = table(["node", "GPU-seconds", "most at once", "steps (seconds=GPUs)"], rows) if rows else "no GPU was held"
    return "\n\n".join([*([labels.text()] if labels else []), body, *_gaps(timeline, zero)])


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by spaces, no trailing blanks. Control characters in a cell (a message's newline, say) become spaces."""
    lines = [[plain(cell) for cell in row] for row in [heads, *rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def plain(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def by_place(snapshot: ClusterSnapshot) -> list[Node]:
    return sorted(snapshot.nodes, key=lambda n: (natural(n.zone), natural(n.rack), natural(n.name)))


def device_names(rows: set[tuple[str, ...]], snapshot: ClusterSnapshot | None) -> dict[tuple[str, ...], str]:
    """Names of (node, device) in order: by place where the node says which devices it has, else by id."""
    nodes = snapshot.nodes if snapshot else ()
    places = {(node.name, device): place for node in nodes for ids in node.devices.values() for place, device in enumerate(ids)}
    order = sorted(rows, key=lambda row: (natural(row[0]), places.get(row, -1), natural(row[1])))
    return {row: f"{row[0]} GPU {places[row]}" if row in places else f"{row[0]} {row[1]}" for row in order}


def pending(snapshot: ClusterSnapshot) -> list[Unit]:
    """Waiting units, oldest first, then those that have a node but don't run yet."""
    return snapshot.waiting() + [u for u in snapshot.units if u.stage == "starting"]


def unit_name(unit: Unit) -> str:
    return plain(f"{unit.namespace}/{unit.name}" if unit.namespace else unit.name)


def wants(unit: Unit) -> str:
    return " + ".join(f"{count} {resource}" for resource, count in unit.wanted.items()) or "no GPU"


def why(unit: Unit) -> str:
    return plain(f"{unit.reason}: {unit.message}".strip(": ")) or ("not running yet" if unit.nodes else "no reason given yet")


def state_words(node: Node) -> str:
    return ", ".join(["ready" if node.ready else "NOT READY", *(["CORDONED"] if node.cordoned else [])])


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at))


def _cells(cells: list, styles: Styles) -> str:
    return " ".join(styles.of(styles.key(c.unit)).code if c.unit else "." if c.usable else "x" for c in cells) or "-"


def _value(value: object) -> str:
    return "" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _gaps(timeline: Timeline, zero: float) -> list[str]:
    return [f"gap: not seen from {gap.start - zero:.1f} s to {gap.end - zero:.1f} s: {plain(gap.why)}" for gap in timeline.gaps()]


def _trouble(snapshot: ClusterSnapshot) -> list[str]:
    return [f"may be out of date: {plain(snapshot.trouble)}"] if snapshot.trouble else []
