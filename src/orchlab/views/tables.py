"""The pending list and the event feed as HTML. Names and messages come from the cluster: all of them are escaped."""

from __future__ import annotations

from html import escape

from orchlab.snapshot import ClusterSnapshot, Unit
from orchlab.views import labels as made
from orchlab.views.labels import Labels
from orchlab.views.style import Styles
from orchlab.views.text import clock, pending, plain, unit_name, wants, why


def pending_html(snapshot: ClusterSnapshot, title: str = "Waiting, and why", styles: Styles | None = None, labels: Labels | None = None,
                 limit: int = 50) -> str:
    """Units that don't run yet with the orchestrator's reason, word for word; oldest first, at most `limit`."""
    styles = (styles or Styles()).meet(snapshot)
    units = pending(snapshot)
    rows = [_pending_row(unit, styles) for unit in units[:limit]] or ['<tr><td colspan="4">nothing is waiting</td></tr>']
    if len(units) > limit:
        rows.append(f'<tr><td colspan="4">and {len(units) - limit} more: see the text</td></tr>')
    return _table(title, labels or made.of_words(snapshot), ["", "unit", "wants", "why"], rows, snapshot)


def events_html(snapshot: ClusterSnapshot, title: str = "Events", last: int = 30, labels: Labels | None = None) -> str:
    """The `last` events, newest first, times in UTC."""
    rows = []
    for event in reversed(snapshot.events[-last:]):
        times = f" (×{event.count})" if event.count > 1 else ""
        cells = (clock(event.at), event.reason, event.about, event.message + times)
        warning = ' class="ol-warn"' if event.type == "Warning" else ""
        rows.append(f"<tr{warning}>" + "".join(f"<td>{escape(plain(cell))}</td>" for cell in cells) + "</tr>")
    heads = ["time (UTC)", "reason", "about", "message"]
    return _table(title, labels or made.of_words(snapshot), heads, rows or ['<tr><td colspan="4">no events</td></tr>'], snapshot)


def _pending_row(unit: Unit, styles: Styles) -> str:
    look = styles.of(styles.key(unit))
    where = f" on {', '.join(unit.nodes)}" if unit.nodes else ""
    cells = (unit_name(unit), wants(unit) + where, why(unit))
    return f'<tr><td><span class="ol-code">{look.code}</span></td>' + "".join(f"<td>{escape(plain(cell))}</td>" for cell in cells) + "</tr>"


def _table(title: str, labels: Labels, heads: list[str], rows: list[str], snapshot: ClusterSnapshot) -> str:
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    trouble = f'<p class="ol-trouble">may be out of date: {escape(plain(snapshot.trouble))}</p>' if snapshot.trouble else ""
    return (f'<div class="ol-head"><b>{escape(plain(title))}</b> {labels.html()}</div>{trouble}'
            f'<table class="ol-table"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>')
