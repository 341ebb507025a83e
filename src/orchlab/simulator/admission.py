"""The simulated kubelets' admission: gives each pod that is bound to a simulated node its devices, says how long it runs, or refuses it.

One thread watches and decides, so that no device is given twice; the writing is done by workers. Everything that has to outlive this
process stands on the pods.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from orchlab.clock import Clock
from orchlab.errors import ApiError, EnvironmentBroken
from orchlab.kube.client import MERGE, Client
from orchlab.simulator import pods
from orchlab.simulator.inventory import NodeDevices, Unavailable

PODS = "/api/v1/pods"
ON_NODES = {"fieldSelector": "spec.nodeName!="}
MANAGER = {"fieldManager": "orchlab-simulator"}
# What a kubelet counts beside devices, in the order in which it does.
COUNTED = ("pods", "cpu", "memory")
# Between two tries of a write (s).
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 2.0

log = logging.getLogger("admission")


class Admission:
    """Decides about pods. `workers` write, `clock` gives the current scale. Call `node` and `node_gone` as nodes come and go, `pod` and
    `pod_gone` as pods change, `relisted` after a fresh list; all may come from different threads."""

    def __init__(self, client: Client, workers: Executor, clock: Callable[[], Clock]) -> None:
        self._client = client
        self._workers = workers
        self._clock = clock
        self._lock = threading.RLock()
        self._nodes: dict[str, NodeDevices] = {}
        self._allocatable: dict[str, dict[str, int]] = {}
        self._held: dict[str, tuple[str, dict[str, int], dict[str, list[str]]]] = {}
        self._on: dict[str, set[str]] = {}
        self._gone: set[str] = set()
        self._removed: set[str] = set()
        self._waiting: dict[str, dict[str, dict]] = {}

    def node(self, devices: NodeDevices, allocatable: dict[str, str]) -> None:
        """A simulated node is there, with these devices and this allocatable CPU, memory and number of pods."""
        with self._lock:
            known = self._nodes.get(devices.name)
            if known is not None:
                devices.addresses = known.addresses
            # A pod keeps what it was given, even while no plugin vouches for it.
            for uid in self._on.get(devices.name, ()):
                devices.restore(uid, self._held[uid][2])
            self._nodes[devices.name] = devices
            self._allocatable[devices.name] = {name: pods.milli(allocatable[name]) for name in COUNTED if name in allocatable}
            self._gone.discard(devices.name)
            waiting = self._waiting.pop(devices.name, {})
            for pod in sorted(waiting.values(), key=_order):
                self._look_at(pod)

    def node_gone(self, name: str) -> None:
        """The node was deleted, or its kubelet is silent: no pod is admitted there. What it holds is remembered, in case it comes back."""
        with self._lock:
            self._gone.add(name)

    def only_nodes(self, names: set[str]) -> None:
        """After a fresh list: all other nodes are gone."""
        with self._lock:
            self._gone |= self._nodes.keys() - names

    def relisted(self, found: list[dict]) -> None:
        """The pods that there are now. What others held is free; those admitted earlier keep what they have, then come the new ones."""
        with self._lock:
            there = {pod["metadata"]["uid"] for pod in found}
            for uid in self._held.keys() - there:
                self._release(uid)
            self._waiting.clear()
            self._removed.clear()
            for pod in sorted(found, key=_order):
                self._look_at(pod)

    def pod(self, pod: dict) -> None:
        """A pod was bound or changed."""
        with self._lock:
            self._look_at(pod)

    def pod_gone(self, pod: dict) -> None:
        """A pod is no more."""
        with self._lock:
            uid = pod["metadata"]["uid"]
            self._release(uid)
            self._removed.discard(uid)
            self._waiting.get(pod["spec"].get("nodeName", ""), {}).pop(uid, None)

    def holders(self, node: str) -> dict[str, str | None]:
        """{device uuid: uid of the pod that holds it} of a node."""
        with self._lock:
            found = self._nodes.get(node)
            return {device.uuid: device.holder for device in found.devices} if found else {}

    def note(self, pod: dict, notes: dict[str, str | None]) -> None:
        """Writes annotations on a pod, as soon as a worker is free."""
        self._write(self._accept, pod, notes)

    def warn(self, pod: dict, reason: str, message: str) -> None:
        """Writes a Warning event about a pod."""
        self._write(self._event, pod, reason, message)

    def _look_at(self, pod: dict) -> None:
        try:
            self._decide(pod)
        except Exception:
            # One pod that is beyond us must not hold up the others.
            log.exception("%s", _path(pod))

    def _decide(self, pod: dict) -> None:
        uid, name = pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        if pods.is_over(pod):
            self._release(uid)
            self._remove(pod)
            return
        if uid in self._held:
            return
        node = self._nodes.get(name)
        if node is None or name in self._gone:
            self._waiting.setdefault(name, {})[uid] = pod
            return
        if pods.is_admitted(pod):
            node.restore(uid, pods.held_devices(pod))
            if address := pod["metadata"]["annotations"].get(pods.POD_IP):
                node.addresses[uid] = address
            self._hold(uid, name, pods.requests(pod), pods.held_devices(pod))
        elif "deletionTimestamp" not in pod["metadata"]:
            self._admit(pod, node)

    def _admit(self, pod: dict, node: NodeDevices) -> None:
        uid, wanted = pod["metadata"]["uid"], pods.requests(pod)
        try:
            devices = node.allocate(uid, pods.asks(pod, set(node.allocatable())))
            self._check_room(node.name, uid, wanted)
        except Unavailable as refusal:
            node.release(uid)
            self._write(self._make_sure, pod, refusal)
            return
        self._hold(uid, node.name, wanted, devices)
        plan = pods.plan(pod, self._clock())
        notes: dict[str, str | None] = dict.fromkeys((pods.REAL_SECONDS, pods.START_AT, pods.POD_IP))
        notes |= {pods.ADMITTED: uid, pods.DEVICES: json.dumps(devices), pods.ENDS_WITH: plan.ends_with}
        notes[pods.POD_IP] = "127.0.0.1" if pod["spec"].get("hostNetwork") else node.address(uid)
        if plan.seconds is not None:
            notes[pods.REAL_SECONDS] = f"{plan.seconds:.3f}"
        if plan.start_after:
            notes[pods.START_AT] = _time(datetime.now(UTC) + timedelta(seconds=plan.start_after))
        held_up = (pods.WAITS_AT, pods.RELEASED, pods.MISSED)
        # A copied manifest brings along how another pod's wait went.
        notes |= {name: None for name in held_up if name in (pod["metadata"].get("annotations") or {})}
        if plan.barrier:
            notes[pods.WAITS_AT] = json.dumps(asdict(plan.barrier))
        self._write(self._accept, pod, notes)
        for warning in plan.warnings:
            self._write(self._event, pod, "BadAnnotation", warning)

    def _remove(self, pod: dict) -> None:
        """A deleted pod whose containers have ended goes for good; with finalizers on it the API server does the rest later. The API server
        notes the end of the grace period first and deletes then: where the caller was killed between the two, nobody would do the second."""
        metadata = pod["metadata"]
        uid, left = metadata["uid"], metadata.get("deletionGracePeriodSeconds") or not metadata.get("finalizers")
        if "deletionTimestamp" in metadata and left and uid not in self._removed:
            self._removed.add(uid)
            self._write(self._delete, pod)

    def _check_room(self, node: str, uid: str, wanted: dict[str, int]) -> None:
        """As a kubelet does: the scheduler has seen to it already, but a pod may name its node by itself."""
        others = [self._held[other][1] for other in self._on.get(node, ()) if other != uid]
        wanted = wanted | {"pods": 1000}
        for resource in COUNTED:
            capacity = self._allocatable[node].get(resource)
            if capacity is None or not wanted[resource]:
                continue
            used = 1000 * len(others) if resource == "pods" else sum(held[resource] for held in others)
            if used + wanted[resource] > capacity:
                unit = 1 if resource == "cpu" else 1000
                numbers = f"requested: {wanted[resource] // unit}, used: {used // unit}, capacity: {capacity // unit}"
                raise Unavailable(f"OutOf{resource}", f"Node didn't have enough resource: {resource}, {numbers}")

    def _hold(self, uid: str, node: str, wanted: dict[str, int], devices: dict[str, list[str]]) -> None:
        self._held[uid] = (node, wanted, devices)
        self._on.setdefault(node, set()).add(uid)

    def _release(self, uid: str) -> None:
        place, *_ = self._held.pop(uid, ("", {}, {}))
        self._on.get(place, set()).discard(uid)
        if place in self._nodes:
            self._nodes[place].release(uid)

    def _write(self, task: Callable, *arguments: object) -> None:
        self._workers.submit(self._persist, task, *arguments)

    def _persist(self, task: Callable, pod: dict, *arguments: object) -> None:
        """Writes until it is written or pointless: the pod is gone or another has its name (404, 409). An API server that does not answer
        or is overloaded is asked again for as long as it takes; nothing else could be done meanwhile."""
        pause = SHORTEST_PAUSE
        while True:
            try:
                return task(pod, *arguments)
            except ApiError as error:
                if error.status in (404, 409):
                    return None
                if error.status < 500 and error.status != 429:
                    log.error("%s: %s refused: %s", _path(pod), task.__name__.strip("_"), error)
                    return None
            except EnvironmentBroken:
                pass
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _accept(self, pod: dict, notes: dict[str, str | None]) -> None:
        # The uid makes it a conflict if the name has meanwhile gone to another pod.
        self._client.patch(_path(pod), {"metadata": {"uid": pod["metadata"]["uid"], "annotations": notes}}, MERGE, **MANAGER)

    def _delete(self, pod: dict) -> None:
        # By uid: the name may already be another pod's.
        self._client.delete(_path(pod), {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}})

    def _make_sure(self, pod: dict, refusal: Unavailable) -> None:
        """Before a pod is refused: the scheduler may have heard of a deletion before this did. Where the API server knows of pods that are no
        more, the pod is looked at again."""
        name = pod["spec"]["nodeName"]
        found, _ = self._client.list(PODS, fieldSelector=f"spec.nodeName={name}")
        there = {one["metadata"]["uid"] for one in found if not pods.is_over(one)}
        with self._lock:
            ended = self._on.get(name, set()) - there
            for uid in ended:
                self._release(uid)
            if ended:
                self._look_at(pod)
                return
        self._refuse(pod, refusal)

    def _refuse(self, pod: dict, refusal: Unavailable) -> None:
        status = {"phase": "Failed", "reason": refusal.reason, "message": f"Pod was rejected: {refusal}",
                  "startTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        self._client.patch(_path(pod) + "/status", {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}, MERGE, **MANAGER)
        log.info("refused %s/%s: %s", pod["metadata"]["namespace"], pod["metadata"]["name"], refusal)
        self._event(pod, refusal.reason, str(refusal))

    def _event(self, pod: dict, reason: str, message: str) -> None:
        metadata, now = pod["metadata"], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._client.create(f"/api/v1/namespaces/{metadata['namespace']}/events", {
            "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}", "namespace": metadata["namespace"]},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "namespace": metadata["namespace"],
                               "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
            "type": "Warning", "reason": reason, "message": message[:1024], "count": 1, "firstTimestamp": now, "lastTimestamp": now,
            "source": {"component": "orchlab-simulator", "host": pod["spec"].get("nodeName", "")},
        }, **MANAGER)


def _path(pod: dict) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _order(pod: dict) -> tuple[bool, str, str]:
    """Those that have been admitted first, then in the order in which the scheduler bound them, as far as the pods say."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    bound = next((c.get("lastTransitionTime") or "" for c in conditions if c["type"] == "PodScheduled"), "")
    return not pods.is_admitted(pod), bound, pod["metadata"]["creationTimestamp"]


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
