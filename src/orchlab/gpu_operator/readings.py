"""What a node's GPUs look like from inside: the inventory, who holds which device and how busy it is. For nvidia-smi and DCGM's metrics.

Which pod holds what is what the cluster says; utilisation and memory are made up from it: a pod that runs keeps its device nearly busy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from orchlab.gpu_operator import devices, names
from orchlab.gpu_operator.devices import Machine, State
from orchlab.gpus import inventory
from orchlab.gpus.inventory import Inventory
from orchlab.gpus.load import Holder, Load
from orchlab.gpus.sharing import PluginError
from orchlab.simulator import pods
from orchlab.simulator.inventory import REPLICA, Registered, registered
from orchlab.simulator.plugins import INVENTORY

# Of its part of a device a pod uses so much memory, and keeps the device busy so much of the time (and up to a tenth more).
MEMORY, BUSY = 0.8, 0.85


@dataclass
class Readings:
    """`state` is what the operator remembers of the node, `labels` the node's."""

    inventory: Inventory
    holders: list[Holder] = field(default_factory=list)
    loads: dict[str, Load] = field(default_factory=dict)
    state: State = field(default_factory=State)


def of_node(environment_id: str, node: dict, found: list[dict]) -> Readings:
    """From a Node object and the pods of the cluster (those of other nodes are left out)."""
    metadata = node["metadata"]
    name, notes = metadata["name"], metadata.get("annotations") or {}
    machine = Machine.of(environment_id, name, notes) or Machine(environment_id, name, "", 0)
    state = State.of(notes.get(names.STATE, ""))
    try:
        made = devices.gpus(machine, state, text=state.plugin.text)
    except PluginError:
        made = devices.gpus(machine, state)
    made.driver_ok = state.driver
    offered = registered(notes.get(INVENTORY, ""))
    holders, loads = [], {}
    for pod in found:
        if pod["spec"].get("nodeName") == name and pods.phase(pod) == "Running":
            holders += _holders(pod, made, offered)
    for device in {holder.device for holder in holders}:
        mine = [holder for holder in holders if holder.device == device]
        busy = min(1.0, sum(_busy(holder) for holder in mine))
        loads[device] = Load(busy, 0.6 * busy, 0.5 * busy, sum(holder.memory_mib for holder in mine))
    return Readings(made, holders, loads, state)


def _holders(pod: dict, made: Inventory, offered: dict[str, Registered]) -> list[Holder]:
    metadata, sizes = pod["metadata"], _sizes(made)
    replicas = {device: one.replicas for one in offered.values() for device in one.devices}
    mine = []
    for container, ids in pods.held_devices(pod).items():
        for slot in ids:
            device = slot.partition(REPLICA)[0]
            share = replicas.get(device) or 1 if REPLICA in slot else 1
            mine.append(Holder(slot, metadata["namespace"], metadata["name"], container, int(MEMORY * sizes.get(device, 0) / share)))
    return mine


def _sizes(made: Inventory) -> dict[str, int]:
    """Memory in MiB by UUID of a GPU or MIG device."""
    sizes = {gpu.uuid: gpu.figures.memory_mib for gpu in made.gpus}
    return sizes | {one.uuid: gpu.profile(one).memory_mib for gpu in made.gpus for one in gpu.instances}


def _busy(holder: Holder) -> float:
    digest = hashlib.sha256(f"{holder.namespace}/{holder.pod}/{holder.container}/{holder.slot}".encode()).digest()
    return BUSY + digest[0] / 2560


def of_pod(readings: Readings, namespace: str, name: str) -> Readings:
    """What a pod sees: only the devices that it holds, and only itself on them. NVML counts those that a process may open, from 0: a pod that
    holds the node's GPU 3 alone calls it GPU 0."""
    mine = [holder for holder in readings.holders if (holder.namespace, holder.pod) == (namespace, name)]
    held = {holder.device for holder in mine}
    gpus = []
    for gpu in readings.inventory.gpus:
        instances = [one for one in gpu.instances if one.uuid in held]
        if gpu.uuid in held or instances:
            gpus.append(inventory.Gpu(gpu.uuid, len(gpus), gpu.model, gpu.healthy, gpu.xid, gpu.mig_enabled, instances))
    seen = Inventory(readings.inventory.node, gpus, readings.inventory.driver_ok, mig_strategy=readings.inventory.mig_strategy,
                     sharing=readings.inventory.sharing)
    return Readings(seen, mine, readings.loads, readings.state)
