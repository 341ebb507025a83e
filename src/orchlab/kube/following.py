"""Follows collections by watches and tells listeners of changes, a few times a second at most.

One thread for each collection, one that calls the listeners. When a watch expires (410 Gone) or breaks off, the collection is listed
again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Self

import urllib3

from orchlab.errors import ApiError, BadInput, EnvironmentBroken, OrchlabError
from orchlab.kube.client import Client, WatchExpired

log = logging.getLogger(__name__)


class Following:
    """A context manager. `rate` is the most calls of the listeners per second. A watch is renewed after `watch_seconds`, a list gets 10 s,
    pauses after faults grow from 0.2 to 5 s. Subclasses `follow` collections before the start."""

    def __init__(self, client: Client, rate: float = 5.0, watch_seconds: float = 30) -> None:
        if rate <= 0:
            raise BadInput("rate", rate, "must be above 0 calls per second")
        self.client, self.rate, self.watch_seconds = client, rate, watch_seconds
        self._lock = threading.Lock()
        self._changed, self._stopping = threading.Event(), threading.Event()
        self._news = threading.Condition()
        self._count = 0
        self._listeners: list[Callable[[], None]] = []
        self._watchers: list[_Watcher] = []
        self._threads: list[threading.Thread] = []

    def follow(self, kind: str, path: str, relist: Callable[[list[dict], float], None], one: Callable[[str, dict, float], None]) -> None:
        """Adds a collection: `relist` gets all its objects, `one` (ADDED | MODIFIED | DELETED, object), both with the time of it."""
        self._watchers.append(_Watcher(self, kind, path, relist, one))

    # -- life ----------------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts the threads and returns at once; `ready` waits for the first lists. A feed that was stopped cannot start again."""
        if self._stopping.is_set():
            raise OrchlabError("a stopped feed cannot be started again", "make a new Feed")
        if not self._threads:
            jobs = [("notify", self._notify), *((w.kind.lower(), w.run) for w in self._watchers)]
            self._threads = [threading.Thread(target=job, name=f"orchlab-feed-{name}", daemon=True) for name, job in jobs]
            for thread in self._threads:
                thread.start()
        return self

    def ready(self, seconds: float = 10) -> Self:
        """Waits until every collection was listed once. Raises EnvironmentBroken with the last trouble when time is up."""
        deadline = time.monotonic() + seconds
        for watcher in self._watchers:
            if not watcher.listed.wait(max(0.0, deadline - time.monotonic())):
                problem = self.trouble or f"{watcher.path} was not listed within {seconds:g} s"
                raise EnvironmentBroken(problem, "orchlab status shows what runs")
        return self

    def stop(self, seconds: float = 2.0) -> bool:
        """Ends all threads; True if they ended within `seconds`. May be called twice, and from a listener."""
        self._stopping.set()
        self._changed.set()
        for watcher in self._watchers:
            watcher.cut()
        with self._news:
            self._news.notify_all()
        deadline = time.monotonic() + seconds
        others = [t for t in self._threads if t is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in others)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- reading -------------------------------------------------------------------------------------------------------------

    @property
    def listed(self) -> bool:
        """True once all collections have been listed."""
        return all(watcher.listed.is_set() for watcher in self._watchers)

    @property
    def trouble(self) -> str:
        """Why the snapshot may be out of date; "" if all watches are live."""
        lost = [w for w in self._watchers if w.trouble]
        return f"{', '.join(f'{w.kind.lower()}s' for w in lost)} not being watched: {lost[0].trouble}" if lost else ""

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` after changes, at most `rate` times a second, from the feed's own thread. Returns a function that ends it."""
        self._listeners.append(listener)
        self._changed.set()

        def end() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return end

    # -- threads -------------------------------------------------------------------------------------------------------------

    def _notify(self) -> None:
        """The first change is passed on at once, those that follow within 1/rate seconds together."""
        while not self._stopping.is_set():
            self._changed.wait()
            self._changed.clear()
            for listener in list(self._listeners):
                if self._stopping.is_set():
                    return
                try:
                    listener()
                except Exception:  # noqa: BLE001 - one listener's fault must not silence the others
                    log.exception("a listener failed")
            self._stopping.wait(1 / self.rate)

    def _tell(self) -> None:
        self._changed.set()
        with self._news:
            self._count += 1
            self._news.notify_all()

    def _missed(self, since: float, until: float, why: str, kind: str) -> None:
        """Nothing was heard of a collection from `since` to `until`."""


class _Watcher:
    """Lists and watches one collection until the feed stops."""

    def __init__(self, feed: Following, kind: str, path: str, relist: Callable[[list[dict], float], None],
                 one: Callable[[str, dict, float], None]) -> None:
        self.feed, self.kind, self.path, self.relist, self.one = feed, kind, path, relist, one
        self.listed = threading.Event()
        self.trouble = ""
        self._heard = 0.0
        self._cut: Callable[[], None] | None = None

    def cut(self) -> None:
        """Breaks off the watch that is under way, if there is one."""
        if cut := self._cut:
            with contextlib.suppress(Exception):
                cut()

    def run(self) -> None:
        stopping, lost, pause, fault = self.feed._stopping, None, 0.2, 0.0
        while not stopping.is_set():
            try:
                version = self._list(lost)
                lost = None
                while not stopping.is_set():
                    version = self._watch(version)
                    stopping.wait(0.05)
            except WatchExpired as error:
                lost = lost or (self._heard, f"the watch expired: {error}")
                stopping.wait(0.2)
            except Exception as error:  # noqa: BLE001 - a thread that died in silence would leave a picture that looks alive
                if stopping.is_set():
                    return
                if not isinstance(error, (EnvironmentBroken, ApiError)):
                    log.exception("the feed cannot read what it was sent")
                # A broken connection was sound until now; one that fell silent has been of no use since it was last heard of.
                silent = isinstance(error.__cause__, urllib3.exceptions.ReadTimeoutError)
                lost = lost or (self._heard if silent else time.time(), str(error).split("\n")[0] or type(error).__name__)
                self.trouble = lost[1]
                self.feed._tell()
                pause = 0.2 if time.monotonic() - fault > 10 else min(pause * 2, 5.0)
                fault = time.monotonic()
                stopping.wait(pause)

    def _list(self, lost: tuple[float, str] | None) -> str:
        items, version = self.feed.client.list(self.path, timeout=10)
        seen = time.time()
        if lost and self.listed.is_set():
            self.feed._missed(lost[0], seen, lost[1], self.kind)
        self.relist(items, seen)
        self._heard, self.trouble = seen, ""
        self.listed.set()
        self.feed._tell()
        return version

    def _watch(self, version: str) -> str:
        def opened(cut: Callable[[], None]) -> None:
            self._cut = cut
            self._heard = time.time()
            if self.feed._stopping.is_set():
                cut()

        try:
            for kind, item in self.feed.client.watch(self.path, version, seconds=self.feed.watch_seconds, opened=opened):
                seen = time.time()
                version, self._heard = item["metadata"]["resourceVersion"], seen
                if kind != "BOOKMARK":
                    self.one(kind, item, seen)
                    self.feed._tell()
                if self.feed._stopping.is_set():
                    break
        finally:
            self._cut = None
        return version
