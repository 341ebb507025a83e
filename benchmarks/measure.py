"""What the benchmarks share: time from a command to a running pod, memory of process trees, ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import psutil

from orchlab.errors import ApiError, EnvironmentBroken
from orchlab.kube.client import Client

NAMESPACE = "/api/v1/namespaces/default"


def pod(name: str, **annotations: str) -> dict:
    """A pod that any simulated node can take."""
    container = {"name": "main", "image": "none", "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations},
            "spec": {"containers": [container], "restartPolicy": "Never", "tolerations": [{"operator": "Exists"}]}}


def until(condition: Callable[[], object], seconds: float, what: str) -> object:
    """Polls every 20 ms; raises TimeoutError naming `what`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if found := condition():
                return found
        except (ApiError, EnvironmentBroken):
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds} s")
        time.sleep(0.02)


def first_pod(client: Client, seconds: float = 60) -> None:
    """Creates a pod as soon as the API takes it and waits until it is Running."""
    until(lambda: client.create(f"{NAMESPACE}/pods", pod("first")), seconds, "creating a pod")
    until(lambda: client.get(f"{NAMESPACE}/pods/first")["status"]["phase"] == "Running", seconds, "a first pod Running")


def memory_mib(belongs: Callable[[psutil.Process], bool]) -> float:
    """Resident memory of all processes that belong, in MiB."""
    total = 0
    for process in psutil.process_iter():
        try:
            if belongs(process):
                total += process.memory_info().rss
        except psutil.Error:
            continue
    return total / 2**20


def describe(values: list[float], unit: str) -> str:
    return f"median {statistics.median(values):.2f} {unit} (min {min(values):.2f}, max {max(values):.2f})"
