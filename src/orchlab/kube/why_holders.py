"""Who holds what on which nodes, and which pods of the GPU stack are in trouble there."""

from __future__ import annotations

from dataclasses import dataclass

from orchlab.kube import why_match as match
from orchlab.kube.why_facts import Facts, controller, full_name

ENDLESS = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet")
STACK = ("nvidia-", "gpu-feature-discovery", "gpu-operator")


@dataclass(frozen=True)
class Holder:
    """A workload, or a bare pod, with what its pods hold in thousandths. `ends`: whether it is of a kind that ends by itself."""

    kind: str
    name: str
    amount: int
    pods: int
    nodes: tuple[str, ...]
    since: str
    ends: bool

    def line(self, resource: str) -> str:
        forever = "" if self.ends else "; it does not end by itself"
        return (f"{self.name} holds {match.shown(resource, self.amount)} {resource} in {self.pods} pod(s) on {', '.join(self.nodes[:4])}"
                f"{' …' if len(self.nodes) > 4 else ''} since {self.since}{forever}")


def of(facts: Facts, nodes: list[str], resource: str) -> list[Holder]:
    """Holders of a resource on these nodes, those with most first. Names are deploy/NAME -n NAMESPACE and the like."""
    found: dict[tuple[str, str], list[dict]] = {}
    for node in nodes:
        for pod in facts.on.get(node, ()):
            if facts.asked[pod["metadata"]["uid"]].get(resource):
                found.setdefault(workload(pod), []).append(pod)
    return sorted((_holder(facts, kind, name, pods, resource) for (kind, name), pods in found.items()), key=lambda one: (-one.amount, one.name))


def workload(pod: dict) -> tuple[str, str]:
    """(kind, how to ask about it): a ReplicaSet of a Deployment counts as the Deployment."""
    namespace, owner = pod["metadata"].get("namespace", ""), controller(pod)
    if owner is None:
        return "Pod", f"pod/{pod['metadata']['name']} -n {namespace}"
    kind, name, hash_ = owner["kind"], owner["name"], match.labels(pod).get("pod-template-hash")
    if kind == "ReplicaSet" and hash_ and name.endswith(f"-{hash_}"):
        kind, name = "Deployment", name.removesuffix(f"-{hash_}")
    short = {"Deployment": "deploy", "ReplicaSet": "rs", "StatefulSet": "sts", "DaemonSet": "ds"}.get(kind, kind.lower())
    return kind, f"{short}/{name} -n {namespace}"


def operands(facts: Facts, nodes: set[str]) -> list[str]:
    """Pods of NVIDIA's GPU stack on these nodes that are not ready, with what their containers say."""
    lines = []
    for pod in facts["pods"]:
        if pod["spec"].get("nodeName") not in nodes or not pod["metadata"]["name"].startswith(STACK):
            continue
        status = pod.get("status") or {}
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or [])
        if not ready and status.get("phase") != "Succeeded":
            lines.append(f"pod {full_name(pod)} on {pod['spec']['nodeName']}: {_trouble(status)}")
    # The device plugin itself first.
    return sorted(lines, key=lambda line: ("device-plugin" not in line, line))


def _trouble(status: dict) -> str:
    for one in (*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])):
        if waiting := (one.get("state") or {}).get("waiting"):
            last = ((one.get("lastState") or {}).get("terminated") or {})
            exit_code = f", last exit status {last['exitCode']}" if "exitCode" in last else ""
            return f"container {one['name']} is in {waiting.get('reason', 'waiting')}{exit_code}"
    return f"phase {status.get('phase', 'unknown')}, not ready"


def _holder(facts: Facts, kind: str, name: str, pods: list[dict], resource: str) -> Holder:
    nodes = tuple(sorted({pod["spec"]["nodeName"] for pod in pods}))
    since = min((pod.get("status") or {}).get("startTime") or pod["metadata"].get("creationTimestamp") or "?" for pod in pods)
    ends = kind not in ENDLESS and not (kind == "Pod" and pods[0]["spec"].get("restartPolicy", "Always") == "Always")
    return Holder(kind, name, sum(facts.asked[pod["metadata"]["uid"]][resource] for pod in pods), len(pods), nodes, since, ends)
