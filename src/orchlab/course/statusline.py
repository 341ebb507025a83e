"""One sentence in a widget that screen readers announce when it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from html import escape

import ipywidgets

from orchlab.errors import OrchlabError


class StatusLine:
    """Shows what `words` returns each time `update` is called, from any thread; an error of ours is shown in its place. `text` is what it
    shows."""

    def __init__(self, words: Callable[[], str]) -> None:
        self._words, self._lock = words, threading.Lock()
        self.text = ""
        self.widget = ipywidgets.HTML("")

    def update(self) -> None:
        """Asks for the words anew."""
        # One at a time, from question to display: an older answer must not overwrite a newer one.
        with self._lock:
            try:
                self.text = self._words()
            except OrchlabError as error:
                self.text = str(error)
            self.widget.value = f'<div role="status">{escape(self.text)}</div>'
