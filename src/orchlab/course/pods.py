"""What a pod's own fields say, in one sentence. Pure: takes the API's JSON."""

from __future__ import annotations

import json
from typing import Any

from orchlab.course.answers import Text

GPU = "nvidia.com/gpu"
DEVICES = "orchlab/devices"


def condition(pod: dict[str, Any], type: str) -> dict[str, Any]:
    """One of its conditions, or {}."""
    return next((c for c in (pod.get("status") or {}).get("conditions") or [] if c["type"] == type), {})


def phase(pod: dict[str, Any]) -> str:
    return (pod.get("status") or {}).get("phase", "Pending")


def unschedulable(pod: dict[str, Any]) -> str:
    """The scheduler's words if it has found no node, else ""."""
    scheduled = condition(pod, "PodScheduled")
    return scheduled.get("message", "") if scheduled.get("status") == "False" else ""


def settled(pod: dict[str, Any]) -> bool:
    """It runs, has ended, or the scheduler has said that it can't be placed now."""
    return phase(pod) in ("Running", "Succeeded", "Failed") or bool(unschedulable(pod))


def gpus(pod: dict[str, Any], resource: str = GPU) -> int:
    """Devices of one resource that the pod occupies: the sum over its containers, or the largest init container if that is more."""
    def of(container: dict[str, Any]) -> int:
        resources = container.get("resources") or {}
        wanted = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        return int(wanted.get(resource, 0))

    spec = pod["spec"]
    sidecars = sum(of(c) for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always")
    init = max((of(c) for c in spec.get("initContainers") or [] if c.get("restartPolicy") != "Always"), default=0)
    return max(sum(of(c) for c in spec["containers"]) + sidecars, init)


def devices(pod: dict[str, Any]) -> dict[str, list[str]]:
    """Devices that the simulator has handed out, by container."""
    return json.loads((pod["metadata"].get("annotations") or {}).get(DEVICES, "{}"))


def sentence(pod: dict[str, Any]) -> str:
    """For example "pod/trainer Running on h100-1" or "pod/trainer Pending, Unschedulable: 0/9 nodes are available: …"."""
    name = f"pod/{pod['metadata']['name']}"
    if pod["metadata"].get("deletionTimestamp"):
        return f"{name} is being deleted"
    node = pod["spec"].get("nodeName")
    if node:
        status = pod.get("status") or {}
        why = ": ".join(filter(None, (status.get("reason"), status.get("message")))) if phase(pod) == "Failed" else ""
        return f"{name} {phase(pod)} on {node}" + (f" ({why})" if why else "")
    scheduled = condition(pod, "PodScheduled")
    if not scheduled:
        return f"{name} Pending; no scheduler has said anything about it"
    return f"{name} Pending, {scheduled.get('reason', '')}: {scheduled.get('message', '')}"


def table(pods: list[dict[str, Any]]) -> Text:
    """One line per pod: name, GPUs asked for, phase, node; under a pending pod the scheduler's words."""
    if not pods:
        return Text("no pods")
    width = max(len(pod["metadata"]["name"]) for pod in pods)
    lines = [f"{'pod':<{width}}  GPUs  phase      node"]
    for pod in pods:
        node = pod["spec"].get("nodeName") or "-"
        lines.append(f"{pod['metadata']['name']:<{width}}  {gpus(pod):>4}  {phase(pod):<9}  {node}")
        if words := unschedulable(pod):
            lines.append(f"  └ {words}")
    return Text("\n".join(lines))
