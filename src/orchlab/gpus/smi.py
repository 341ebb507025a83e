"""What `nvidia-smi` prints for a node: the main table, -L, mig -lgip, mig -lgi and --query-gpu. The layout is that of driver 580.

The hardware is made up; `header` puts a line that says so on top, which every screen that shows the text has to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from orchlab.errors import BadInput
from orchlab.gpus import load as loads_of
from orchlab.gpus import mig
from orchlab.gpus.inventory import Gpu, Instance, Inventory
from orchlab.gpus.load import Holder, Load

HEADER = "simulated by orchlab: there is no GPU behind these figures"
NO_MIG = "No MIG-enabled devices found."
NO_DEVICES = "No devices were found"
NO_DRIVER = ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is "
             "installed and running.\n")
_WIDE = "+" + "-" * 89 + "+"
_COLUMNS = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
_MIG_COLUMNS = "+" + "-" * 18 + "+" + "-" * 34 + "+" + "-" * 11 + "+" + "-" * 23 + "+"


def _print(lines: Sequence[str], header: str) -> str:
    return "\n".join([header, *lines] if header else lines) + "\n"


def table(inventory: Inventory, holders: Sequence[Holder] = (), loads: Mapping[str, Load] | None = None, now: datetime | None = None,
          header: str = "") -> str:
    """`nvidia-smi`. `loads` by UUID of a GPU or MIG device; what they leave out is idle. `now` adds the line with the date."""
    if (failed := _failure(inventory)) is not None:
        return _print([failed.rstrip("\n")], header)
    loads = loads or {}
    lines = [now.strftime("%a %b %e %H:%M:%S %Y")] if now else []
    lines += [_WIDE, f"| NVIDIA-SMI {inventory.driver:<23}Driver Version: {inventory.driver:<15}CUDA Version: {inventory.cuda:<9}|",
              "|" + _COLUMNS[1:],
              "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
              "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
              "|                                         |                        |               MIG M. |",
              "|" + "=" * 41 + "+" + "=" * 24 + "+" + "=" * 22 + "|"]
    mps = inventory.sharing.strategy == "mps"
    for gpu in inventory.gpus:
        lines += [*_gpu_rows(gpu, holders, loads, mps), _COLUMNS]
    partitioned = [gpu for gpu in inventory.gpus if gpu.mig_enabled]
    if partitioned:
        lines += ["", *_mig_table(partitioned, holders, loads)]
    return _print([*lines, "", *_processes(inventory, holders)], header)


def listing(inventory: Inventory, header: str = "") -> str:
    """`nvidia-smi -L`: GPUs and MIG devices with their UUIDs."""
    if (failed := _failure(inventory)) is not None:
        return _print([failed.rstrip("\n")], header)
    lines = []
    for gpu in inventory.gpus:
        lines.append(f"GPU {gpu.index}: {gpu.figures.nvml_name} (UUID: {gpu.uuid})")
        for number, instance in enumerate(gpu.instances):
            lines.append(f"  MIG {instance.profile:<12}Device {number:>2}: (UUID: {instance.uuid})")
    return _print(lines, header)


def instance_profiles(inventory: Inventory, header: str = "") -> str:
    """`nvidia-smi mig -lgip`: the profiles of the GPUs with MIG enabled, and how many instances of each could still be made."""
    return _mig_listing(inventory, header, _profile_table)


def instances(inventory: Inventory, header: str = "") -> str:
    """`nvidia-smi mig -lgi`: the GPU instances with their placements."""
    return _mig_listing(inventory, header, _instance_table)


def query(inventory: Inventory, fields: str | Sequence[str], holders: Sequence[Holder] = (), loads: Mapping[str, Load] | None = None,
          noheader: bool = False, nounits: bool = False, header: str = "") -> str:
    """`nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits]`. `fields` is a list or separated by commas. Raises BadInput for
    a field that is unknown (here or to nvidia-smi)."""
    names = [part.strip() for part in (fields.split(",") if isinstance(fields, str) else fields)]
    for name in names:
        if name not in _FIELDS:
            raise BadInput("--query-gpu", name, f'Field "{name}" is not a valid field to query.', f"use some of {', '.join(_FIELDS)}")
    if (failed := _failure(inventory)) is not None:
        return _print([failed.rstrip("\n")], header)
    columns = [_FIELDS[name] for name in names]
    lines = [] if noheader else [", ".join(title if nounits or not unit else f"{title} [{unit}]" for title, unit, _ in columns)]
    for gpu in inventory.gpus:
        own = (loads or {}).get(gpu.uuid, loads_of.IDLE)
        load = Load(loads_of.gpu_busy(gpu, loads or {}), own.tensor, own.dram, _used(gpu, holders, loads or {}))
        values = [(unit, value(inventory, gpu, load)) for _, unit, value in columns]
        lines.append(", ".join(value if nounits or not unit or value.startswith("[") else f"{value} {unit}" for unit, value in values))
    return _print(lines, header)


def _failure(inventory: Inventory) -> str | None:
    if not inventory.driver_ok:
        return NO_DRIVER
    return None if inventory.gpus else NO_DEVICES


def _used(gpu: Gpu, holders: Sequence[Holder], loads: Mapping[str, Load]) -> int:
    devices = [instance.uuid for instance in gpu.instances] if gpu.mig_enabled else [gpu.uuid]
    return sum(loads_of.of_device(uuid, loads, holders).memory_mib for uuid in devices)


def _gpu_rows(gpu: Gpu, holders: Sequence[Holder], loads: Mapping[str, Load], mps: bool) -> list[str]:
    figures = gpu.figures
    busy = loads_of.gpu_busy(gpu, loads)
    name = figures.nvml_name if len(figures.nvml_name) <= 27 else figures.nvml_name[:24] + "..."
    util = "N/A" if gpu.mig_enabled else f"{round(busy * 100)}%"
    mode = ("Enabled" if gpu.mig_enabled else "Disabled") if figures.mig_capable else "N/A"
    power = f"{round(loads_of.power_watts(figures, busy))}W / {figures.power_watts:>4}W"
    # MIG shows the ECC mode in place of the count of errors.
    return [f"|{gpu.index:>4}  {name:<31}{'On':<4}|   {gpu.bus_id:<16} Off |{'On' if gpu.mig_enabled else '0':>21} |",
            f"| N/A {loads_of.temperature_celsius(busy):>4}C    P0  {power:>22} |"
            f"{_used(gpu, holders, loads):>8}MiB / {figures.memory_mib:>6}MiB |{util:>8}{'E. Process' if mps else 'Default':>13} |",
            f"|{'':41}|{'':24}|{mode:>21} |"]


def _mig_table(gpus: Sequence[Gpu], holders: Sequence[Holder], loads: Mapping[str, Load]) -> list[str]:
    lines = [_WIDE, "| MIG devices:" + " " * 76 + "|", _MIG_COLUMNS,
             "| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |",
             "|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |",
             "|                  |                                  |        ECC|                       |",
             "|" + "=" * 18 + "+" + "=" * 34 + "+" + "=" * 11 + "+" + "=" * 23 + "|"]
    if not any(gpu.instances for gpu in gpus):
        return [*lines, "|  No MIG devices found" + " " * 67 + "|", _WIDE]
    for gpu in gpus:
        for number, instance in enumerate(gpu.instances):
            profile = gpu.profile(instance)
            used = loads_of.of_device(instance.uuid, loads, holders).memory_mib
            bar1 = loads_of.bar1_mib(gpu.figures) * instance.size // gpu.figures.mig.memory_slices - 1
            lines += [f"|{gpu.index:>3}{instance.gi:>5}   0{number:>4}  |{_of(used, profile.memory_mib)}|"
                      f"{profile.sms:>3}      0 |{profile.copy_engines:>3}{profile.encoders:>4}{profile.decoders:>5}{profile.ofa:>5}"
                      f"{profile.jpeg:>5} |",
                      f"|{'':18}|{_of(0, bar1)}|{'':11}|{'':23}|", _MIG_COLUMNS]
    return lines


def _of(used: int, total: int) -> str:
    return f"{used:>16}MiB / {total:>5}MiB".ljust(34)


def _processes(inventory: Inventory, holders: Sequence[Holder]) -> list[str]:
    lines = [_WIDE, "| Processes:" + " " * 78 + "|",
             "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
             "|        ID   ID                                                               Usage      |", "|" + "=" * 89 + "|"]
    places = _places(inventory)
    rows = []
    for number, holder in enumerate(holders):
        if holder.device in places:
            gpu, gi, ci = places[holder.device]
            # There is no process; the number only tells the rows apart.
            rows.append(f"|{gpu:>5}{gi:>6}{ci:>5}{10001 + number:>17}{'C':>7}   {holder.process[:33]:<33}{holder.memory_mib:>9}MiB |")
    return [*lines, *(rows or ["|  No running processes found" + " " * 61 + "|"]), _WIDE]


def _places(inventory: Inventory) -> dict[str, tuple[int, str, str]]:
    found = {gpu.uuid: (gpu.index, "N/A", "N/A") for gpu in inventory.gpus}
    return found | {i.uuid: (gpu.index, str(i.gi), "0") for gpu in inventory.gpus for i in gpu.instances}


def _mig_listing(inventory: Inventory, header: str, rows: Callable[[list[Gpu]], list[str]]) -> str:
    if (failed := _failure(inventory)) is not None:
        return _print([failed.rstrip("\n")], header)
    partitioned = [gpu for gpu in inventory.gpus if gpu.mig_enabled]
    return _print(rows(partitioned) if partitioned else [NO_MIG], header)


def _profile_table(gpus: list[Gpu]) -> list[str]:
    rule = "+" + "-" * 79 + "+"
    lines = [rule, "| GPU instance profiles:" + " " * 56 + "|",
             "| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |",
             "|                                Free/Total   GiB              CE    JPEG  OFA  |", "|" + "=" * 79 + "|"]
    for gpu in gpus:
        for profile in gpu.figures.mig.profiles.values():
            count = f"{free_count(gpu, profile.name)}/{profile.max_count}"
            memory = f"{profile.memory_mib / 1024:.2f}"
            lines += [f"|{gpu.index:>4}  MIG {profile.name:<14}{profile.id:>4}{count:>8}{'':8}{memory:<11}{'No':<2}"
                      f"{profile.sms:>7}{profile.decoders:>6}{profile.encoders:>6}   |",
                      f"|{'':58}{profile.copy_engines:>6}{profile.jpeg:>6}{profile.ofa:>6}   |", rule]
    return lines


def free_count(gpu: Gpu, profile_name: str) -> int:
    """How many more instances of the profile the GPU takes beside those that it has."""
    profile = mig.profile(gpu.figures, profile_name)
    used = [mig.Placement(instance.start, instance.size, instance.profile) for instance in gpu.instances]
    taken = sum(placement.mask for placement in used)
    free = sum(not mig.Placement(start, profile.size, profile.name).mask & taken for start in profile.starts)
    if profile.media:
        return min(free, int(not any(placement.profile.endswith("+me") for placement in used)))
    return free


def _instance_table(gpus: list[Gpu]) -> list[str]:
    rule = "+" + "-" * 57 + "+"
    found: list[tuple[Gpu, Instance]] = [(gpu, instance) for gpu in gpus for instance in gpu.instances]
    if not found:
        return ["No GPU instances found: Not Found"]
    lines = [rule, "| GPU instances:" + " " * 42 + "|", "| GPU   Name               Profile  Instance   Placement  |",
             "|                            ID       ID       Start:Size |", "|" + "=" * 57 + "|"]
    for gpu, instance in found:
        place = f"{instance.start}:{instance.size}"
        lines += [f"|{gpu.index:>4}  MIG {instance.profile:<15}{gpu.profile(instance).id:>5}{instance.gi:>9}{place:>13}     |", rule]
    return lines


def _mig_mode(_: Inventory, gpu: Gpu, __: Load) -> str:
    return ("Enabled" if gpu.mig_enabled else "Disabled") if gpu.figures.mig_capable else "[N/A]"


_Value = Callable[[Inventory, Gpu, Load], str]
# Name asked for: (title, unit, value).
_FIELDS: dict[str, tuple[str, str, _Value]] = {
    "driver_version": ("driver_version", "", lambda i, g, n: i.driver),
    "count": ("count", "", lambda i, g, n: str(len(i.gpus))),
    "name": ("name", "", lambda i, g, n: g.figures.nvml_name),
    "index": ("index", "", lambda i, g, n: str(g.index)),
    "uuid": ("uuid", "", lambda i, g, n: g.uuid),
    "pci.bus_id": ("pci.bus_id", "", lambda i, g, n: g.bus_id),
    "pci.device_id": ("pci.device_id", "", lambda i, g, n: f"0x{g.figures.pci_device_id.upper()}10DE"),
    "persistence_mode": ("persistence_mode", "", lambda i, g, n: "Enabled"),
    "compute_mode": ("compute_mode", "", lambda i, g, n: "Exclusive_Process" if i.sharing.strategy == "mps" else "Default"),
    "compute_cap": ("compute_cap", "", lambda i, g, n: g.figures.compute_capability),
    "pstate": ("pstate", "", lambda i, g, n: "P0"),
    "mig.mode.current": ("mig.mode.current", "", _mig_mode),
    "mig.mode.pending": ("mig.mode.pending", "", _mig_mode),
    "memory.total": ("memory.total", "MiB", lambda i, g, n: str(g.figures.memory_mib)),
    "memory.used": ("memory.used", "MiB", lambda i, g, n: str(n.memory_mib)),
    "memory.free": ("memory.free", "MiB", lambda i, g, n: str(g.figures.memory_mib - n.memory_mib)),
    "utilization.gpu": ("utilization.gpu", "%", lambda i, g, n: "[N/A]" if g.mig_enabled else str(round(n.busy * 100))),
    "utilization.memory": ("utilization.memory", "%", lambda i, g, n: "[N/A]" if g.mig_enabled else str(round(n.dram * 100))),
    "temperature.gpu": ("temperature.gpu", "", lambda i, g, n: str(loads_of.temperature_celsius(n.busy))),
    "power.draw": ("power.draw", "W", lambda i, g, n: f"{loads_of.power_watts(g.figures, n.busy):.2f}"),
    "power.limit": ("power.limit", "W", lambda i, g, n: f"{g.figures.power_watts:.2f}"),
    "clocks.sm": ("clocks.current.sm", "MHz", lambda i, g, n: str(loads_of.sm_clock_mhz(g.figures, n.busy))),
    "clocks.mem": ("clocks.current.memory", "MHz", lambda i, g, n: str(g.figures.memory_clock_mhz)),
}
_FIELDS |= {alias: _FIELDS[name] for alias, name in (("gpu_name", "name"), ("gpu_uuid", "uuid"), ("gpu_bus_id", "pci.bus_id"),
                                                     ("clocks.current.sm", "clocks.sm"), ("clocks.current.memory", "clocks.mem"))}
