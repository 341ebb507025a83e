"""Pods as the API server returns them, and an API that remembers what was asked of it."""

from __future__ import annotations

import itertools
from concurrent.futures import Executor, Future

_numbers = itertools.count(1)


def pod(name: str = "p", gpus: int = 0, node: str = "n", uid: str = "", notes: dict | None = None, policy: str = "Never",
        phase: str = "Pending", **spec: object) -> dict:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    containers = [{"name": "main", "image": "i", "resources": resources}]
    number = next(_numbers)
    metadata = {"name": name, "namespace": "ns", "uid": uid or f"uid-{number}", "resourceVersion": str(number), "annotations": notes or {},
                "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata,
            "spec": {"nodeName": node, "restartPolicy": policy, "containers": containers, **spec}, "status": {"phase": phase}}


class Direct(Executor):
    """Runs at once, in the caller's thread."""

    def submit(self, task, /, *arguments, **named):
        done: Future = Future()
        done.set_result(task(*arguments, **named))
        return done


class Later(Direct):
    """Keeps what is submitted until it is told to run it: decisions are made under a lock, writes are not."""

    def __init__(self) -> None:
        self.kept: list = []

    def submit(self, task, /, *arguments, **named):
        self.kept.append((task, arguments))
        return Future()

    def run(self) -> None:
        while self.kept:
            task, arguments = self.kept.pop(0)
            task(*arguments)


class Api:
    """Remembers (method, path, body); `answers` are raised or returned one after the other, then {}."""

    def __init__(self, *answers: object) -> None:
        self.asked: list[tuple[str, str, object]] = []
        self.answers = list(answers)

    def _answer(self, method: str, path: str, body: object) -> dict:
        self.asked.append((method, path, body))
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        return answer

    def create(self, path, body, **query):
        return self._answer("POST", path, body)

    def patch(self, path, body, content_type="", **query):
        return self._answer("PATCH", path, body)

    def delete(self, path, body=None, **query):
        return self._answer("DELETE", path, body)

    def get(self, path, **query):
        return self._answer("GET", path, None)

    def list(self, path, **query):
        return self._answer("LIST", path, None)
