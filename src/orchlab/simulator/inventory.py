"""Which devices a simulated node has and which pod holds which: the bookkeeping of a kubelet's device manager.

Pure: knows no API. What a node advertises follows from its devices, so whoever changes them (a fault, a GPU Operator) changes that too.
"""

from __future__ import annotations

import ipaddress
import json
import uuid
from dataclasses import dataclass, field

from orchlab.gpus import allocation
from orchlab.gpus.inventory import Slot

GPU = "nvidia.com/gpu"
# What a device plugin's resources begin with, and what stands between a shared device and the number of its replica.
PREFIX, REPLICA = "nvidia.com/", "::"


@dataclass
class Device:
    """One device as a plugin has registered it: `uuid` as NVML writes it (a replica of a shared one has its number appended), `index` on
    its node, `holder` the uid of the pod that has it."""

    uuid: str
    index: int
    resource: str = GPU
    healthy: bool = True
    holder: str | None = None

    @property
    def physical(self) -> str:
        """The device itself, of which this may be a replica."""
        return self.uuid.partition(REPLICA)[0]


class Unavailable(Exception):
    """A kubelet would refuse the pod: `reason` goes into its status, the text into its message, as a kubelet words it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Ask:
    """What one container wants of one resource. `kind` is init, sidecar (a restartable init container) or main."""

    container: str
    resource: str
    count: int
    kind: str = "main"


@dataclass
class NodeDevices:
    """A node's devices and the addresses of its pods (from `cidr`, which may be empty). `refusals`: resources of which the plugin hands
    out one at a time, with its error; "{count}" in it stands for what is asked for."""

    name: str
    devices: list[Device] = field(default_factory=list)
    cidr: str = ""
    addresses: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    def allocatable(self) -> dict[str, int]:
        """Healthy devices by resource; a resource that the node has no device of is absent."""
        counts: dict[str, int] = {}
        for device in self.devices:
            counts[device.resource] = counts.get(device.resource, 0) + device.healthy
        return counts

    def allocate(self, pod: str, asks: list[Ask]) -> dict[str, list[str]]:
        """Devices for a pod's containers, lowest index first: {container: [uuid, …]}; all or nothing.

        Init containers run one after the other before the main ones, which therefore get their devices again; a sidecar keeps its own.
        Raises Unavailable.
        """
        taken: dict[str, list[str]] = {}
        reusable: list[Device] = []
        try:
            for ask in asks:
                again = [d for d in reusable if d.resource == ask.resource][:ask.count]
                fresh = self._free(ask, ask.count - len(again))
                chosen = again + fresh
                for device in fresh:
                    device.holder = pod
                if ask.kind == "init":
                    reusable += fresh
                else:
                    reusable = [d for d in reusable if d not in again]
                taken.setdefault(ask.container, []).extend(d.uuid for d in chosen)
        except Unavailable:
            self.release(pod)
            raise
        return taken

    def restore(self, pod: str, held: dict[str, list[str]]) -> None:
        """Marks devices that a pod was given earlier. One that the node no longer has is forgotten."""
        wanted = {name for names in held.values() for name in names}
        for device in self.devices:
            if device.uuid in wanted and device.holder is None:
                device.holder = pod

    def release(self, pod: str) -> None:
        """The pod has ended: its devices and its address are free."""
        for device in self.devices:
            if device.holder == pod:
                device.holder = None
        self.addresses.pop(pod, None)

    def address(self, pod: str) -> str | None:
        """The lowest free address of the node's range for this pod; None without a range or when it is used up."""
        if pod in self.addresses or not self.cidr:
            return self.addresses.get(pod)
        used = set(self.addresses.values())
        network = ipaddress.ip_network(self.cidr)
        # .0 is the network, .1 the bridge of a usual network plug-in, the last one its broadcast address.
        for offset in range(2, network.num_addresses - 1):
            address = str(network[offset])
            if address not in used:
                self.addresses[pod] = address
                return address
        return None

    def _free(self, ask: Ask, count: int) -> list[Device]:
        if count <= 0:
            return []
        known = [d for d in self.devices if d.resource == ask.resource]
        if not known:
            problem = f"cannot allocate unregistered device {ask.resource}"
        elif not any(d.healthy for d in known):
            problem = f"no healthy devices present; cannot allocate unhealthy devices {ask.resource}"
        else:
            free = [d for d in known if d.healthy and d.holder is None]
            if len(free) >= count:
                if ask.resource in self.refusals and ask.count > 1:
                    error = self.refusals[ask.resource].replace("{count}", str(ask.count))
                    raise Unavailable("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")
                return self._preferred(known, free, count)
            problem = f"requested number of devices unavailable for {ask.resource}. Requested: {count}, Available: {len(free)}"
        # The wording of the kubelet's device manager (1.37).
        raise Unavailable("UnexpectedAdmissionError", f"Allocate failed due to {problem}, which is unexpected")

    @staticmethod
    def _preferred(known: list[Device], free: list[Device], count: int) -> list[Device]:
        """As the plugin prefers."""
        slots = [Slot(device.uuid, device.physical, device.index) for device in known]
        by_id = {device.uuid: device for device in free}
        return [by_id[name] for name in allocation.preferred(slots, list(by_id), count)]


@dataclass(frozen=True)
class Registered:
    """One resource as the plugin registered it: `devices` are physical ones in the plugin's order, each `replicas` times; `unhealthy` are
    device ids; `refusal` is its error for requests of more than one, "" if it takes them."""

    devices: tuple[str, ...]
    replicas: int = 0
    unhealthy: frozenset[str] = frozenset()
    refusal: str = ""

    @property
    def ids(self) -> list[str]:
        """Every device id, as the plugin lists them to the kubelet. `replicas` 0: the devices are not shared."""
        if not self.replicas:
            return list(self.devices)
        return [f"{device}{REPLICA}{number}" for device in self.devices for number in range(self.replicas)]


def registered(text: str) -> dict[str, Registered]:
    """The resources in the annotation orchlab/gpu-inventory, by name. What is not readable registers nothing."""
    try:
        found = json.loads(text or "{}").get("resources") or {}
        return {name: Registered(tuple(one["devices"]), int(one.get("replicas", 0)), frozenset(one.get("unhealthy") or ()),
                                 str(one.get("refusal", ""))) for name, one in found.items()}
    except (ValueError, AttributeError, KeyError, TypeError):
        return {}


def node_devices(name: str, resources: dict[str, Registered], cidr: str = "", gone: frozenset[str] = frozenset()) -> NodeDevices:
    """The node's bookkeeping for what is registered; `gone` are resources whose plugin has stopped: all their devices are unhealthy."""
    devices: list[Device] = []
    for resource, one in sorted(resources.items()):
        for number, device in enumerate(one.ids):
            devices.append(Device(device, number, resource, resource not in gone and device not in one.unhealthy))
    return NodeDevices(name, devices, cidr, refusals={resource: one.refusal for resource, one in resources.items() if one.refusal})


def of_node(environment_id: str, name: str, count: int, cidr: str = "") -> NodeDevices:
    """A node with `count` whole GPUs, each with its own UUID (see `gpu_uuid`)."""
    whole = Registered(tuple(gpu_uuid(environment_id, name, index) for index in range(count)))
    return node_devices(name, {GPU: whole} if count else {}, cidr)


def gpu_uuid(environment_id: str, name: str, index: int) -> str:
    """A GPU's UUID: the same in every start of the same environment, another in every other environment."""
    return f"GPU-{uuid.uuid5(_namespace(environment_id), f'{name}/{index}')}"


def _namespace(environment_id: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"orchlab:{environment_id}")
