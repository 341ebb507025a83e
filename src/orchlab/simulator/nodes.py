"""Publishes the fleet's nodes as their kubelets would: registers them, keeps what the fleet says about them, removes those it lost.

What somebody changed on a node (labels, taints, cordon) stays; where the fleet changes, its own labels and taints do. A node that somebody
deleted stays away until the simulator starts again, like a machine whose kubelet registers when it boots.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from concurrent.futures import Executor
from datetime import UTC, datetime

from orchlab.errors import ApiError
from orchlab.fleet_nodes import FleetNode
from orchlab.kube.client import STRATEGIC, Client
from orchlab.simulator.stages import KUBELET_LABEL

NODES = "/api/v1/nodes"
MANAGER = {"fieldManager": "orchlab-simulator"}
# Marks what this module published, with a digest of it.
DIGEST = "orchlab/fleet-node"
# The taints that were published, as JSON: in another fleet the node may have others.
TAINTS = "orchlab/fleet-taints"
# What is built into the machine, for those to find who look into it (a driver, Node Feature Discovery).
HARDWARE = "orchlab/gpu-hardware"
# A /24 a node out of this range: apart from the Services' range, wide enough for 32,768 nodes.
POD_RANGE = (10, 128)
PODS = 110
# A kubelet's default hard eviction thresholds, which it keeps back from what is allocatable.
KEPT_MEMORY = 100 * 2**20
KEPT_DISK = 0.10
CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "simulated by orchlab: no machine and no kubelet behind this node"),
)

log = logging.getLogger("nodes")


def manifest(node: FleetNode, environment_id: str, port: int, version: str, down: bool = False) -> dict:
    """The Node object with the status of a machine without a device plugin. `port` is where its kubelet API answers, `version` the
    cluster's (e.g. "v1.37.2"). `down`: its kubelet is silent. The annotation orchlab/gpu-hardware says which GPUs are built in, as
    {"model": name in the catalog, "count": number}."""
    capacity = {"cpu": str(node.cpu), "memory": f"{node.memory_bytes // 1024}Ki", "pods": str(PODS),
                "ephemeral-storage": f"{node.ephemeral_storage_bytes // 1024}Ki", "hugepages-1Gi": "0", "hugepages-2Mi": "0"}
    allocatable = capacity | {"memory": f"{(node.memory_bytes - KEPT_MEMORY) // 1024}Ki",
                              "ephemeral-storage": str(round(node.ephemeral_storage_bytes * (1 - KEPT_DISK)))}
    labels = node.labels | {KUBELET_LABEL[0]: None if down else KUBELET_LABEL[1]}
    taints = taints_of(node)
    notes = {HARDWARE: json.dumps({"model": node.gpu_model, "count": node.gpus}) if node.gpus else None, TAINTS: json.dumps(taints)}
    machine = uuid.uuid5(uuid.NAMESPACE_URL, f"orchlab:{environment_id}/{node.name}")
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": node.name, "labels": labels, "annotations": notes},
        "spec": {"taints": taints} if taints else {},
        "status": {
            "capacity": capacity, "allocatable": allocatable,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": node.name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": {"architecture": "amd64", "operatingSystem": "linux", "osImage": "simulated by orchlab",
                         "kernelVersion": "simulated", "containerRuntimeVersion": "orchlab://simulated",
                         "kubeletVersion": f"{version}-orchlab", "kubeProxyVersion": "", "machineID": machine.hex,
                         "systemUUID": str(machine), "bootID": str(uuid.uuid5(machine, "boot"))},
        },
    }


def taints_of(node: FleetNode) -> list[dict[str, str]]:
    """As the API server returns them: without an empty value."""
    return [{"key": t.key, **({"value": t.value} if t.value else {}), "effect": t.effect} for t in node.taints]


def taints_after(found: dict, wanted: list[dict[str, str]]) -> list[dict] | None:
    """The taints of a node whose fleet wants other ones than it published last: the published ones give way, all others stay. None where
    nothing is to be changed."""
    published = (found["metadata"].get("annotations") or {}).get(TAINTS)
    before = json.loads(published) if published else wanted
    if before == wanted:
        return None
    kept = [taint for taint in (found.get("spec") or {}).get("taints") or []
            if {key: value for key, value in taint.items() if key != "timeAdded"} not in before + wanted]
    return kept + wanted


def digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


class Publisher:
    """Brings the cluster's nodes in line with a fleet. `workers` run the requests side by side."""

    def __init__(self, client: Client, workers: Executor) -> None:
        self._client = client
        self._workers = workers

    def publish(self, wanted: list[dict]) -> None:
        """Creates the missing ones of these manifests, updates those whose manifest changed since it was published, deletes published
        ones that are not among them. Raises ApiError and EnvironmentBroken when the cluster cannot be read or written."""
        existing = {node["metadata"]["name"]: node for node in self._client.list(NODES)[0]}
        free = _free_ranges({cidr for node in existing.values() if (cidr := (node.get("spec") or {}).get("podCIDR"))})
        tasks = []
        for content in wanted:
            name, mark = content["metadata"]["name"], digest(content)
            found = existing.get(name)
            if found is None:
                tasks.append(self._workers.submit(self._create, content, mark, next(free)))
            elif (found["metadata"].get("annotations") or {}).get(DIGEST) != mark:
                tasks.append(self._workers.submit(self._update, content, mark, found))
        names = {content["metadata"]["name"] for content in wanted}
        for name, node in existing.items():
            if name not in names and DIGEST in (node["metadata"].get("annotations") or {}):
                tasks.append(self._workers.submit(self._delete, name))
        for task in tasks:
            task.result(timeout=120)
        if tasks:
            log.info("%d nodes in the fleet, %d written", len(wanted), len(tasks))

    def _create(self, content: dict, mark: str, cidr: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
        conditions = [{"type": kind, "status": status, "reason": reason, "message": message, **times}
                      for kind, status, reason, message in CONDITIONS]
        metadata = content["metadata"]
        labels = {key: value for key, value in metadata["labels"].items() if value is not None}
        notes = {key: value for key, value in metadata["annotations"].items() if value is not None}
        body = content | {
            "metadata": metadata | {"labels": labels, "annotations": notes | {DIGEST: mark}},
            "spec": content["spec"] | {"podCIDR": cidr, "podCIDRs": [cidr]},
            "status": content["status"] | {"conditions": conditions},
        }
        try:
            self._client.create(NODES, body, **MANAGER)
        except ApiError as error:
            if error.status != 409:
                raise

    def _update(self, content: dict, mark: str, found: dict) -> None:
        name = content["metadata"]["name"]
        # A strategic merge: what plugins have registered stays.
        self._client.patch(f"{NODES}/{name}/status", {"status": content["status"]}, STRATEGIC, **MANAGER)
        metadata = {"labels": content["metadata"]["labels"], "annotations": content["metadata"]["annotations"] | {DIGEST: mark}}
        taints = taints_after(found, content["spec"].get("taints", []))
        self._client.patch(f"{NODES}/{name}", {"metadata": metadata, **({} if taints is None else {"spec": {"taints": taints}})}, **MANAGER)

    def _delete(self, name: str) -> None:
        try:
            self._client.delete(f"{NODES}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise


def _free_ranges(used: set[str]):
    first, second = POD_RANGE
    for number in range((256 - second) * 256):
        cidr = f"{first}.{second + number // 256}.{number % 256}.0/24"
        if cidr not in used:
            yield cidr
