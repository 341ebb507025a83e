"""How far the init containers of an operand's pod have come: what makes the real operands start in their order.

Each init container waits for the work of another operand on the same node, by files in /run/nvidia/validations there: driver-ready is
written once the driver works, toolkit-ready by the validator's second init container once a container can see the GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchlab.gpu_operator import operands
from orchlab.kube.objects import is_ready
from orchlab.simulator.pods import CRASH, INIT

# Simulated seconds: draining the node for the driver and loading it; unpacking the toolkit.
DRIVER_SECONDS = 20.0
ALL = "all"


@dataclass(frozen=True)
class OperandPod:
    """What of an operand's pod matters here. `instance` changes with each start of its first container; `env` is that container's and
    the config-manager's together; `notes` are its annotations under orchlab/."""

    name: str
    uid: str
    operand: str
    node: str
    inits: tuple[str, ...] = ()
    ready: bool = False
    deleting: bool = False
    over: bool = False
    instance: str = ""
    created: str = ""
    config_map: str = ""
    version: int = 0
    env: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()

    def note(self, key: str) -> str | None:
        return dict(self.notes).get(key)

    @property
    def runs(self) -> bool:
        """Its first container runs and does its work."""
        return self.ready and not self.deleting and self.note(CRASH) is None

    @property
    def open(self) -> bool:
        """All init containers are done."""
        return self.note(INIT) == ALL

    @property
    def done(self) -> int:
        """How many init containers are done, as far as it was told so."""
        told = self.note(INIT) or "0"
        return len(self.inits) if told == ALL else int(told) if told.isdigit() else 0


def of(pod: dict) -> OperandPod:
    """The pod as the API server returns it."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    notes = {key: value for key, value in (metadata.get("annotations") or {}).items() if key.startswith("orchlab/")}
    owner = next((o["name"] for o in metadata.get("ownerReferences") or [] if o["kind"] == "DaemonSet"), "")
    states = status.get("containerStatuses") or [{}]
    env = {one["name"]: one.get("value", "") for container in spec["containers"] for one in container.get("env") or []}
    config_map = next((v["configMap"]["name"] for v in spec.get("volumes") or [] if v["name"] == "nvidia-device-plugin-config"), "")
    return OperandPod(metadata["name"], metadata["uid"], owner, spec.get("nodeName", ""),
                      tuple(container["name"] for container in spec.get("initContainers") or []), is_ready(pod),
                      "deletionTimestamp" in metadata, status.get("phase") in ("Failed", "Succeeded"),
                      f"{metadata['uid']}/{states[0].get('restartCount', 0)}", metadata["creationTimestamp"], config_map,
                      int(metadata["resourceVersion"]), tuple(env.items()), tuple(notes.items()))


@dataclass(frozen=True)
class Validations:
    """What holds on a node: the driver works, the toolkit's container runs, the validator has seen the GPUs in a container, the node
    advertises GPUs."""

    driver: bool = False
    toolkit: bool = False
    toolkit_ready: bool = False
    advertised: bool = False


def validations(pods: dict[str, OperandPod], advertised: bool) -> Validations:
    """From the node's operand pods by DaemonSet. The simulated machines bring neither driver nor toolkit of their own: what the policy
    switches off is not there."""
    def runs(name: str) -> bool:
        return name in pods and pods[name].runs

    validator = pods.get(operands.VALIDATOR_DS)
    seen = validator is not None and not validator.deleting and validator.done > list(validator.inits).index(operands.TOOLKIT)
    return Validations(runs(operands.DRIVER_DS), runs(operands.TOOLKIT_DS), seen, advertised)


def progress(pod: OperandPod, now: Validations, age: float, seconds: float = DRIVER_SECONDS) -> tuple[int, float | None]:
    """(init containers done, simulated seconds after which to look again or None). `age`: simulated seconds since the pod was first seen.
    What a pod has done stays done."""
    done = pod.done
    validator = pod.operand == operands.VALIDATOR_DS
    for name in pod.inits[done:]:
        if name == operands.DRIVER_MANAGER:
            if age < seconds:
                return done, seconds - age
        elif name == operands.DRIVER and not now.driver:
            return done, None
        elif name == operands.TOOLKIT and not (now.driver and now.toolkit if validator else now.toolkit_ready):
            return done, None
        elif name == operands.PLUGIN and not now.advertised:
            return done, None
        done += 1
    return done, None
