"""Views that follow a cluster: one widget made of parts, redrawn from a feed's thread, at most a few times a second."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import anywidget
import ipywidgets
import traitlets

from orchlab.errors import BadInput
from orchlab.kube.client import Client
from orchlab.kube.feed import Feed
from orchlab.views import labels as made
from orchlab.snapshot import ClusterSnapshot
from orchlab.timeline import Timeline
from orchlab.views import charts, tables, text
from orchlab.views.clustermap import map_svg
from orchlab.views.labels import Labels
from orchlab.views.style import Styles

log = logging.getLogger(__name__)
_here = Path(__file__).parent
Own = tuple[str, Callable[..., str], Callable[..., str]]
# A chart in a live view shows this many seconds; its text twin tells everything.
LAST_SECONDS = 900.0
_CHARTS = {
    "gantt": ("Who waited, who ran", charts.gantt_svg, text.gantt_text),
    "devices": ("Who held each GPU", charts.devices_svg, text.devices_text),
    "occupancy": ("GPUs held on each node", charts.occupancy_svg, text.occupancy_text),
}
_open: dict[str, Live] = {}
_registry = threading.Lock()


@runtime_checkable
class Source(Protocol):
    """What a view follows: orchlab.kube.feed.Feed, orchlab.slurm.feed.Feed, or anything else with their face."""

    timeline: Timeline

    def snapshot(self) -> ClusterSnapshot: ...

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]: ...

    def start(self) -> object: ...

    def stop(self) -> bool: ...


class Panel(anywidget.AnyWidget):
    """A picture with a keyboard path and its text twin in a fold. `html` must be escaped already; `text` is shown as it is."""

    _esm = (_here / "panel.js").read_text()
    _css = (_here / "panel.css").read_text()
    html = traitlets.Unicode("").tag(sync=True)
    text = traitlets.Unicode("").tag(sync=True)
    title = traitlets.Unicode("").tag(sync=True)


class _Part:
    """One panel: `picture` and `twin` make its two forms; `moves`: it grows with time while something goes on."""

    def __init__(self, title: str, picture: Callable[..., str], twin: Callable[..., str], moves: bool = False) -> None:
        self._picture, self._twin, self.moves = picture, twin, moves
        self.panel = Panel(title=title)

    def draw(self, *facts: object) -> None:
        html, words = self._picture(*facts), self._twin(*facts)
        with self.panel.hold_sync():
            self.panel.html, self.panel.text = html, words


class Live:
    """A widget that follows a cluster: show it as a cell's last value, or put `.widget` into a layout of your own.

    `source` is a Client (the view makes a Feed of its own and stops it in `close`) or a running Feed (its maker stops it). `parts` are drawn
    from top to bottom: "map", "pending", "events", "gantt" (per unit), "devices" (Gantt per GPU), "occupancy", or a tuple of a title
    and two functions of (ClusterSnapshot, Timeline, now) that give HTML (escaped) and text. A second view with the same `key` closes
    the first, so a cell can be run again. `by` = "group" colours by job instead of by pod; `labels` overrides what is said to be real,
    simulated and modelled. `.text` is the text twin of it all. Raises BadInput for an unknown part.
    """

    def __init__(self, source: Client | Source, parts: Sequence[str | Own] = ("map", "pending"), key: str = "view",
                 title: str = "Cluster map", namespace: str | None = None, by: str = "unit", labels: Labels | None = None) -> None:
        self.key, self.styles = key, Styles(by)
        self._parts = [self._part(part, title, labels) for part in parts]
        self._names = tuple(part.panel.title for part in self._parts)
        self._drawing, self._stop = threading.Lock(), threading.Event()
        self._owns = not isinstance(source, Source)
        self.feed: Source = source if isinstance(source, Source) else Feed(source, namespace)
        self._clock: threading.Thread | None = None
        self._leave = lambda: None
        self.trouble = ipywidgets.Label("", layout={"display": "none"})
        self.widget = ipywidgets.VBox([self.trouble, *(part.panel for part in self._parts)])
        with _registry:
            earlier, _open[key] = _open.get(key), self
        if earlier:
            earlier.close()
        self._leave = self.feed.on_change(self.update)
        if self._owns:
            self.feed.start()
        if any(part.moves for part in self._parts):
            self._clock = threading.Thread(target=self._tick, name=f"orchlab-view-{key}", daemon=True)
            self._clock.start()

    def update(self) -> None:
        """Draws what the feed knows now. The feed calls this; calling it yourself does no harm."""
        with self._drawing:
            if self._stop.is_set():
                return
            snapshot, now = self.feed.snapshot(), time.time()
            if not snapshot.taken and not snapshot.trouble:
                return
            self.styles.meet(snapshot)
            try:
                for part in self._parts:
                    part.draw(snapshot, self.feed.timeline, now)
                self._say("")
            except Exception as error:
                log.exception("drawing failed")
                self._say(f"drawing failed: {error}")

    @property
    def text(self) -> str:
        """The text twins of all parts, as last drawn."""
        return "\n\n".join(part.panel.text for part in self._parts)

    def close(self) -> None:
        """Stops following: no thread of the view is left. The last picture stays. May be called twice."""
        self._stop.set()
        self._leave()
        if self._owns:
            self.feed.stop()
        if self._clock and self._clock is not threading.current_thread():
            self._clock.join(2)
        with _registry:
            if _open.get(self.key) is self:
                del _open[self.key]

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Live view {self.key!r}: {', '.join(self._names)} (.text says the same in words)"

    def _repr_mimebundle_(self, **options: object) -> dict:
        return self.widget._repr_mimebundle_(**options) | {"text/plain": repr(self)}

    def _part(self, name: str | Own, title: str, labels: Labels | None) -> _Part:
        if not isinstance(name, str):
            return _Part(*name)
        styles, prefix = self.styles, f"ol{id(self):x}{name}"
        match name:
            case "map":
                return _Part(title, lambda s, t, now: map_svg(s, title, styles, labels, prefix),
                             lambda s, t, now: text.map_text(s, styles, labels))
            case "pending":
                return _Part("Waiting, and why", lambda s, t, now: tables.pending_html(s, styles=styles, labels=labels),
                             lambda s, t, now: text.pending_text(s, labels))
            case "events":
                return _Part("Events", lambda s, t, now: tables.events_html(s, labels=labels),
                             lambda s, t, now: text.events_text(s, labels=labels))
        if name not in _CHARTS:
            raise BadInput("parts", name, "is not a part", f"use map, pending, events, {', '.join(_CHARTS)}")
        heading, picture, twin = _CHARTS[name]
        devices = name == "devices"
        return _Part(
            heading,
            lambda s, t, now: picture(t, s, heading, labels, now, LAST_SECONDS, prefix, **({"styles": styles} if devices else {})),
            lambda s, t, now: twin(t, now, labels or made.of_times(s), **({"snapshot": s} if devices else {})), moves=True)

    def _say(self, words: str) -> None:
        self.trouble.value = words
        self.trouble.layout.display = None if words else "none"

    def _tick(self) -> None:
        """Bars of what goes on grow with time, though nothing changes."""
        while not self._stop.wait(1.0):
            if self.feed.timeline.goes_on():
                self.update()


def close_all() -> None:
    """Closes every open view."""
    with _registry:
        views = list(_open.values())
    for view in views:
        view.close()
