"""Made-up clusters for the views' tests: pure snapshots, Kubernetes objects, and an API double whose watches can be broken at will."""

from __future__ import annotations

import itertools
import json
import queue
import random
import threading
import time
from collections.abc import Callable

from orchlab.errors import EnvironmentBroken
from orchlab.kube.client import WatchExpired
from orchlab.snapshot import ClusterSnapshot, Node, Share, Unit

GPU = "nvidia.com/gpu"
ZERO = 1_700_000_000.0


def node(name: str, gpus: int = 8, **fields) -> Node:
    counts = {GPU: gpus} if gpus else {}
    given = {"zone": "a", "rack": "r1", "capacity": counts, "allocatable": counts, "simulated": "all",
             "devices": {GPU: tuple(f"GPU-{name}-{i}" for i in range(gpus))} if gpus else {}}
    return Node(name, **given | fields)


def unit(name: str, gpus: int = 1, on: str = "", first: int = 0, known: bool = True, **fields) -> Unit:
    """A pod; with `on` it holds `gpus` devices of that node from number `first` on."""
    devices = tuple(f"GPU-{on}-{first + i}" for i in range(gpus)) if known else ()
    given = {"id": f"uid-{name}", "namespace": "lab", "wanted": {GPU: gpus} if gpus else {}, "submitted": ZERO,
             "shares": (Share(on, GPU, gpus, devices),) if on and gpus else (Share(on),) if on else ()}
    return Unit(name=name, **given | fields)


def some_snapshot(seed: int) -> ClusterSnapshot:
    """A random but possible cluster: no device is held twice."""
    dice = random.Random(seed)
    nodes, units = [], []
    for number in range(dice.randint(1, 12)):
        gpus = dice.choice([0, 2, 4, 8])
        name = f"n{number}"
        lost = dice.randint(0, gpus) if dice.random() < 0.2 else 0
        nodes.append(node(name, gpus, zone=dice.choice("ab"), rack=dice.choice("rs"), ready=dice.random() > 0.1,
                          cordoned=dice.random() < 0.1, allocatable={GPU: gpus - lost} if gpus else {},
                          taints=("k=v:NoExecute",) * dice.randint(0, 2)))
        free = gpus
        while free and dice.random() < 0.7:
            count = dice.randint(1, free)
            units.append(unit(f"p{len(units)}", count, name, gpus - free, known=dice.random() > 0.2, phase="Running",
                              started=ZERO + 5 if dice.random() > 0.3 else None, submitted=ZERO + dice.randint(0, 3)))
            free -= count
    units += [unit(f"w{i}", dice.randint(1, 9), reason="Unschedulable", message=f"0/{len(nodes)} nodes <are> available & so on")
              for i in range(dice.randint(0, 3))]
    dice.shuffle(nodes)
    dice.shuffle(units)
    return ClusterSnapshot.of(nodes, units)


def stamp(after: float = 0) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ZERO + after))


def pod(name: str, gpus: int = 1, on: str = "", phase: str = "Pending", devices: list[str] | None = None, why: str = "",
        **metadata) -> dict:
    """A Pod object as the API gives it."""
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(1)}
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why, "lastTransitionTime": stamp(1)}
    status = {"phase": phase, "conditions": [placed if on else refused] if on or why else []}
    if phase == "Running":
        status["containerStatuses"] = [{"name": "c", "restartCount": 0, "state": {"running": {"startedAt": stamp(2)}}}]
    noted = {"annotations": {"orchlab/devices": json.dumps({"c": devices})}} if devices else {}
    limits = {"limits": {GPU: str(gpus)}} if gpus else {}
    return {"metadata": {"name": name, "namespace": "lab", "uid": f"uid-{name}", "creationTimestamp": stamp(), "resourceVersion": "1",
                         **noted, **metadata},
            "spec": {"containers": [{"name": "c", "resources": limits}], **({"nodeName": on} if on else {})}, "status": status}


def node_object(name: str, gpus: int = 8) -> dict:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": {"topology.kubernetes.io/zone": "a"}},
            "spec": {},
            "status": {"capacity": {GPU: str(gpus), "cpu": "8"}, "allocatable": {GPU: str(gpus)},
                       "conditions": [{"type": "Ready", "status": "True"}]}}


class Api:
    """Lists and watches like orchlab.kube.client.Client, out of memory. Faults are put where a transport would have them."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict]] = {"nodes": {}, "pods": {}, "events": {}}
        self.lists: list[str] = []
        self.down = False
        self._versions = itertools.count(100)
        self._watches: list[tuple[str, queue.Queue]] = []
        self._lock = threading.Lock()

    def put(self, kind: str, item: dict, silently: bool = False) -> None:
        """Creates or updates; `silently`: no watch is told, as if the change fell into a gap."""
        self._change(kind, item, "MODIFIED" if item["metadata"]["uid"] in self.objects[kind] else "ADDED", silently)

    def remove(self, kind: str, uid: str, silently: bool = False) -> None:
        self._change(kind, self.objects[kind][uid], "DELETED", silently)

    def send(self, kind: str, event: tuple[str, dict] | Exception) -> None:
        """Puts an event, or the end of the watch, into all watches of a kind."""
        with self._lock:
            for name, inbox in self._watches:
                if name == kind:
                    inbox.put(event)

    def expire(self, kind: str) -> None:
        self.send(kind, WatchExpired("too old resource version: 1 (100)"))

    def list(self, path: str, timeout: float = 30, **query: object) -> tuple[list[dict], str]:
        kind = path.rsplit("/", 1)[1]
        with self._lock:
            self.lists.append(kind)
            if self.down:
                raise EnvironmentBroken("nobody answers")
            return list(self.objects[kind].values()), str(next(self._versions))

    def watch(self, path: str, version: str, seconds: float = 60, opened: Callable | None = None, **query: object):
        inbox: queue.Queue = queue.Queue()
        kind = path.rsplit("/", 1)[1]
        with self._lock:
            if self.down:
                raise EnvironmentBroken("nobody answers")
            self._watches.append((kind, inbox))
        opened(lambda: inbox.put(EnvironmentBroken("cut")))
        deadline = time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0:
                try:
                    event = inbox.get(timeout=left)
                except queue.Empty:
                    return
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            with self._lock:
                self._watches.remove((kind, inbox))

    def watching(self, kind: str) -> bool:
        with self._lock:
            return any(name == kind for name, _ in self._watches)

    def _change(self, kind: str, item: dict, what: str, silently: bool) -> None:
        with self._lock:
            item["metadata"]["resourceVersion"] = str(next(self._versions))
            if what == "DELETED":
                del self.objects[kind][item["metadata"]["uid"]]
            else:
                self.objects[kind][item["metadata"]["uid"]] = item
        if not silently:
            self.send(kind, (what, json.loads(json.dumps(item))))


def until(condition: Callable[[], object], what: str, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about within {seconds} s"
        time.sleep(0.01)
