"""The operator's pods, the nodes and the ClusterPolicy as they are now, and in which order the operands became ready; by watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from orchlab.gpu_operator import names, operands
from orchlab.gpu_operator.operands import OPERANDS
from orchlab.gpu_operator.policy import Policy
from orchlab.kube.client import Client
from orchlab.kube.following import Following
from orchlab.kube.objects import is_ready
from orchlab.snapshot import ClusterSnapshot, natural
from orchlab.timeline import Timeline

GPU, NFD = "nvidia.com/gpu", names.NFD_WORKER
# DaemonSets by the short names of this lab's tables.
SHORT = {"NFD": NFD, "driver": operands.DRIVER_DS, "toolkit": operands.TOOLKIT_DS, "plugin": operands.PLUGIN_DS, "GFD": operands.GFD_DS,
         "DCGM exporter": operands.EXPORTER_DS, "MIG manager": operands.MIG_DS, "validator": operands.VALIDATOR_DS}


@dataclass(frozen=True)
class Pod:
    """An operand's pod: `words` as kubectl's STATUS has them (Ready instead of Running), `inside` the init container that runs."""

    uid: str
    operand: str
    node: str
    words: str
    inside: str = ""
    ending: bool = False

    @property
    def ready(self) -> bool:
        return self.words == "Ready"


@dataclass
class Node:
    """Labels, and how many nvidia.com/gpu it has: None where it never had any. `was`: (monotonic s, capacity, allocatable) by change."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    capacity: int | None = None
    allocatable: int | None = None
    was: list[tuple[float, int | None, int | None]] = field(default_factory=list)

    @property
    def numbers(self) -> str:
        return "-" if self.capacity is None else f"{self.allocatable} of {self.capacity}"


def pod_of(found: dict) -> Pod:
    """A pod as the API has it."""
    metadata, spec = found["metadata"], found["spec"]
    owner = next((one["name"] for one in metadata.get("ownerReferences") or [] if one["kind"] == "DaemonSet"), "")
    words, inside = _words(found)
    ending = "deletionTimestamp" in metadata
    return Pod(metadata["uid"], owner, spec.get("nodeName", ""), "Terminating" if ending else words, inside, ending)


def _words(found: dict) -> tuple[str, str]:
    spec, status = found["spec"], found.get("status") or {}
    inits = [one["name"] for one in spec.get("initContainers") or []]
    states = {one["name"]: one.get("state") or {} for one in status.get("initContainerStatuses") or []}
    done = sum(1 for name in inits if (states.get(name) or {}).get("terminated", {}).get("exitCode") == 0)
    if done < len(inits):
        why = (states.get(inits[done]) or {}).get("waiting", {}).get("reason", "")
        return (f"Init:{why}" if why not in ("", "PodInitializing") else f"Init:{done}/{len(inits)}"), inits[done]
    for one in status.get("containerStatuses") or []:
        state = one.get("state") or {}
        if "terminated" in state:
            return state["terminated"].get("reason") or "Error", ""
        if (why := state.get("waiting", {}).get("reason", "")) not in ("", "PodInitializing", "ContainerCreating"):
            return why, ""
    return ("Ready" if is_ready(found) else "starting"), ""


class Operands(Following):
    """A source for orchlab.views.Live, which asks `snapshot` only whether there is something to draw. Thread-safe."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.timeline = Timeline()
        self.policy: Policy | None = None
        self.state = ""
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, Node] = {}
        self._firsts: dict[tuple[str, str], int] = {}
        self._changes = 0
        self.follow("Node", "/api/v1/nodes", self._list_nodes, self._node)
        self.follow("Pod", names.PODS, self._list_pods, self._pod)
        self.follow("ClusterPolicy", names.POLICIES, self._list_policies, self._policy)

    def snapshot(self) -> ClusterSnapshot:
        return ClusterSnapshot(taken=time.time() if self.listed else 0.0, trouble=self.trouble)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """As Following's; with the last listener all ends."""
        end = super().on_change(listener)

        def end_all() -> None:
            end()
            if not self._listeners:
                self.stop(0)

        return end_all

    # -- reading

    def nodes(self) -> list[Node]:
        with self._lock:
            return sorted((Node(n.name, n.labels, n.capacity, n.allocatable, list(n.was)) for n in self._nodes.values()),
                          key=lambda node: natural(node.name))

    def pod(self, node: str, operand: str) -> Pod | None:
        """The operand's pod on a node: of two the one that stays."""
        with self._lock:
            found = [pod for pod in self._pods.values() if pod.node == node and pod.operand == operand]
        return min(found, key=lambda pod: pod.ending, default=None)

    def wanted(self, node: Node) -> list[str]:
        """The DaemonSets that ClusterPolicy and the node's labels ask for."""
        policy = self.policy
        if policy is None:
            return []
        return [one.name for one in OPERANDS if policy.enabled(one.section)
                and node.labels.get(names.DEPLOY + one.label) == "true"
                and (one.name != operands.MPS_DS or node.labels.get(names.MPS_CAPABLE) == "true")]

    def missing(self, node: Node) -> str:
        """What is not yet as ClusterPolicy and the labels ask for; "" for nothing."""
        wanted, plugin = self.wanted(node), SHORT["plugin"]
        for operand in [one.name for one in OPERANDS]:
            pod = self.pod(node.name, operand)
            if (operand in wanted) != (pod is not None) or (pod and not pod.ready):
                return f"{operand} on {node.name}: {pod.words if pod else 'no pod yet'}"
        if self.policy is None:
            return f"{node.name} offers {node.numbers}" if node.allocatable else ""
        if node.labels.get(names.NFD[0]) == "true" and node.labels.get(names.PRESENT) != "true":
            return f"{node.name} is not labelled by the operator"
        if SHORT["GFD"] in wanted and names.MIG_CAPABLE not in node.labels:
            return f"{node.name} is not labelled by GPU Feature Discovery"
        if SHORT["MIG manager"] in wanted and node.labels.get(names.MIG_STATE) != "success":
            return f"the MIG manager of {node.name} has not answered"
        if bool(node.allocatable) != (plugin in wanted):
            return f"{node.name} offers {node.numbers}"
        return ""

    def before(self, node: str, first: str, second: str) -> bool:
        """Whether one operand's present pod became ready before another's, as the watch told it."""
        with self._lock:
            one, other = self._firsts.get((node, first)), self._firsts.get((node, second))
        return one is not None and other is not None and one < other

    # -- what the watches bring

    def _list_nodes(self, items: list[dict], seen: float) -> None:
        there = {item["metadata"]["name"] for item in items}
        with self._lock:
            self._nodes = {name: node for name, node in self._nodes.items() if name in there}
        for item in items:
            self._node("ADDED", item, seen)

    def _node(self, kind: str, item: dict, seen: float) -> None:
        name, status = item["metadata"]["name"], item.get("status") or {}
        with self._lock:
            if kind == "DELETED":
                self._nodes.pop(name, None)
                return
            node = self._nodes.setdefault(name, Node(name))
            node.labels = item["metadata"].get("labels") or {}
            capacity, allocatable = ((status.get(part) or {}).get(GPU) for part in ("capacity", "allocatable"))
            node.capacity = int(capacity) if capacity is not None else None
            node.allocatable = int(allocatable) if allocatable is not None else None
            if not node.was or node.was[-1][1:] != (node.capacity, node.allocatable):
                node.was.append((time.monotonic(), node.capacity, node.allocatable))

    def _list_pods(self, items: list[dict], seen: float) -> None:
        with self._lock:
            self._changes += 1
            self._pods = {pod.uid: pod for pod in map(pod_of, items)}
            self._firsts = {(pod.node, pod.operand): self._changes for pod in self._pods.values() if pod.ready}

    def _pod(self, kind: str, item: dict, seen: float) -> None:
        pod = pod_of(item)
        with self._lock:
            self._changes += 1
            old = self._pods.pop(pod.uid, None)
            if kind != "DELETED":
                self._pods[pod.uid] = pod
            if pod.ready and kind != "DELETED":
                if not (old and old.ready):
                    self._firsts[pod.node, pod.operand] = self._changes
            elif old and old.ready:
                self._firsts.pop((pod.node, pod.operand), None)

    def _list_policies(self, items: list[dict], seen: float) -> None:
        mine = next((item for item in items if item["metadata"]["name"] == names.POLICY), None)
        with self._lock:
            self.policy, self.state = (Policy.of(mine), (mine.get("status") or {}).get("state", "")) if mine else (None, "")

    def _policy(self, kind: str, item: dict, seen: float) -> None:
        if item["metadata"]["name"] == names.POLICY:
            self._list_policies([] if kind == "DELETED" else [item], seen)
