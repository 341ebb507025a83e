"""Pods and waiting for the simulator's tests."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchlab.environment import Environment
from orchlab.errors import ApiError
from orchlab.kube.client import Client

TOLERATED = [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def until(condition: Callable, seconds: float = 40, what: str = "it"):
    """The first true answer of `condition`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.05)
    return found


@contextmanager
def namespace(client: Client) -> Iterator[str]:
    """A namespace of one's own; all that is in it is gone afterwards, pods at once."""
    name = f"sim-{uuid.uuid4().hex[:8]}"
    client.create("/api/v1/namespaces", {"metadata": {"name": name}})
    until(lambda: exists(client, f"/api/v1/namespaces/{name}/serviceaccounts/default"), what="the service account")
    try:
        yield name
    finally:
        client.delete(f"/api/v1/namespaces/{name}")
        client.delete(f"/api/v1/namespaces/{name}/pods", {"gracePeriodSeconds": 0}, timeout=30)


def exists(client: Client, path: str) -> bool:
    try:
        client.get(path)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


def pod(name: str, gpus: int = 0, notes: dict[str, str] | None = None, policy: str = "Never", containers: list[dict] | None = None,
        **spec: object) -> dict:
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    containers = containers or [{"name": "main", "image": "registry.invalid/train:1", "resources": limits}]
    notes = {f"orchlab/{key}": value for key, value in (notes or {}).items()}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": notes},
            "spec": {"restartPolicy": policy, "tolerations": TOLERATED, "containers": containers, **spec}}


def create(client: Client, where: str, *manifests: dict) -> None:
    for manifest in manifests:
        client.create(f"/api/v1/namespaces/{where}/pods", manifest)


def get(client: Client, where: str, name: str) -> dict:
    return client.get(f"/api/v1/namespaces/{where}/pods/{name}")


def restarts(client: Client, where: str, name: str) -> dict | None:
    """The pod, if its first container has been restarted."""
    found = get(client, where, name)
    return found if (found["status"].get("containerStatuses") or [{"restartCount": 0}])[0]["restartCount"] else None


def phase_is(client: Client, where: str, name: str, *phases: str, seconds: float = 40) -> dict:
    """The pod, once it is in one of the phases."""
    def look() -> dict | None:
        found = get(client, where, name)
        return found if found["status"]["phase"] in phases else None

    return until(look, seconds, f"{name} in {phases}")


def devices(pod: dict) -> dict[str, list[str]]:
    return json.loads(pod["metadata"]["annotations"]["orchlab/devices"])


def given_twice(client: Client) -> list[str]:
    """Devices that two pods which have not ended hold at the same time."""
    found, _ = client.list("/api/v1/pods")
    alive = [one for one in found if one["status"]["phase"] not in ("Succeeded", "Failed")]
    admitted = [one for one in alive if "orchlab/admitted" in (one["metadata"].get("annotations") or {})]
    held = [device for one in admitted for device in {d for named in devices(one).values() for d in named}]
    return [device for device, count in Counter(held).items() if count > 1]


def kill(environment: Environment, process: str) -> int:
    """kill -9, and the process id of its successor."""
    before = next(state.pid for state in environment.health(probe=False) if state.name == process)
    os.kill(before, signal.SIGKILL)

    def successor() -> int | None:
        state = next(state for state in environment.health(probe=False) if state.name == process)
        return state.pid if state.pid and state.pid != before else None

    return until(successor, what=f"a new {process}")
