"""What a pod asks for and what it declares about itself. Pure functions over pods as the API returns them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from orchlab import clock
from orchlab.clock import Clock
from orchlab.errors import BadInput
from orchlab.simulator.inventory import Ask
from orchlab.simulator.settings import DEFAULT_RUN_SECONDS

# Written by the author of a pod.
RUN_FOR, START_AFTER, EXIT, EXIT_CODE = "orchlab/run-for", "orchlab/start-after", "orchlab/exit", "orchlab/exit-code"
# A pod of which others are needed, see barriers.py.
BARRIER, BARRIER_SIZE, BARRIER_TIMEOUT = "orchlab/barrier", "orchlab/barrier-size", "orchlab/barrier-timeout"
# Written by the simulated kubelet.
ADMITTED, DEVICES, REAL_SECONDS = "orchlab/admitted", "orchlab/devices", "orchlab/real-seconds"
START_AT, ENDS_WITH, POD_IP = "orchlab/start-at", "orchlab/ends-with", "orchlab/pod-ip"
# Of a barrier: what the pod waits for (JSON of Barrier), when it was released, or which run missed it.
WAITS_AT, RELEASED, MISSED = "orchlab/waits-at", "orchlab/barrier-released", "orchlab/barrier-missed"
# Written by the GPU Operator on its own pods: how many init containers are done ("all" of them: the pod runs), what the first container
# logs, that it cannot run, and with what error the next init container fails.
INIT, LOG, CRASH, INIT_ERROR = "orchlab/init", "orchlab/log", "orchlab/crash", "orchlab/init-error"
# Written by the fault pod-killed: the restart count of the run that it ends.
KILLED = "orchlab/killed"
# The condition that says what happens next to a simulated pod, and when.
NEXT = "orchlab/simulated"

# More pods than any cluster of ours has.
LARGEST_BARRIER = 1_000_000

_MILLI = {"n": 1e-6, "u": 1e-3, "m": 1, "": 1000, "k": 10**6, "M": 10**9, "G": 10**12, "T": 10**15, "P": 10**18, "E": 10**21,
          "Ki": 1000 * 2**10, "Mi": 1000 * 2**20, "Gi": 1000 * 2**30, "Ti": 1000 * 2**40, "Pi": 1000 * 2**50, "Ei": 1000 * 2**60}


@dataclass(frozen=True)
class Barrier:
    """A pod makes no progress until `size` pods of the barrier `name` in its namespace are Running at once; after `seconds` (real) of
    waiting it fails, None: it waits for ever."""

    name: str
    size: int
    seconds: float | None = None


@dataclass
class Plan:
    """How a pod's life goes. Times in real seconds; `seconds` None means until it is deleted; `ends_with` is "REASON/EXITCODE";
    `warnings` are problems with what the pod declares, for its events; `barrier` is what it waits for first."""

    seconds: float | None
    start_after: float
    ends_with: str
    warnings: list[str] = field(default_factory=list)
    barrier: Barrier | None = None


def phase(pod: dict) -> str:
    return (pod.get("status") or {}).get("phase", "")


def is_over(pod: dict) -> bool:
    return phase(pod) in ("Succeeded", "Failed")


def is_admitted(pod: dict) -> bool:
    """Whether a kubelet of ours admitted this very pod; the uid tells it from a copy whose annotations came along."""
    return (pod["metadata"].get("annotations") or {}).get(ADMITTED) == pod["metadata"]["uid"]


def held_devices(pod: dict) -> dict[str, list[str]]:
    """What the simulator wrote on the pod: {container: [device uuid, …]}; empty when it is not readable."""
    try:
        held = json.loads((pod["metadata"].get("annotations") or {}).get(DEVICES, "{}"))
        return {str(name): [str(device) for device in devices] for name, devices in held.items()}
    except (ValueError, AttributeError, TypeError):
        return {}


def barrier(pod: dict) -> Barrier | None:
    """What a pod of ours waits for, as written at its admission; of any other what it declares. None: nothing, or not readable."""
    notes = pod["metadata"].get("annotations") or {}
    if not is_admitted(pod):
        return _barrier(notes, [], Clock(1)) if BARRIER in notes else None
    try:
        found = json.loads(notes[WAITS_AT]) if WAITS_AT in notes else None
        return found and Barrier(str(found["name"]), int(found["size"]), None if found.get("seconds") is None else float(found["seconds"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def missed(pod: dict) -> tuple[int, int, int] | None:
    """(restart count, pods present, pods needed) of the latest run that missed its barrier; None if there is none."""
    parts = (pod["metadata"].get("annotations") or {}).get(MISSED, "").split("/")
    return (int(parts[0]), int(parts[1]), int(parts[2])) if len(parts) == 3 and all(part.isdigit() for part in parts) else None


def asks(pod: dict, resources: set[str]) -> list[Ask]:
    """What the pod's containers want of the given device resources, in the order in which a kubelet serves them."""
    found = []
    for kind, containers in (("init", pod["spec"].get("initContainers") or []), ("main", pod["spec"].get("containers") or [])):
        for container in containers:
            limits = (container.get("resources") or {}).get("limits") or {}
            sidecar = kind == "init" and container.get("restartPolicy") == "Always"
            for resource in sorted(resources & limits.keys()):
                count = milli(limits[resource]) // 1000
                if count:
                    found.append(Ask(container["name"], resource, count, "sidecar" if sidecar else kind))
    return found


def milli(quantity: str | int | float) -> int:
    """Thousandths in a quantity as the API server returns it ("250m", "64Gi", "1e3", 4)."""
    text = str(quantity)
    digits = text.rstrip("numkKMGTPEi")
    return round(float(digits) * _MILLI[text[len(digits):]])


def requests(pod: dict) -> dict[str, int]:
    """CPU and memory that the pod occupies, in thousandths: the sum over its containers and sidecars, or what its init containers need
    at most if that is more, plus its overhead; the pod's own requests go before."""
    spec = pod["spec"]
    total: dict[str, int] = {}
    for resource in ("cpu", "memory"):
        def of(container: dict, resource: str = resource) -> int:
            return milli((((container.get("resources") or {}).get("requests")) or {}).get(resource, 0))

        sidecars = peak = 0
        for container in spec.get("initContainers") or []:
            if container.get("restartPolicy") == "Always":
                sidecars += of(container)
            else:
                peak = max(peak, sidecars + of(container))
        total[resource] = max(peak, sidecars + sum(of(c) for c in spec.get("containers") or []))
        total[resource] = of(spec) or total[resource]
        total[resource] += milli((spec.get("overhead") or {}).get(resource, 0))
    return total


def plan(pod: dict, scale: Clock) -> Plan:
    """How long the pod runs and how it ends, from its annotations and its restart policy. What cannot be read is warned about and left
    at its default: orchlab/run-for 10m (simulated), no start-up time, exit code 0, no barrier, a barrier without a timeout."""
    notes = pod["metadata"].get("annotations") or {}
    warnings: list[str] = []

    def duration(name: str) -> float | None:
        if name not in notes:
            return None
        try:
            return clock.parse(notes[name], f"annotation {name}")
        except BadInput as error:
            warnings.append(f"{error.field}: {error.value!r}: {error.problem}; {error.remedy}; the default is used")
            return None

    seconds, start_after = duration(RUN_FOR), duration(START_AFTER)
    ends_with = _ends_with(notes, warnings)
    forever = pod["spec"].get("restartPolicy", "Always") == "Always" and seconds is None and ends_with == "Completed/0"
    if seconds is None and not forever:
        seconds = DEFAULT_RUN_SECONDS
    return Plan(seconds=None if seconds is None else scale.real_seconds(seconds), start_after=scale.real_seconds(start_after or 0),
                ends_with=ends_with, warnings=warnings, barrier=_barrier(notes, warnings, scale))


def _barrier(notes: dict[str, str], warnings: list[str], scale: Clock) -> Barrier | None:
    name, size = notes.get(BARRIER), notes.get(BARRIER_SIZE)
    if name is None:
        warnings += [f"annotation {one}: {notes[one]!r}: belongs to a barrier; name it in {BARRIER}; it is ignored"
                     for one in (BARRIER_SIZE, BARRIER_TIMEOUT) if one in notes]
        return None
    if not name.strip():
        warnings.append(f"annotation {BARRIER}: {name!r}: is not a name; pods that wait for each other have the same; the pod does not wait")
        return None
    if size is None:
        warnings.append(f"annotation {BARRIER_SIZE}: is missing; say how many pods of {name!r} have to be Running at once; the pod does not wait")
        return None
    if not (size.isascii() and size.isdigit() and 1 <= int(size) <= LARGEST_BARRIER):
        warnings.append(f"annotation {BARRIER_SIZE}: {size!r}: is not a whole number from 1 to {LARGEST_BARRIER}; the pod does not wait")
        return None
    seconds = None
    if BARRIER_TIMEOUT in notes:
        try:
            seconds = scale.real_seconds(clock.parse(notes[BARRIER_TIMEOUT], f"annotation {BARRIER_TIMEOUT}"))
        except BadInput as error:
            warnings.append(f"{error.field}: {error.value!r}: {error.problem}; {error.remedy}; it waits for ever")
    return Barrier(name, int(size), seconds)


def _ends_with(notes: dict[str, str], warnings: list[str]) -> str:
    wanted, code = notes.get(EXIT), notes.get(EXIT_CODE)
    if wanted is not None and wanted not in ("error", "oom"):
        warnings.append(f'annotation {EXIT}: {wanted!r}: is not a way to end; use "error" or "oom"; the pod completes')
        wanted = None
    if wanted == "oom":
        if code is not None:
            warnings.append(f"annotation {EXIT_CODE}: {code!r}: an OOM kill always exits with 137; the annotation is ignored")
        return "OOMKilled/137"
    if code is not None:
        lowest = 1 if wanted == "error" else 0
        if not (code.isascii() and code.isdigit() and lowest <= int(code) <= 255):
            warnings.append(f"annotation {EXIT_CODE}: {code!r}: is not a whole number from {lowest} to 255; the default is used")
        else:
            return f"{'Error' if int(code) else 'Completed'}/{int(code)}"
    return "Error/1" if wanted == "error" else "Completed/0"
