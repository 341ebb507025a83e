"""Watching a collection for as long as a process lives, whatever becomes of the API server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from orchlab.errors import ApiError, EnvironmentBroken, OrchlabError
from orchlab.kube.client import Client, WatchExpired

# Waits between tries (s): short while the API server is likely to be coming up, longer afterwards.
SOON, LATER, HOPEFUL = 0.05, 1.0, 30.0
WATCH_SECONDS = 300

log = logging.getLogger("watch")


class Watcher:
    """Runs until `stop` is set."""

    def __init__(self, client: Client, stop: threading.Event) -> None:
        self._client = client
        self._stop = stop

    def insist(self, what: str, task: Callable[[], None]) -> None:
        """Does it, as soon as it can be done. An API server that is not up, or has no rights for us yet, is the usual reason to wait."""
        began, said = time.monotonic(), ""
        while not self._stop.is_set():
            try:
                return task()
            except OrchlabError as error:
                said = self._say_once(what, error, said)
            self._stop.wait(_pause(began))
        return None

    def keep(self, name: str, path: str, query: dict, take: Callable[[str, dict | list[dict]], None]) -> None:
        """Hands every change to `take`: (LIST, objects) first and after a tear, else (ADDED | MODIFIED | DELETED, object)."""
        version, began, said = None, time.monotonic(), ""
        while not self._stop.is_set():
            try:
                if version is None:
                    found, version = self._client.list(path, **query)
                    take("LIST", found)
                for kind, changed in self._client.watch(path, version, WATCH_SECONDS, **query):
                    version, began, said = changed["metadata"]["resourceVersion"], time.monotonic(), ""
                    if kind != "BOOKMARK":
                        take(kind, changed)
                continue
            except WatchExpired:
                log.info("%s: the watch is too old, listing again", name)
                version = None
                continue
            except EnvironmentBroken as error:
                said = self._say_once(f"watch {name}", error, said)
            except ApiError as error:
                version, said = None, self._say_once(f"watch {name}", error, said)
            except Exception:
                # Nothing else keeps the pods going: a fault in one event must not end this thread.
                log.exception("watch %s", name)
                version = None
                self._stop.wait(LATER)
            self._stop.wait(_pause(began))

    @staticmethod
    def _say_once(what: str, error: OrchlabError, said: str) -> str:
        if error.args[0] != said:
            log.info("%s: not yet: %s", what, error.args[0])
        return error.args[0]


def _pause(began: float) -> float:
    return SOON if time.monotonic() - began < HOPEFUL else LATER
