"""The simulated kubelets' side of the device plugins: what a plugin has registered becomes the node's capacity and allocatable.

The GPU Operator writes what its plugin registers as the annotation orchlab/gpu-inventory on the node; nothing else decides it. When a
plugin stops, its devices are unhealthy at once (allocatable 0) and are forgotten after a kubelet's grace (capacity 0, the key stays).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from orchlab.clock import Clock
from orchlab.errors import ApiError, EnvironmentBroken
from orchlab.kube.client import MERGE, Client
from orchlab.simulator import inventory, pods
from orchlab.simulator.admission import COUNTED, Admission
from orchlab.simulator.inventory import GPU, PREFIX, Registered
from orchlab.simulator.nodes import HARDWARE, MANAGER, NODES

INVENTORY = "orchlab/gpu-inventory"
# How long a kubelet remembers the devices of a plugin that has stopped (simulated s).
GRACE = 300.0
PAUSE, TRIES = 0.2, 50

log = logging.getLogger("plugins")


@dataclass
class _Node:
    """`text` is the annotation last read, `stopped` when (monotonic s) the grace of a resource ends, `status` and `slots` what the node
    says, `keys` the plugins' resources that it ever had, `told` whether admission knows that the node is there."""

    text: str = ""
    cidr: str = ""
    resources: dict[str, Registered] = field(default_factory=dict)
    stopped: dict[str, float] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    status: dict[str, dict[str, str]] = field(default_factory=dict)
    slots: str = ""
    room: dict[str, str] = field(default_factory=dict)
    told: bool = False
    writing: threading.Lock = field(default_factory=threading.Lock)


class Plugins:
    """Call `node` with each node that has a simulated kubelet as it changes, `tick` now and then; `admission` is told what there is."""

    def __init__(self, client: Client, workers: Executor, admission: Admission, clock: Callable[[], Clock]) -> None:
        self._client = client
        self._workers = workers
        self._admission = admission
        self._clock = clock
        self._lock = threading.Lock()
        self._nodes: dict[str, _Node] = {}

    def node(self, found: dict, ours: bool) -> None:
        """A node as the API server has it. One that is not `ours` (somebody applied a manifest) and of which nothing says what is built
        in has the devices that its status counts."""
        metadata, status = found["metadata"], found.get("status") or {}
        name, notes = metadata["name"], metadata.get("annotations") or {}
        cidr, room = (found.get("spec") or {}).get("podCIDR", ""), status.get("allocatable") or {}
        room = {key: room[key] for key in COUNTED if key in room}
        text = notes.get(INVENTORY, "")
        if not ours and not text and HARDWARE not in notes:
            count = pods.milli((status.get("capacity") or {}).get(GPU, 0)) // 1000
            self._admission.node(inventory.of_node("", name, count, cidr), room)
            return
        with self._lock:
            known = self._nodes.get(name)
            # What the plugins of a node had registered is not known to a kubelet that has just started.
            fresh = known is None
            known = self._nodes.setdefault(name, _Node())
            was = (known.text, known.cidr, known.room)
            known.cidr, known.room, known.slots = cidr, room, notes.get(pods.DEVICES, "")
            known.status = {part: {key: value for key, value in (status.get(part) or {}).items() if key.startswith(PREFIX)}
                            for part in ("capacity", "allocatable")}
            known.keys |= known.status["capacity"].keys()
            if fresh or text != known.text:
                self._register(known, text, fresh)
            if not known.told or was != (text, cidr, room):
                self._tell(name, known)
            if self._differs(known):
                self._workers.submit(self._write, name)

    def silent(self, name: str) -> None:
        """The node's kubelet does not answer: it admits nothing until the node is seen with one again."""
        with self._lock:
            if name in self._nodes:
                self._nodes[name].told = False
        self._admission.node_gone(name)

    def gone(self, name: str) -> None:
        """The node was deleted."""
        with self._lock:
            self._nodes.pop(name, None)

    def tick(self) -> None:
        """Forgets what has been stopped for longer than the grace."""
        now = time.monotonic()
        with self._lock:
            for name, known in self._nodes.items():
                over = [resource for resource, until in known.stopped.items() if until <= now]
                for resource in over:
                    del known.stopped[resource]
                    known.resources.pop(resource, None)
                if over:
                    if known.told:
                        self._tell(name, known)
                    self._workers.submit(self._write, name)

    def _register(self, known: _Node, text: str, fresh: bool) -> None:
        known.text, now = text, inventory.registered(text)
        known.keys |= now.keys()
        until = time.monotonic() + self._clock().real_seconds(GRACE)
        for resource in known.resources.keys() - now.keys():
            known.stopped.setdefault(resource, until)
        known.resources |= now
        for resource in now:
            known.stopped.pop(resource, None)
        if fresh:
            # A kubelet that starts resets extended resources whose plugins it has not heard of.
            known.stopped = dict.fromkeys(known.keys - now.keys(), 0.0)

    def _tell(self, name: str, known: _Node) -> None:
        known.told = True
        self._admission.node(inventory.node_devices(name, known.resources, known.cidr, frozenset(known.stopped)), known.room)

    @staticmethod
    def _wanted(known: _Node) -> tuple[dict[str, dict[str, str]], str]:
        held = inventory.node_devices("", known.resources, gone=frozenset(known.stopped))
        counts = held.allocatable()
        allocatable = {key: str(counts.get(key, 0)) for key in known.keys}
        slots = {resource: one.ids for resource, one in sorted(known.resources.items())}
        capacity = {key: str(len(slots.get(key, ()))) for key in known.keys}
        return {"capacity": capacity, "allocatable": allocatable}, json.dumps(slots) if slots else ""

    def _differs(self, known: _Node) -> bool:
        return self._wanted(known) != (known.status, known.slots)

    def _write(self, name: str) -> None:
        """Brings the node's status in line with what is registered at this moment. A failed write is tried again."""
        with self._lock:
            known = self._nodes.get(name)
        if known is None:
            return
        with known.writing:
            for _ in range(TRIES):
                with self._lock:
                    (status, slots), was, had = self._wanted(known), known.status, known.slots
                try:
                    if status != was:
                        self._client.patch(f"{NODES}/{name}/status", {"status": status}, MERGE, **MANAGER)
                    if slots != had:
                        self._client.patch(f"{NODES}/{name}", {"metadata": {"annotations": {pods.DEVICES: slots or None}}}, **MANAGER)
                except ApiError as error:
                    if error.status < 500 and error.status != 429:
                        if error.status != 404:
                            log.error("%s: %s", name, error)
                        return
                except EnvironmentBroken:
                    pass
                else:
                    with self._lock:
                        known.status, known.slots = status, slots
                    return
                time.sleep(PAUSE)
