"""What the operator knows of the cluster, kept by its watches. Only what matters is kept: thousands of pods and nodes have to fit."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from orchlab.gpu_operator import gates, names, operands
from orchlab.gpu_operator.gates import OperandPod

KNOWN = {*operands.BY_NAME, names.NFD_WORKER}


@dataclass(frozen=True)
class KnownNode:
    """A node as last seen."""

    name: str
    version: int
    labels: Mapping[str, str]
    notes: Mapping[str, str]
    allocatable: Mapping[str, str]

    @classmethod
    def of(cls, found: dict) -> KnownNode:
        metadata = found["metadata"]
        notes = {key: value for key, value in (metadata.get("annotations") or {}).items() if key.startswith("orchlab/gpu-")}
        allocatable = {key: value for key, value in ((found.get("status") or {}).get("allocatable") or {}).items()
                       if key.startswith(names.PREFIX)}
        return cls(metadata["name"], _version(found), metadata.get("labels") or {}, notes, allocatable)


class Cache:
    """Thread-safe. An object that is older than the one that is known is ignored. The answers to one's own writes may be put in too, as
    `own`: one that is not known any more was deleted meanwhile, and no watch would ever take it away again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, KnownNode] = {}
        self._pods: dict[str, OperandPod] = {}
        self._on_node: dict[str, set[str]] = {}
        self._objects: dict[str, dict[str, dict]] = {}

    def node(self, name: str) -> KnownNode | None:
        with self._lock:
            return self._nodes.get(name)

    def nodes(self) -> list[KnownNode]:
        with self._lock:
            return list(self._nodes.values())

    def put_node(self, found: dict, own: bool = False) -> bool:
        """Returns whether anything that matters is new."""
        new = KnownNode.of(found)
        with self._lock:
            known = self._nodes.get(new.name)
            if (known is None and own) or (known is not None and new.version < known.version):
                return False
            self._nodes[new.name] = new
        return known is None or (known.labels, known.notes, known.allocatable) != (new.labels, new.notes, new.allocatable)

    def drop_node(self, name: str) -> None:
        with self._lock:
            self._nodes.pop(name, None)

    def only_nodes(self, there: set[str]) -> None:
        with self._lock:
            self._nodes = {name: node for name, node in self._nodes.items() if name in there}

    def pods(self, node: str) -> dict[str, OperandPod]:
        """The operands' pods on a node by DaemonSet: of several the one that stays, else the newest. Those that are over are not there."""
        with self._lock:
            found = sorted((self._pods[uid] for uid in self._on_node.get(node, ())), key=lambda pod: (not pod.deleting, pod.created))
        return {pod.operand: pod for pod in found if not pod.over}

    def put_pod(self, found: dict, own: bool = False) -> str | None:
        """Returns the node of an operand's pod if anything that matters is new."""
        new = gates.of(found)
        if new.operand not in KNOWN or not new.node:
            return None
        with self._lock:
            known = self._pods.get(new.uid)
            if (known is None and own) or (known is not None and new.version <= known.version):
                return None
            self._pods[new.uid] = new
            self._on_node.setdefault(new.node, set()).add(new.uid)
        return new.node

    def drop_pod(self, uid: str) -> str | None:
        """Returns the node that it was on."""
        with self._lock:
            known = self._pods.pop(uid, None)
            if known is not None:
                self._on_node[known.node].discard(uid)
            return known.node if known else None

    def only_pods(self, there: set[str]) -> None:
        for uid in self._pods.keys() - there:
            self.drop_pod(uid)

    def objects(self, kind: str) -> dict[str, dict]:
        """DaemonSets, ConfigMaps or ClusterPolicies by name."""
        with self._lock:
            return dict(self._objects.get(kind, {}))

    def put_object(self, kind: str, found: dict, own: bool = False) -> None:
        found["metadata"].pop("managedFields", None)
        name = found["metadata"]["name"]
        with self._lock:
            known = self._objects.setdefault(kind, {}).get(name)
            if (known is None and own) or (known is not None and _version(found) < _version(known)):
                return
            self._objects[kind][name] = found

    def drop_object(self, kind: str, name: str) -> None:
        with self._lock:
            self._objects.setdefault(kind, {}).pop(name, None)

    def only_objects(self, kind: str, there: set[str]) -> None:
        with self._lock:
            self._objects[kind] = {name: one for name, one in self._objects.get(kind, {}).items() if name in there}


def _version(found: dict) -> int:
    return int(found["metadata"]["resourceVersion"])
