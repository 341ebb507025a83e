"""Keys that need work: each once, by one worker at a time, now or later."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque


class WorkQueue:
    """Thread-safe. A key that is added while it is worked on comes up again afterwards. Times in seconds."""

    def __init__(self) -> None:
        self._ready: deque[str] = deque()
        self._queued: set[str] = set()
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._later: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        self._changed = threading.Condition()

    def add(self, key: str, after: float = 0) -> None:
        """Puts a key in, after some time; an earlier time that stands already stays."""
        with self._changed:
            if after > 0:
                at = time.monotonic() + after
                if key not in self._due or at < self._due[key]:
                    self._due[key] = at
                    heapq.heappush(self._later, (at, key))
            else:
                self._put(key)
            self._changed.notify()

    def get(self, timeout: float | None = None) -> str | None:
        """The next key; `done` must follow. None when there is none within `timeout`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                pause = self._promote()
                if self._ready:
                    key = self._ready.popleft()
                    self._queued.discard(key)
                    self._working.add(key)
                    return key
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(min((t for t in (pause, left) if t is not None), default=None))

    def done(self, key: str) -> None:
        """The work on a key has ended."""
        with self._changed:
            self._working.discard(key)
            if key in self._again:
                self._again.discard(key)
                self._put(key)
                self._changed.notify()

    def _promote(self) -> float | None:
        """Moves what is due; returns the seconds until the next."""
        while self._later:
            at, key = self._later[0]
            if self._due.get(key) != at:
                heapq.heappop(self._later)  # a time that was replaced
                continue
            left = at - time.monotonic()
            if left > 0:
                return left
            heapq.heappop(self._later)
            del self._due[key]
            self._put(key)
        return None

    def _put(self, key: str) -> None:
        """Now, or after the work on it that is under way."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.append(key)
