"""The machines that real kubelets believe to run on: the fleet's CPUs and memory instead of those of this computer.

A kubelet finds them in /sys/devices/system/node and /proc/meminfo (cAdvisor: machine, utils/sysinfo). Each worker's container has small
made-up ones mounted there, so its capacity is the fleet's, as on a simulated node. Containers in pods see the computer as it is, and it is
what limits them.

A kubelet also writes the CPUs' numbers into its pods' cpuset, and the kernel refuses those that are not there. So every made-up CPU has the
number of a real one: cpu0, cpu1, cpu0_2, cpu1_3, … are four CPUs of a machine on a computer with two.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from orchlab.fleet_nodes import FleetNode, with_real_kubelet
from orchlab.paths import private_folder

KIND, FOLDER = "kind", "machines"
_MOUNTS = {"node": "/sys/devices/system/node", "meminfo": "/proc/meminfo"}


def write(folder: Path, nodes: list[FleetNode], cpus: int) -> None:
    """Writes what the workers of this fleet mount to folder/machines/NODE/; `folder` is the environment's for kind, `cpus` how many the engine's
    computer has. Files are changed in place, because a mount holds on to the very file."""
    for machine in with_real_kubelet(nodes):
        root = private_folder(private_folder(folder / FOLDER) / machine.name)
        kib, numa = machine.memory_bytes // 1024, root / "node" / "node0"
        wanted = {numa / "meminfo": f"Node 0 MemTotal:       {kib} kB\n", numa / "distance": "10\n", root / "meminfo": _meminfo(kib)}
        names = {f"cpu{number % cpus}{f'_{number}' if number >= cpus else ''}": number for number in range(machine.cpu)}
        for name, number in names.items():
            wanted |= {numa / name / "topology" / "core_id": f"{number}\n", numa / name / "topology" / "physical_package_id": "0\n"}
        (numa / "hugepages").mkdir(parents=True, exist_ok=True)
        for path, text in wanted.items():
            if not path.is_file() or path.read_text(encoding="ascii") != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="ascii")
        for former in [path for path in numa.glob("cpu*") if path.name not in names]:
            shutil.rmtree(former)


def mounts(folder: str, machine: FleetNode) -> list[dict]:
    """kind's extraMounts for a worker, of what `write` has written to `folder`."""
    return [{"hostPath": f"{folder}/{FOLDER}/{machine.name}/{name}", "containerPath": path, "readOnly": True} for name, path in _MOUNTS.items()]


def _meminfo(kib: int) -> str:
    sizes = {"MemTotal": kib, "MemFree": kib, "MemAvailable": kib, "Buffers": 0, "Cached": 0, "SwapTotal": 0, "SwapFree": 0}
    return "".join(f"{name + ':':<15}{size:>12} kB\n" for name, size in sizes.items())
