"""What runs on a node's GPUs, as nvidia-smi and DCGM report it: who holds which device and how busy it is. Simulated figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchlab.gpus.catalog import GpuModel
from orchlab.gpus.inventory import Gpu


@dataclass(frozen=True)
class Holder:
    """A container that was given the device `slot` (a slot's id: a UUID, with ::n behind it for a replica) and uses `memory_mib` of it."""

    slot: str
    namespace: str
    pod: str
    container: str
    memory_mib: int = 0
    process: str = "python"

    @property
    def device(self) -> str:
        return self.slot.partition("::")[0]


@dataclass(frozen=True)
class Load:
    """How busy one device (UUID of a GPU or MIG instance) is: share of time with a kernel running, of tensor cores and of memory cycles,
    each 0 to 1; memory in use in MiB."""

    busy: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    memory_mib: int = 0


IDLE = Load()


def of_device(uuid: str, loads: Mapping[str, Load], holders: Sequence[Holder] = ()) -> Load:
    """The device's load; the memory of its holders where the load says none."""
    load = loads.get(uuid, IDLE)
    used = load.memory_mib or sum(holder.memory_mib for holder in holders if holder.device == uuid)
    return Load(load.busy, load.tensor, load.dram, used)


def gpu_busy(gpu: Gpu, loads: Mapping[str, Load]) -> float:
    """How busy a whole GPU is, 0 to 1: with MIG the sum over its instances, each with its share of the SMs."""
    if not gpu.mig_enabled:
        return loads.get(gpu.uuid, IDLE).busy
    return sum(loads.get(instance.uuid, IDLE).busy * gpu.profile(instance).sms / gpu.figures.sms for instance in gpu.instances)


def power_watts(model: GpuModel, busy: float) -> float:
    """Modelled power draw: 15 % of the limit idle, rising linearly to 95 %."""
    return model.power_watts * (0.15 + 0.80 * min(max(busy, 0.0), 1.0))


def temperature_celsius(busy: float) -> int:
    """Modelled GPU temperature: 32 °C idle, 68 °C fully busy."""
    return round(32 + 36 * min(max(busy, 0.0), 1.0))


# SM clocks of an idle GPU in MHz as public nvidia-smi output of these architectures shows them.
_IDLE_CLOCK = {"turing": 300, "ampere": 210, "ada-lovelace": 210, "hopper": 345, "blackwell": 120}


def sm_clock_mhz(model: GpuModel, busy: float) -> int:
    """Modelled SM clock: the highest while anything runs, the idle one otherwise."""
    return model.sm_clock_mhz if busy > 0 else min(_IDLE_CLOCK[model.family], model.sm_clock_mhz)


def bar1_mib(model: GpuModel) -> int:
    """Size of the PCI window onto the memory: the next power of two, as public nvidia-smi output of these models shows."""
    return 1 << (model.memory_mib - 1).bit_length()
