"""A node's GPUs: which there are, how they are partitioned and shared, and which are ill. Everything that a node says about its GPUs
follows from this: the resources that its kubelet advertises (here), labels.py, smi.py and dcgm.py.

Pure and JSON-serialisable: knows no API. The plugin's failures are those of NVIDIA's k8s-device-plugin 0.20, in its words.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchlab.errors import BadInput
from orchlab.gpus import catalog, mig, mig_config, sharing
from orchlab.gpus.catalog import GpuModel, MigProfile
from orchlab.gpus.sharing import GPU, PluginError, Sharing

DRIVER = "580.95.05"
CUDA = "13.0"
# XIDs that the device plugin takes for errors of the application.
IGNORED_XIDS = frozenset({13, 31, 43, 45, 68, 109})
# The PCI buses of the eight GPUs of a DGX; further ones follow on.
_BUSES = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)
_GETTING = "error getting plugins: unable to create plugins: "
_DEVICE_MAP = (_GETTING + "failed to construct resource managers: error building device map: "
               "error building device map from config.resources: ")


@dataclass(frozen=True)
class Instance:
    """One MIG device (a GPU instance with one compute instance over all of it): `gi` is the GPU instance id, start:size its placement."""

    uuid: str
    profile: str
    gi: int
    start: int
    size: int


@dataclass
class Gpu:
    """One GPU. `xid` is the last error that the driver reported (0: none); `healthy` is what the device plugin makes of it."""

    uuid: str
    index: int
    model: str
    healthy: bool = True
    xid: int = 0
    mig_enabled: bool = False
    instances: list[Instance] = field(default_factory=list)

    @property
    def figures(self) -> GpuModel:
        return catalog.model(self.model)

    @property
    def bus_id(self) -> str:
        """PCI address as NVML writes it; made up, the same for the same index."""
        bus = _BUSES[self.index] if self.index < len(_BUSES) else 0xC0 + self.index - len(_BUSES)
        return f"00000000:{bus:02X}:00.0"

    def profile(self, instance: Instance) -> MigProfile:
        return mig.profile(self.figures, instance.profile)


@dataclass
class Inventory:
    """A node's GPUs in the order of their indexes. `driver_ok` False: the driver is not loaded, nobody sees a GPU. `mig_strategy` is the
    one in force (none, single, mixed)."""

    node: str
    gpus: list[Gpu] = field(default_factory=list)
    driver_ok: bool = True
    driver: str = DRIVER
    cuda: str = CUDA
    mig_strategy: str = "none"
    sharing: Sharing = field(default_factory=Sharing)


@dataclass(frozen=True)
class Slot:
    """One device as the plugin offers it to the kubelet: `id` is what a pod is given, `device` the UUID behind it, `replica` its number
    among the replicas of that device, `gpu` the index of the GPU."""

    id: str
    device: str
    gpu: int
    replica: int = 0
    healthy: bool = True


def of_node(environment_id: str, node: str, model: str | None, count: int) -> Inventory:
    """A node with `count` whole GPUs. The UUIDs are the same in every start of the same environment. Raises BadInput for a bad model."""
    if count and model is not None:
        catalog.model(model)
    namespace = uuid.uuid5(uuid.NAMESPACE_URL, f"orchlab:{environment_id}")
    return Inventory(node, [Gpu(f"GPU-{uuid.uuid5(namespace, f'{node}/{index}')}", index, model or "") for index in range(count)])


def partition(gpu: Gpu, enabled: bool, placements: Sequence[mig.Placement] = ()) -> None:
    """Sets MIG mode and makes these instances, whose UUIDs follow from the GPU and the place. Raises BadInput for a GPU without MIG."""
    if enabled or placements:
        mig.capable(gpu.figures)
    namespace = uuid.UUID(gpu.uuid.removeprefix("GPU-"))
    gpu.mig_enabled = enabled
    gpu.instances = []
    for placement in placements if enabled else ():
        gi = mig.instance_id(gpu.figures, placement)
        name = f"MIG-{uuid.uuid5(namespace, f'{placement.profile}/{gi}/0')}"
        gpu.instances.append(Instance(name, placement.profile, gi, placement.start, placement.size))
    gpu.instances.sort(key=lambda instance: instance.gi)


def apply_mig_config(inventory: Inventory, configs: mig_config.Configs, name: str) -> list[int]:
    """Partitions the GPUs as configuration `name` says; returns the indexes of the GPUs that changed. All or nothing. Raises
    MigApplyError."""
    changed = []
    layouts = mig_config.apply(configs, name, [gpu.figures for gpu in inventory.gpus])
    for index, layout in layouts.items():
        gpu = inventory.gpus[index]
        before = (gpu.mig_enabled, list(gpu.instances))
        partition(gpu, layout.mig_enabled, layout.placements)
        if (gpu.mig_enabled, gpu.instances) != before:
            changed.append(index)
    return changed


def pending_mig_changes(inventory: Inventory, configs: mig_config.Configs, name: str) -> list[int]:
    """The indexes of the GPUs that configuration `name` would change. Raises MigApplyError."""
    return apply_mig_config(replace(inventory, gpus=[replace(gpu, instances=list(gpu.instances)) for gpu in inventory.gpus]), configs, name)


def mig_config_applied(inventory: Inventory, configs: mig_config.Configs, name: str) -> bool:
    """What mig-parted's assert says before it changes anything: is configuration `name` in force? Only if an entry matches every GPU of
    the node and each is as its last entry says. So a configuration for some of the GPUs, or with a count of 0, never counts as applied,
    and asking for it again makes the MIG manager go through the whole change. Raises MigApplyError for an unknown name."""
    matched = [False] * len(inventory.gpus)
    for entry in mig_config.select(configs, name):
        for gpu in inventory.gpus:
            if not entry.matches(gpu.index, gpu.figures.pci_device_id):
                continue
            if not gpu.figures.mig_capable:
                if entry.mig_enabled:
                    return False
                matched[gpu.index] = True
            else:
                made = Counter(instance.profile for instance in gpu.instances)
                matched[gpu.index] = entry.mig_enabled == gpu.mig_enabled and (not entry.mig_enabled or dict(made) == entry.mig_devices)
    return all(matched)


def report_xid(gpu: Gpu, xid: int) -> None:
    """The driver reports this error. The plugin marks the GPU unhealthy, for good, unless it is an error of the application."""
    gpu.xid = xid
    gpu.healthy = gpu.healthy and xid in IGNORED_XIDS


def restart_plugin(inventory: Inventory) -> None:
    """A plugin that starts takes every GPU for healthy until the driver reports the next error."""
    for gpu in inventory.gpus:
        gpu.healthy = True


def resources(inventory: Inventory) -> dict[str, list[Slot]]:
    """What the device plugin registers with the kubelet: {resource: its devices}; allocatable counts the healthy ones. Without a driver
    or GPUs nothing. Raises PluginError where the plugin ends with an error, so that the node has no GPUs."""
    if not inventory.driver_ok or not inventory.gpus:
        return {}
    strategy = inventory.mig_strategy
    sharing.check(sharing.PluginConfig(sharing=inventory.sharing), strategy)
    devices: dict[str, list[str]] = {}
    owner: dict[str, Gpu] = {}
    for gpu in inventory.gpus:
        if not gpu.mig_enabled or strategy == "none":
            devices.setdefault(GPU, []).append(gpu.uuid)
            owner[gpu.uuid] = gpu
        else:
            for instance in gpu.instances:
                resource = GPU if strategy == "single" else f"nvidia.com/mig-{mig.dotted(instance.profile)}"
                devices.setdefault(resource, []).append(instance.uuid)
                owner[instance.uuid] = gpu
    if strategy == "single":
        _check_single(inventory)
    if inventory.sharing.strategy == "mps":
        _check_mps(inventory, devices)
    offered = sharing.replicate(inventory.sharing, devices)
    return {resource: _slots(slots, owner) for resource, slots in offered.items()}


def allocatable(inventory: Inventory) -> dict[str, int]:
    """Healthy devices by resource. Raises PluginError."""
    return {resource: sum(slot.healthy for slot in slots) for resource, slots in resources(inventory).items()}


def capacity(inventory: Inventory) -> dict[str, int]:
    """All devices by resource, the ill ones too. Raises PluginError."""
    return {resource: len(slots) for resource, slots in resources(inventory).items()}


def log_lines(inventory: Inventory) -> list[str]:
    """What the plugin warns of without ending: GPUs with MIG on and no instances under mixed, and finding nothing to offer."""
    lines = []
    if inventory.mig_strategy == "mixed":
        lines = [f"device {gpu.index} has no MIG devices configured" for gpu in inventory.gpus if gpu.mig_enabled and not gpu.instances]
    return lines if resources(inventory) else [*lines, "No devices found. Waiting indefinitely."]


def _slots(offered: Sequence[tuple[str, str, int]], owner: Mapping[str, Gpu]) -> list[Slot]:
    # The plugin keeps one device per GPU and resource to mark when the GPU falls ill. Of several replicas or MIG devices of an ill GPU
    # only that one becomes unhealthy; which one is chance, here it is the last.
    marked = {owner[device].uuid: name for name, device, _ in offered if not owner[device].healthy}
    ill = set(marked.values())
    return [Slot(name, device, owner[device].index, replica, name not in ill) for name, device, replica in offered]


def _check_single(inventory: Inventory) -> None:
    partitioned = [gpu for gpu in inventory.gpus if gpu.mig_enabled]
    invalid = _DEVICE_MAP + "invalid MIG configuration: "
    for gpu in partitioned:
        if not gpu.instances:
            raise PluginError(f"gpus[{gpu.index}].instances", [], invalid + "at least one device with migEnabled=true was not configured "
                                f"correctly: device {gpu.index} has no MIG devices configured", "make MIG instances or disable MIG")
    kinds = {(p.memory_mib, p.sms, p.slices, p.copy_engines, p.decoders, p.encoders, p.jpeg, p.ofa): p.name
             for gpu in partitioned for p in map(gpu.profile, gpu.instances)}
    if len(kinds) > 1:
        raise PluginError("mig-devices", sorted(kinds.values()), invalid + "more than one MIG device type present on node",
                            "use one profile on the whole node, or the strategy mixed")
    if partitioned and len(partitioned) < len(inventory.gpus):
        raise PluginError("mig-enabled", [gpu.mig_enabled for gpu in inventory.gpus],
                            _DEVICE_MAP + "all devices on the node must be configured with the same migEnabled value",
                            "partition all GPUs of the node or none, or use the strategy mixed")


def _check_mps(inventory: Inventory, devices: Mapping[str, Sequence[str]]) -> None:
    if any(device.startswith("MIG-") for ids in devices.values() for device in ids):
        raise PluginError("sharing.mps", inventory.mig_strategy, _GETTING + "failed to create plugin: "
                            "sharing using MPS is not supported for MIG devices", "disable MIG on this node or share in another way")
    for shared in inventory.sharing.resources:
        if shared.name in devices:
            for gpu in inventory.gpus:
                sharing.mps_limits(gpu.figures, shared.replicas)


def to_json(inventory: Inventory) -> dict[str, Any]:
    """Plain data that json can write and from_json reads back."""
    return asdict(inventory)


def from_json(data: Mapping[str, Any]) -> Inventory:
    """An inventory from to_json's data. Raises BadInput when it is something else."""
    try:
        shared = data["sharing"]
        items = tuple(sharing.Shared(**item) for item in shared["resources"])
        gpus = [Gpu(**{**gpu, "instances": [Instance(**instance) for instance in gpu["instances"]]}) for gpu in data["gpus"]]
        return Inventory(**{**data, "gpus": gpus, "sharing": Sharing(**{**shared, "resources": items})})
    except (KeyError, TypeError, AttributeError) as problem:
        raise BadInput("inventory", str(data)[:80], f"is not a GPU inventory: {problem}", "write it with to_json()") from None
