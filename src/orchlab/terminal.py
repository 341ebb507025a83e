"""Progress of long work on the terminal: a spinner line where somebody watches, silence elsewhere; engines show their own bars or lines."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from orchlab.engines.progress import Renderer


class Steps:
    """`with Steps("title") as steps: steps("what happens now")`. `steps.engine(event)` takes the reports of orchlab.engines."""

    def __init__(self, title: str) -> None:
        console = Console(stderr=True)
        self._progress = Progress(SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(), console=console, transient=True,
                                  disable=not console.is_terminal)
        self._task = self._progress.add_task(title, total=None)
        self._title = title
        self._console, self._engines = console, None

    def __enter__(self) -> Steps:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_engines()
        self._progress.stop()

    def __call__(self, text: str) -> None:
        self._end_engines()
        self._progress.update(self._task, description=f"{self._title}: {text}")

    def engine(self, event) -> None:
        """One report about an engine. A terminal has room for one live display, so the spinner steps aside while engines are made."""
        if self._engines is None:
            if event.phase == "found":
                return
            self._progress.stop()
            self._engines = Renderer(self._console).__enter__()
        self._engines(event)

    def _end_engines(self) -> None:
        if self._engines is not None:
            self._engines.__exit__(None, None, None)
            self._engines = None
            self._progress.start()
