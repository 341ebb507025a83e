"""What NVIDIA's DCGM exporter serves under /metrics for a node: Prometheus text with the names and labels of its default counters.

All figures are simulated: utilisation and memory come from what runs, the rest from small formulas in load.py. Facts about labels and
about what is missing under MIG (the *_UTIL fields) from the exporter's public documentation and issue threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchlab.gpus import load as loads_of
from orchlab.gpus.catalog import GpuModel
from orchlab.gpus.inventory import Gpu, Instance, Inventory
from orchlab.gpus.load import Holder, Load

NOTE = "# simulated by orchlab: there is no GPU behind these figures"
# Text of the XIDs that a lab can cause; the exporter words others by their number.
XID_TEXT = {0: "No Error", 13: "Graphics Engine Exception", 31: "GPU memory page fault", 43: "GPU stopped processing",
            45: "Preemptive cleanup, due to previous errors", 48: "Double Bit ECC Error", 63: "ECC page retirement or row remapping event",
            64: "ECC page retirement or row remapping failure", 68: "NVDEC0 Exception", 74: "NVLINK Error",
            79: "GPU has fallen off the bus", 94: "Contained ECC error", 95: "Uncontained ECC error", 109: "Context Switch Timeout Error"}


@dataclass(frozen=True)
class _Unit:
    """A GPU or one of its MIG devices. `memory_mib` is its size, `busy` how busy the whole GPU is (0 to 1)."""

    gpu: Gpu
    model: GpuModel
    instance: Instance | None
    memory_mib: int
    load: Load
    busy: float

    @property
    def uuid(self) -> str:
        return self.instance.uuid if self.instance else self.gpu.uuid


_Value = Callable[[_Unit], float]
# name: (type, help, value, reported for MIG devices)
_METRICS: dict[str, tuple[str, str, _Value, bool]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "SM clock frequency (in MHz).", lambda u: loads_of.sm_clock_mhz(u.model, u.busy), True),
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", "Memory clock frequency (in MHz).", lambda u: u.model.memory_clock_mhz, True),
    "DCGM_FI_DEV_MEMORY_TEMP": ("gauge", "Memory temperature (in C).", lambda u: loads_of.temperature_celsius(u.busy) + 6, True),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature (in C).", lambda u: loads_of.temperature_celsius(u.busy), True),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "Power draw (in W).", lambda u: loads_of.power_watts(u.model, u.busy), True),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("counter", "Total number of PCIe retries.", lambda u: 0, True),
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", "GPU utilization (in %).", lambda u: round(u.load.busy * 100), False),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gauge", "Memory utilization (in %).", lambda u: round(u.load.dram * 100), False),
    "DCGM_FI_DEV_ENC_UTIL": ("gauge", "Encoder utilization (in %).", lambda u: 0, False),
    "DCGM_FI_DEV_DEC_UTIL": ("gauge", "Decoder utilization (in %).", lambda u: 0, False),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", "Value of the last XID error encountered.", lambda u: u.gpu.xid, True),
    "DCGM_FI_DEV_FB_FREE": ("gauge", "Framebuffer memory free (in MiB).", lambda u: max(u.memory_mib - u.load.memory_mib, 0), True),
    "DCGM_FI_DEV_FB_USED": ("gauge", "Framebuffer memory used (in MiB).", lambda u: u.load.memory_mib, True),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("gauge", "Ratio of time the graphics engine is active.", lambda u: u.load.busy, True),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("gauge", "Ratio of cycles the tensor (HMMA) pipe is active.", lambda u: u.load.tensor, True),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("gauge", "Ratio of cycles the device memory interface is active sending or receiving data.",
                                 lambda u: u.load.dram, True),
}
METRICS = tuple(_METRICS)
# Fields of the profiling module need data centre GPUs from Volta on; all models of the catalog are.
_RATIOS = ("DCGM_FI_PROF_", "DCGM_FI_DEV_POWER_USAGE")


def exposition(inventory: Inventory, holders: Sequence[Holder] = (), loads: Mapping[str, Load] | None = None, hostname: str = "",
               virtual_gpus: bool = False, note: str = NOTE) -> str:
    """The text of /metrics. GPUs with MIG enabled are reported by MIG device, without the *_UTIL fields; UUID is the GPU's in both cases.

    pod, namespace and container are those of the holder. Under time-slicing or MPS there are several to a device, and the exporter names
    none unless `virtual_gpus` (KUBERNETES_VIRTUAL_GPUS) is set: then one series for each. `hostname` is the node's name by default.
    """
    if not inventory.driver_ok:
        return f"{note}\n" if note else ""
    units = [unit for gpu in inventory.gpus for unit in _units(gpu, holders, loads or {})]
    lines = [note] if note else []
    for name, (kind, text, value, under_mig) in _METRICS.items():
        shown = [unit for unit in units if under_mig or unit.instance is None]
        if shown:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for unit in shown:
            number = value(unit)
            written = f"{number:.6f}" if name.startswith(_RATIOS) else str(round(number))
            for pod in _pods(unit, inventory, holders, virtual_gpus):
                lines.append(f"{name}{{{_labels(unit, inventory, hostname, name, pod)}}} {written}")
    return "\n".join(lines) + "\n"


def _units(gpu: Gpu, holders: Sequence[Holder], loads: Mapping[str, Load]) -> list[_Unit]:
    model = gpu.figures
    # Clocks, temperature and power are the whole GPU's, for its instances too.
    busy = loads_of.gpu_busy(gpu, loads)
    if not gpu.mig_enabled:
        return [_Unit(gpu, model, None, model.memory_mib, loads_of.of_device(gpu.uuid, loads, holders), busy)]
    return [_Unit(gpu, model, instance, gpu.profile(instance).memory_mib, loads_of.of_device(instance.uuid, loads, holders), busy)
            for instance in gpu.instances]


def _pods(unit: _Unit, inventory: Inventory, holders: Sequence[Holder], virtual_gpus: bool) -> list[dict[str, str]]:
    mine = [holder for holder in holders if holder.device == unit.uuid]
    shared = any("::" in holder.slot for holder in mine)
    if not mine or (shared and not virtual_gpus):
        return [{}]
    return [{"container": h.container, "namespace": h.namespace, "pod": h.pod} | ({"vgpu": h.slot.partition("::")[2]} if shared else {})
            for h in mine]


def _labels(unit: _Unit, inventory: Inventory, hostname: str, metric: str, pod: Mapping[str, str]) -> str:
    gpu = unit.gpu
    labels = {"gpu": str(gpu.index), "UUID": gpu.uuid, "pci_bus_id": gpu.bus_id, "device": f"nvidia{gpu.index}",
              "modelName": unit.model.nvml_name}
    if unit.instance:
        labels |= {"GPU_I_PROFILE": unit.instance.profile, "GPU_I_ID": str(unit.instance.gi)}
    labels |= {"Hostname": hostname or inventory.node, "DCGM_FI_DRIVER_VERSION": inventory.driver}
    extra = dict(pod)
    if metric == "DCGM_FI_DEV_XID_ERRORS":
        extra |= {"err_code": str(gpu.xid), "err_msg": XID_TEXT.get(gpu.xid, "Unknown Error")}
    return ",".join(f'{name}="{_escape(value)}"' for name, value in [*labels.items(), *sorted(extra.items())])


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
