"""The MIG manager: what the label nvidia.com/mig.config asks for is made so, and nvidia.com/mig.config.state answers.

It runs for each new value of the label and when its pod starts. Pods that use GPUs are not evicted: a GPU that has to change while a pod
holds it makes the run fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from orchlab.gpu_operator import devices, names, operands
from orchlab.gpu_operator.devices import Machine, State
from orchlab.gpu_operator.gates import OperandPod
from orchlab.gpus import catalog, documents, inventory, mig_config
from orchlab.gpus.inventory import Inventory

# Simulated seconds: changing the mode of the GPUs, making the instances.
MODE_SECONDS, CONFIG_SECONDS = 15.0, 15.0
KEY = "config.yaml"
# The labels nvidia.com/gpu.deploy.* of those that keep GPUs open, and their DaemonSets.
CLIENTS = {"device-plugin": (operands.PLUGIN_DS, operands.MPS_DS), "gpu-feature-discovery": (operands.GFD_DS,),
           "dcgm-exporter": (operands.EXPORTER_DS,), "dcgm": (operands.DCGM_DS,), "nvsm": (), "client": ()}
BUSY = "In use by another client"


@dataclass
class Run:
    """One run that is under way: what it is for, its phase (pausing, changing) and since when (simulated s)."""

    key: str
    phase: str
    since: float


@dataclass
class Step:
    """What a look at a node leads to: labels, whether the validator's pod has to be restarted, what the manager logs, when to look again
    (simulated s), whether the state now says `done`."""

    labels: dict[str, str | None]
    run: Run | None = None
    restart_validator: bool = False
    log: str | None = None
    after: float | None = None
    done: bool = False


def generated_name(node: str) -> str:
    return f"{node}-mig-config"


@lru_cache(maxsize=256)
def generated(model: str, count: int) -> str:
    """The configuration that the MIG manager generates from a node's hardware."""
    return mig_config.dump(mig_config.generate([catalog.model(model)] * count))


def step(labels: Mapping[str, str], pods: Mapping[str, OperandPod], state: State, found: Machine, files: Mapping[str, str] | None,
         run: Run | None, busy: Callable[[], frozenset[str]], now: float) -> Step:
    """One look. `files` is the ConfigMap's data or None, `busy` gives the ids of the devices that pods hold."""
    manager, wanted = pods.get(operands.MIG_DS), labels.get(names.MIG_CONFIG)
    if manager is None or not manager.runs or not wanted:
        return Step({})
    key = f"{manager.instance} {wanted}"
    if key == state.mig_done:
        return Step({})
    if run is None or run.key != key:
        run = Run(key, "", now)
    inventory_now = devices.gpus(found, state)
    try:
        configs = mig_config.parse((files or {}).get(KEY, ""))
        changed = inventory.pending_mig_changes(inventory_now, configs, wanted)
        if run.phase == "" and not inventory.mig_config_applied(inventory_now, configs, wanted):
            pause = {names.DEPLOY + part: names.PAUSED for part in CLIENTS if _pausable(labels, part)}
            return Step({names.MIG_STATE: "pending"} | pause, Run(key, "pausing", now), log=f"Applying the selected MIG config: {wanted}")
        if run.phase == "pausing":
            if any(pod in pods for part in CLIENTS if labels.get(names.DEPLOY + part) == names.PAUSED for pod in CLIENTS[part]):
                return Step({}, run)
            held = {device.partition("::")[0] for device in busy()}
            if used := [index for index in changed if held & _devices(inventory_now, index)]:
                said = "\n".join(f"Error on GPU {index}: {BUSY}" for index in used)
                return _end(labels, "failed", log=f"{said}\nUnable to apply the selected MIG config: {wanted}")
            mode = any(inventory_now.gpus[index].mig_enabled != _enabled(configs, wanted, inventory_now, index) for index in changed)
            seconds = CONFIG_SECONDS + (MODE_SECONDS if mode else 0)
            return Step({}, Run(key, "changing", now + seconds), after=seconds)
        if run.phase == "changing":
            if now < run.since:
                return Step({}, run, after=run.since - now)
            inventory.apply_mig_config(inventory_now, configs, wanted)
            state.mig = {str(gpu.index): [[one.profile, one.start, one.size] for one in gpu.instances]
                         for gpu in inventory_now.gpus if gpu.mig_enabled}
            return _end(labels, "success", restart_validator=True, log=f"Successfully updated to MIG config: {wanted}")
        return _end(labels, "success", log=f"Selected MIG config already applied: {wanted}")
    except documents.ConfigError as error:
        return _end(labels, "failed", log=f"{error.log}\nUnable to apply the selected MIG config: {wanted}")


def _end(labels: Mapping[str, str], said: str, restart_validator: bool = False, log: str = "") -> Step:
    back = {names.DEPLOY + part: "true" for part in CLIENTS if labels.get(names.DEPLOY + part) == names.PAUSED}
    return Step({names.MIG_STATE: said} | back, None, restart_validator, log, done=True)


def _pausable(labels: Mapping[str, str], part: str) -> bool:
    """`false` is somebody's decision and stays. What nobody deploys here (nvsm, client) is left out."""
    value = labels.get(names.DEPLOY + part)
    return value != "false" and (value is not None or bool(CLIENTS[part]))


def _enabled(configs: mig_config.Configs, name: str, made: Inventory, index: int) -> bool:
    return mig_config.apply(configs, name, [gpu.figures for gpu in made.gpus])[index].mig_enabled


def _devices(made: Inventory, index: int) -> set[str]:
    gpu = made.gpus[index]
    return {gpu.uuid, *(instance.uuid for instance in gpu.instances)}
