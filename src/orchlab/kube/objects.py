"""Kubernetes objects, as raw JSON, read into nodes, units and events.

The devices of a pod are read from the annotation orchlab/devices (JSON: container → list of ids), else from
status.containerStatuses[].allocatedResourcesStatus, where kubelets report the health of allocated devices (KEP-4680). The same annotation
on a node (JSON: resource → list of ids) gives its devices in slot order. A pod's run is that of its first container that asks for GPUs,
else of its first container.
"""

from __future__ import annotations

import json
from datetime import datetime

from orchlab.snapshot import Event, LastRun, Node, Share, Unit

GPU_PREFIX = "nvidia.com/"
DEVICES = "orchlab/devices"
# A pod at a barrier, as the simulator notes it (see orchlab.simulator.barriers).
ADMITTED, WAITS_AT, RELEASED = "orchlab/admitted", "orchlab/waits-at", "orchlab/barrier-released"
SIMULATED = "orchlab/simulated"
RACK = "orchlab/rack"
POOL = "orchlab/pool"
ZONE = "topology.kubernetes.io/zone"
PRODUCT = "nvidia.com/gpu.product"


def is_ready(obj: dict) -> bool:
    """Whether the condition Ready of a Node or Pod object is True."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in (obj.get("status") or {}).get("conditions") or [])


def node_from(obj: dict) -> Node:
    """A Node object. `simulated`: "all" for the label orchlab/simulated=true or a simulated kubelet, "gpus" for orchlab/simulated=gpus."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    taints = (obj.get("spec") or {}).get("taints") or []
    simulated = "all" if labels.get(SIMULATED) == "true" or labels.get("orchlab/kubelet") == "simulated" else ""
    return Node(
        name=metadata["name"], zone=labels.get(ZONE, ""), rack=labels.get(RACK, ""), pool=labels.get(POOL, ""),
        product=labels.get(PRODUCT, ""),
        capacity=_gpus(status.get("capacity")), allocatable=_gpus(status.get("allocatable")),
        devices=_lists(annotations.get(DEVICES)), taints=tuple(_taint(t) for t in taints), ready=is_ready(obj),
        cordoned=bool((obj.get("spec") or {}).get("unschedulable")),
        simulated=simulated or ("gpus" if labels.get(SIMULATED) == "gpus" else ""))


def unit_from(obj: dict) -> Unit:
    """A Pod object."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    wanted, node = requests(spec), spec.get("nodeName", "")
    states = {s["name"]: s for s in status.get("containerStatuses") or []}
    main = states.get(_main(spec), {})
    state, phase = main.get("state") or {}, status.get("phase", "Pending")
    ended = _ended(obj, states) if phase in ("Succeeded", "Failed") else None
    reason, message = _why(status, states, node)
    started = seconds((state.get("running") or {}).get("startedAt"))
    if ended is not None:
        started = seconds((state.get("terminated") or {}).get("startedAt"))
    noted = _lists((metadata.get("annotations") or {}).get(DEVICES))
    devices = tuple(device for ids in noted.values() for device in ids) or _reported(states)
    barrier, released = _barrier(metadata)
    return Unit(
        id=metadata["uid"], kind="Pod", namespace=metadata.get("namespace", ""), name=metadata["name"], group=_group(metadata, spec),
        phase=phase, wanted=wanted, shares=_shares(node, wanted, devices), reason=reason, message=message,
        submitted=seconds(metadata.get("creationTimestamp")), bound=_condition_time(status, "PodScheduled", "True"),
        started=started, ended=ended, outcome=_outcome(status, main, phase) if ended is not None else "",
        restarts=main.get("restartCount", 0), last_run=_last_run(main) if ended is None else None,
        priority=spec.get("priorityClassName", ""), barrier=barrier, released=released)


def event_from(obj: dict) -> Event:
    """A core/v1 Event, from either of the two ways in which components write them."""
    about, series = obj.get("involvedObject") or {}, obj.get("series") or {}
    stamps = (series.get("lastObservedTime"), obj.get("lastTimestamp"), obj.get("eventTime"), obj.get("firstTimestamp"),
              obj["metadata"].get("creationTimestamp"))
    return Event(
        id=obj["metadata"]["uid"], at=next((seconds(stamp) for stamp in stamps if stamp), 0.0), type=obj.get("type", ""),
        reason=obj.get("reason", ""), about=f"{about.get('kind', '')} {about.get('name', '')}".strip(), message=obj.get("message", ""),
        source=obj.get("reportingComponent") or (obj.get("source") or {}).get("component", ""),
        count=series.get("count") or obj.get("count") or 1)


def requests(spec: dict) -> dict[str, int]:
    """Devices per nvidia.com resource that a pod spec asks for: the sum over containers and sidecars, or an init container's if larger."""
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    inits = spec.get("initContainers") or []
    for container in (spec.get("containers") or []) + [c for c in inits if c.get("restartPolicy") == "Always"]:
        for resource, count in _gpus((container.get("resources") or {}).get("limits")).items():
            running[resource] = running.get(resource, 0) + count
    for container in inits:
        for resource, count in _gpus((container.get("resources") or {}).get("limits")).items():
            peak[resource] = max(peak.get(resource, 0), count)
    return {r: n for r in sorted(running | peak) if (n := max(running.get(r, 0), peak.get(r, 0)))}


def seconds(stamp: str | None) -> float | None:
    """An RFC 3339 time as seconds since 1970; None for a missing one."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else None


def _barrier(metadata: dict) -> tuple[str, float | None]:
    """The barrier that a pod was admitted with and when it was released from it; annotations that came with a copied manifest don't count."""
    notes = metadata.get("annotations") or {}
    if WAITS_AT not in notes or notes.get(ADMITTED) != metadata["uid"]:
        return "", None
    try:
        return str(json.loads(notes[WAITS_AT])["name"]), seconds(notes.get(RELEASED))
    except (ValueError, KeyError, TypeError):
        return "", None


def _lists(text: str | None) -> dict[str, tuple[str, ...]]:
    """The annotation's lists by name; empty if it is missing or not of that form."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    lists = value.items() if isinstance(value, dict) else ()
    return {name: tuple(map(str, ids)) for name, ids in lists if isinstance(ids, list)}


def _reported(states: dict[str, dict]) -> tuple[str, ...]:
    """Ids that a kubelet reports, device plugins' only (an entry for DRA is named claim:…)."""
    return tuple(
        resource["resourceID"] for state in states.values() for entry in state.get("allocatedResourcesStatus") or []
        if entry["name"].startswith(GPU_PREFIX) for resource in entry.get("resources") or [])


def _gpus(quantities: dict | None) -> dict[str, int]:
    found = {name: value for name, value in (quantities or {}).items() if name.startswith(GPU_PREFIX)}
    return {name: int(found[name]) for name in sorted(found) if str(found[name]).isdigit()}


def _taint(taint: dict) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _main(spec: dict) -> str:
    containers = spec.get("containers") or [{}]
    return next((c["name"] for c in containers if _gpus((c.get("resources") or {}).get("limits"))), containers[0].get("name", ""))


def _group(metadata: dict, spec: dict) -> str:
    if gang := (spec.get("schedulingGroup") or {}).get("podGroupName"):
        return f"PodGroup/{gang}"
    owner = next((o for o in metadata.get("ownerReferences") or [] if o.get("controller")), None)
    return f"{owner['kind']}/{owner['name']}" if owner else ""


def _shares(node: str, wanted: dict[str, int], devices: tuple[str, ...]) -> tuple[Share, ...]:
    if not node:
        return ()
    if not wanted:
        return (Share(node),)
    shares, rest = [], devices
    for resource, count in wanted.items():
        shares.append(Share(node, resource, count, rest[:count]))
        rest = rest[count:]
    return tuple(shares)


def _condition(status: dict, kind: str, value: str) -> dict:
    return next((c for c in status.get("conditions") or [] if c["type"] == kind and c["status"] == value), {})


def _condition_time(status: dict, kind: str, value: str) -> float | None:
    return seconds(_condition(status, kind, value).get("lastTransitionTime"))


def _why(status: dict, states: dict[str, dict], node: str) -> tuple[str, str]:
    if not node:
        condition = _condition(status, "PodScheduled", "False")
        return condition.get("reason", ""), condition.get("message", "")
    initial = status.get("initContainerStatuses") or []
    waits = (w for s in [*initial, *states.values()] if (w := (s.get("state") or {}).get("waiting")))
    wait = next(waits, {})
    return wait.get("reason", ""), wait.get("message", "")


def _ended(obj: dict, states: dict[str, dict]) -> float | None:
    ends = [(s.get("state") or {}).get("terminated") or {} for s in states.values()]
    stamps = [stamp for end in ends if (stamp := seconds(end.get("finishedAt"))) is not None]
    status = obj["status"]
    fallbacks = (_condition_time(status, "Ready", "False"), _condition_time(status, "DisruptionTarget", "True"),
                 seconds(status.get("startTime")), seconds(obj["metadata"].get("creationTimestamp")))
    return max(stamps) if stamps else next((f for f in fallbacks if f is not None), 0.0)


def _outcome(status: dict, main: dict, phase: str) -> str:
    end = (main.get("state") or {}).get("terminated") or {}
    disruption = _condition(status, "DisruptionTarget", "True").get("reason")
    reason = status.get("reason") or disruption or (end.get("reason") if end.get("reason") not in ("Completed", "Error") else "")
    code = end.get("exitCode")
    text = f"{phase}: {reason}" if reason and phase == "Failed" else phase
    return f"{text} (exit {code})" if code else text


def _last_run(main: dict) -> LastRun | None:
    running = bool((main.get("state") or {}).get("running"))
    end = (main.get("state") or {}).get("terminated") or (main.get("lastState") or {}).get("terminated")
    if not end or not end.get("finishedAt"):
        return None
    finished = seconds(end["finishedAt"])
    number = main.get("restartCount", 0) - (1 if running else 0)
    text = f"{end.get('reason', '')} (exit {end.get('exitCode', 0)})".strip()
    return LastRun(max(0, number), seconds(end.get("startedAt")) or finished, finished, text)
