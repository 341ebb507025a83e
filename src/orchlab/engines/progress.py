"""Shows the reports of `ensure` in a terminal, or as plain lines where there is none."""

from __future__ import annotations

import time
from types import TracebackType

from orchlab.engines.events import Progress

PLAIN_INTERVAL = 15.0  # seconds between two plain lines about the same phase of the same engine


class Renderer:
    """A context manager to pass as `progress`: a bar per engine in a terminal, else a line when something changes or 15 s passed.

    `console` is a rich Console (default: standard error, so that standard output stays clean).
    """

    def __init__(self, console: object | None = None) -> None:
        from rich.console import Console

        self.console = console or Console(stderr=True)
        self._told: dict[str, tuple[str, float]] = {}
        self._tasks: dict[str, int] = {}
        self._bars = None
        if self.console.is_terminal:
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bars

            columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
            self._bars = Bars(*columns, console=self.console, transient=True)

    def __enter__(self) -> Renderer:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bars:
            self._bars.stop()

    def __call__(self, event: Progress) -> None:
        if event.phase == "note" or not self._bars:
            self._line(event)
        elif event.phase == "found":
            for name in [name for name in self._tasks if event.engine in name.split(", ")]:
                self._bars.remove_task(self._tasks.pop(name))
        else:
            if event.engine not in self._tasks:
                self._tasks[event.engine] = self._bars.add_task(_short(event.engine), total=None, said="")
            percent = None if event.fraction is None else event.fraction * 100
            self._bars.update(self._tasks[event.engine], total=None if percent is None else 100, completed=percent or 0, said=event.text)

    def _line(self, event: Progress) -> None:
        phase, when = self._told.get(event.engine, ("", 0.0))
        if event.phase == phase and event.phase != "note" and time.monotonic() - when < PLAIN_INTERVAL:
            return
        self._told[event.engine] = (event.phase, time.monotonic())
        percent = "" if event.fraction is None or event.phase == "found" else f" {event.fraction:4.0%}"
        self.console.print(f"{event.engine}: {event.phase}{percent} {event.text}", markup=False, highlight=False, soft_wrap=True)


def _short(names: str) -> str:
    first, *others = names.split(", ")
    return f"{first} and {len(others)} more" if others else first  # three long names leave no room for the bar
