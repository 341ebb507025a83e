"""Waiting for what real daemons do."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable, seconds: float = 60):
    """The first true value of `condition`, asked ten times a second."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)
    return found
