"""The node labels of GPU Feature Discovery (GFD) and Node Feature Discovery (NFD) that follow from a node's GPUs.

Facts from the public source of GFD in NVIDIA's k8s-device-plugin 0.20, among them what it says about layouts that the strategy does not
allow: under single the product ends in -MIG-INVALID, count, replicas and memory are 0 and the sharing strategy is empty. GPUs with MIG
enabled are labelled as whole ones without sharing information (replicas 0) unless a GPU without MIG or a valid single layout says more.
"""

from __future__ import annotations

import re

from orchlab.gpus import mig
from orchlab.gpus.documents import ConfigError
from orchlab.gpus.inventory import Gpu, Instance, Inventory
from orchlab.gpus.sharing import GPU, Sharing

MACHINE = "orchlab simulated node"


class LabelError(ConfigError):
    """GFD ends with this error and labels nothing; `log` is its last line."""

    prefix = "error creating labeler: "


def nfd(inventory: Inventory, fields: tuple[str, ...] = ("vendor",)) -> dict[str, str]:
    """NFD's label for the PCI devices. `fields` is NFD's deviceLabelFields: the GPU Operator's chart sets vendor alone (pci-10de), NFD by
    itself uses class and vendor (pci-0302_10de). The driver is not needed for it."""
    if not inventory.gpus:
        return {}
    # 3D controller: what all models of the catalog are.
    parts = {"class": "0302", "vendor": "10de"}
    return {f"feature.node.kubernetes.io/pci-{'_'.join(parts[name] for name in fields)}.present": "true"}


def gfd(inventory: Inventory, machine: str = MACHINE, timestamp: int | None = None) -> dict[str, str]:
    """All labels that GFD writes, sorted by name. `machine` is the machine type of the node's firmware; `timestamp` (seconds since 1970)
    adds gfd.timestamp. Without a driver or GPUs there are none. Raises LabelError."""
    if not inventory.driver_ok or not inventory.gpus:
        return {}
    mps = inventory.sharing.strategy == "mps"
    if mps and any(gpu.mig_enabled for gpu in inventory.gpus):
        raise LabelError("sharing.mps", [gpu.mig_enabled for gpu in inventory.gpus],
                         "error creating sharing labeler: failed to check MPS-capable: MPS sharing is not supported for mig devices",
                         "disable MIG on this node or share in another way")
    labels = _versions(inventory) | {
        "nvidia.com/gpu.machine": sanitise(machine),
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/mig.capable": str(any(gpu.figures.mig_capable for gpu in inventory.gpus)).lower(),
        "nvidia.com/mps.capable": str(mps).lower(),
    }
    if timestamp is not None:
        labels["nvidia.com/gfd.timestamp"] = str(timestamp)
    labels |= _whole(inventory)
    if inventory.mig_strategy in ("single", "mixed"):
        labels["nvidia.com/mig.strategy"] = inventory.mig_strategy
        labels |= _single(inventory) if inventory.mig_strategy == "single" else _mixed(inventory)
    return dict(sorted(labels.items()))


def discovered(inventory: Inventory, machine: str = MACHINE, timestamp: int | None = None) -> dict[str, str]:
    """NFD's and GFD's labels together. Raises LabelError."""
    return nfd(inventory) | gfd(inventory, machine, timestamp)


def sanitise(text: str) -> str:
    """A name as GFD makes it a label value: other characters than letters, digits, "-_. " go, blanks become dashes."""
    return "-".join(re.sub(r"[^A-Za-z0-9\-_. ]", "", text).split())


def _versions(inventory: Inventory) -> dict[str, str]:
    parts = inventory.driver.split(".")
    major, minor, revision = (*parts, "", "")[:3]
    cuda_major, _, cuda_minor = inventory.cuda.partition(".")
    values = {"driver.major": major, "driver.minor": minor, "driver.rev": revision,
              "runtime.major": cuda_major, "runtime.minor": cuda_minor, "driver-version.major": major, "driver-version.minor": minor,
              "driver-version.revision": revision, "driver-version.full": inventory.driver,
              "runtime-version.major": cuda_major, "runtime-version.minor": cuda_minor,
              "runtime-version.full": inventory.cuda}
    return {f"nvidia.com/cuda.{name}": value for name, value in values.items()}


def _base(resource: str, sharing: Sharing | None, count: int, *product: str) -> dict[str, str]:
    """product, count, replicas and sharing-strategy of one resource. `sharing` None: nothing is known about sharing."""
    shared = sharing.of(resource) if sharing else None
    replicas = 0 if sharing is None else shared.replicas if shared else 1
    name = "-".join(sanitise(part) for part in product)
    if shared and shared.advertised == shared.name:
        name += "-SHARED"
    return {f"{resource}.product": name, f"{resource}.count": str(count), f"{resource}.replicas": str(replicas),
            f"{resource}.sharing-strategy": sharing.strategy if sharing and shared else "none"}


def _whole(inventory: Inventory) -> dict[str, str]:
    """The labels nvidia.com/gpu.*. Of different models the last one's remain; a GPU without MIG wins over one of its model with MIG."""
    labels: dict[str, str] = {}
    names = [gpu.figures.nvml_name for gpu in inventory.gpus]
    for partitioned in (True, False):
        for gpu in inventory.gpus:
            if gpu.mig_enabled == partitioned:
                figures = gpu.figures
                sharing = None if partitioned else inventory.sharing
                labels |= _base(GPU, sharing, names.count(figures.nvml_name), figures.nvml_name) | {
                    f"{GPU}.memory": str(figures.memory_mib), f"{GPU}.family": figures.family,
                    f"{GPU}.compute.major": str(figures.compute_major), f"{GPU}.compute.minor": str(figures.compute_minor)}
    return labels


def _single(inventory: Inventory) -> dict[str, str]:
    partitioned = [gpu for gpu in inventory.gpus if gpu.mig_enabled]
    if not partitioned:
        return {}
    found = [(gpu, instance) for gpu in partitioned for instance in gpu.instances]
    valid = all(gpu.instances for gpu in partitioned) and len(partitioned) == len(inventory.gpus) \
        and len({instance.profile for _, instance in found}) == 1
    if not valid:
        product = f"{sanitise(partitioned[0].figures.nvml_name)}-MIG-INVALID"
        return {f"{GPU}.product": product, f"{GPU}.count": "0", f"{GPU}.replicas": "0", f"{GPU}.sharing-strategy": "",
                f"{GPU}.memory": "0"}
    return _mig(GPU, inventory.sharing, *found[0], len(found))


def _mixed(inventory: Inventory) -> dict[str, str]:
    kinds: dict[str, list[tuple[Gpu, Instance]]] = {}
    for gpu in inventory.gpus:
        for instance in gpu.instances if gpu.mig_enabled else ():
            kinds.setdefault(mig.dotted(instance.profile), []).append((gpu, instance))
    labels: dict[str, str] = {}
    for profile, found in kinds.items():
        labels |= _mig(f"nvidia.com/mig-{profile}", inventory.sharing, *found[0], len(found))
    return labels


def _mig(resource: str, sharing: Sharing, gpu: Gpu, instance: Instance, count: int) -> dict[str, str]:
    profile = gpu.profile(instance)
    attributes = {"memory": profile.memory_mib, "multiprocessors": profile.sms, "slices.gi": profile.slices, "slices.ci": profile.slices,
                  "engines.copy": profile.copy_engines, "engines.decoder": profile.decoders, "engines.encoder": profile.encoders,
                  "engines.jpeg": profile.jpeg, "engines.ofa": profile.ofa}
    return _base(resource, sharing, count, gpu.figures.nvml_name, "MIG", mig.dotted(profile.name)) \
        | {f"{resource}.{name}": str(value) for name, value in attributes.items()}
