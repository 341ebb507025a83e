"""Nodes, pods and the rest as raw JSON for the tests of `why`: the nine nodes on which the scheduler said the sentences of why_sentences."""

from __future__ import annotations

import itertools

from orchlab.kube.why_facts import Facts

GPU, PRODUCT, ZONE, HOST = "nvidia.com/gpu", "nvidia.com/gpu.product", "topology.kubernetes.io/zone", "kubernetes.io/hostname"
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
TOLERATED = [{"key": GPU, "operator": "Exists"}]
SPACE = "team"
_numbers = itertools.count(1)


def node(name: str, cpu: int = 16, gpus: int = 0, product: str = "", zone: str = "zone-a", ready: bool = True, taints=None, allocatable=None,
         capacity=None, **spec) -> dict:
    labels = {HOST: name, ZONE: zone} | ({PRODUCT: product} if product else {})
    has = {"cpu": str(cpu), "memory": "64Gi", "pods": "110"} | ({GPU: str(gpus)} if gpus else {})
    taints = ([TAINT] if gpus else []) if taints is None else taints
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints, **spec}, "status": {
        "allocatable": has | (allocatable or {}), "capacity": has | (capacity or {}),
        "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown", "reason": "KubeletReady" if ready else "NodeStatusUnknown",
                        "message": "Kubelet stopped posting node status." if not ready else ""}]}}


def fleet() -> list[dict]:
    a100, h100 = "NVIDIA-A100-SXM4-40GB", "NVIDIA-H100-80GB-HBM3"
    return [node("a100-0", 48, 4, a100), node("a100-1", 48, 4, a100, "zone-b"), node("cpu-0"), node("cpu-1", zone="zone-b"),
            node("h100-0", 192, 8, h100), node("h100-1", 192, 8, h100), node("h100-2", 192, 8, h100, "zone-b"),
            node("h100-3", 192, 8, h100, "zone-b"), node("t4-0", 32, 2, "Tesla-T4")]


def pod(name: str = "mine", limits: dict | None = None, on: str = "", says: str = "", phase: str = "Pending", tolerated: bool = True,
        labels: dict | None = None, owner: tuple[str, str] | None = None, status: dict | None = None, metadata: dict | None = None,
        **spec) -> dict:
    """`limits`: {"gpu": 1, "cpu": "2"}; `says`: the scheduler's sentence; `on`: its node."""
    wanted = {{"gpu": GPU}.get(key, key): str(value) for key, value in (limits or {}).items()}
    number = next(_numbers)
    made = {"name": name, "namespace": SPACE, "uid": f"pod-{number}", "labels": labels or {}, "creationTimestamp": "2026-01-01T00:00:00Z"}
    if owner:
        made["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "uid": f"{owner[0]}-{owner[1]}", "controller": True}]
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": says}] if says else []
    return {"kind": "Pod", "metadata": made | (metadata or {}), "spec": {
        "containers": [{"name": "main", "image": "i", "resources": {"limits": wanted, "requests": dict(wanted)}}], "restartPolicy": "Never",
        **({"tolerations": TOLERATED} if tolerated else {}), **({"nodeName": on} if on else {}), **spec},
        "status": {"phase": phase, "conditions": conditions, **(status or {})}}


def running(name: str, on: str, limits: dict | None = None, **more) -> dict:
    made = pod(name, limits, on, phase="Running", **more)
    made["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return made


def container(state: dict, last: dict | None = None, restarts: int = 0, name: str = "main") -> dict:
    return {"name": name, "state": state, "lastState": last or {}, "restartCount": restarts}


def waits(reason: str, message: str = "") -> dict:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str = "Error") -> dict:
    return {"terminated": {"exitCode": code, "reason": reason}}


def event(about: dict, reason: str, message: str, kind: str = "", source: str = "kubelet") -> dict:
    meta = about["metadata"]
    return {"metadata": {"name": f"e{next(_numbers)}"}, "involvedObject": {"kind": kind or about["kind"], "namespace": meta.get("namespace", ""),
            "name": meta["name"], "uid": meta.get("uid", "")}, "reason": reason, "message": message, "type": "Warning",
            "reportingComponent": source, "eventTime": "2026-01-01T00:00:01.000000Z"}


def owner(kind: str, name: str, spec: dict, status: dict | None = None, labels: dict | None = None) -> dict:
    return {"kind": kind, "metadata": {"name": name, "namespace": SPACE, "uid": f"{kind}-{name}", "labels": labels or {}}, "spec": spec,
            "status": status or {}}


def facts(*pods: dict, nodes: list[dict] | None = None, **lists: list[dict]) -> Facts:
    return Facts.of({"nodes": fleet() if nodes is None else nodes, "pods": list(pods), **lists})


def required(kind: str, app: str, key: str = HOST, **more) -> dict:
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **more}]}}


def selecting(key: str, operator: str, *values: str, fields: bool = False) -> dict:
    one = {"key": key, "operator": operator} | ({"values": list(values)} if values else {})
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields" if fields else "matchExpressions": [one]}]}}}
