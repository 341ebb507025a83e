"""For a lab's widget: a set of pods that follows what the learner asks for, without holding up the browser."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from orchlab.course import pods
from orchlab.course.place import Place
from orchlab.errors import ApiError, OrchlabError, TimeLimitReached

SECONDS = 20


class Submitter:
    """Keeps the pods labelled app=`label` in the lab's namespace equal to the last wish. Each wish deletes the pods of the one before and
    creates its own, in a thread that ends when there is nothing to do; wishes that were overtaken are skipped. `done` is called after each;
    `trouble` is what went wrong with the last one, or ""."""

    def __init__(self, place: Place, label: str, done: Callable[[], None] = lambda: None) -> None:
        self.place, self.label, self._done = place, label, done
        self.trouble = ""
        self._state = threading.Condition()
        self._wish: list[dict[str, Any]] | None = None
        self._working = False

    def wish(self, manifests: list[dict[str, Any]]) -> None:
        """Asks for these pods instead of the present ones; returns at once. The label is added to them."""
        with self._state:
            self._wish = manifests
            if not self._working:
                self._working = True
                threading.Thread(target=self._work, name=f"orchlab-{self.label}", daemon=True).start()

    def pods(self) -> list[dict[str, Any]]:
        """Those that are there now, by name."""
        return self.place.list("pod", f"app={self.label}")

    def settled(self, seconds: float = SECONDS) -> list[dict[str, Any]]:
        """Waits until the last wish is served and every pod of it runs, has ended or was declared unschedulable. Raises
        TimeLimitReached."""
        deadline = time.monotonic() + seconds
        with self._state:
            while self._working:
                if not self._state.wait(max(0.0, deadline - time.monotonic())):
                    raise TimeLimitReached(f"the pods were not submitted within {seconds:g} s", "%kubectl get pods tells more")
        self.place.until(
            lambda: all(pods.settled(pod) for pod in self.pods()),
            max(0.0, deadline - time.monotonic()),
            "not every pod was settled",
            seen=lambda: "; ".join(pods.sentence(pod) for pod in self.pods() if not pods.settled(pod)),
        )
        return self.pods()

    def _work(self) -> None:
        while True:
            with self._state:
                manifests, self._wish = self._wish, None
                if manifests is None:
                    self._working = False
                    self._state.notify_all()
                    return
            try:
                self._replace(manifests)
                self.trouble = ""
            except OrchlabError as error:
                self.trouble = str(error)
            self._done()

    def _replace(self, manifests: list[dict[str, Any]]) -> None:
        path = f"/api/v1/namespaces/{self.place.namespace}/pods"
        self.place.client.delete(path, labelSelector=f"app={self.label}", gracePeriodSeconds=0)
        self.place.until(lambda: not self.pods(), SECONDS, "the pods of the last wish did not go")
        for manifest in manifests:
            metadata = manifest["metadata"]
            labelled = manifest | {"metadata": metadata | {"labels": metadata.get("labels", {}) | {"app": self.label}}}
            try:
                self.place.client.create(path, labelled)
            except ApiError as error:
                if error.status != 409:
                    raise
