"""The GPU models that a simulated node can carry. The figures and their sources are data: catalog.toml beside this file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orchlab.errors import BadInput

DATA = Path(__file__).with_name("catalog.toml")
MEDIA = "+me"


@dataclass(frozen=True)
class MigProfile:
    """One kind of GPU instance. `id` is NVML's, `slices` counts compute slices; `size` counts memory slices and `starts` are the memory
    slices at which an instance may begin; memory in MiB; the rest counts units of one instance."""

    name: str
    id: int
    slices: int
    size: int
    starts: tuple[int, ...]
    memory_mib: int
    sms: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg: int
    ofa: int

    @property
    def media(self) -> bool:
        """True for the variant with media extensions, of which a GPU has one."""
        return self.name.endswith(MEDIA)

    @property
    def max_count(self) -> int:
        """The most instances of this profile on one GPU, as `nvidia-smi mig -lgip` counts them."""
        return 1 if self.media else len(self.starts)


@dataclass(frozen=True)
class Mig:
    """What a GPU can be partitioned into: `memory_slices` (8, or 4 on A30) and its profiles by name, in the driver's order."""

    memory_slices: int
    profiles: dict[str, MigProfile]
    sources: dict[str, str]

    @property
    def compute_slices(self) -> int:
        return max(profile.slices for profile in self.profiles.values())


@dataclass(frozen=True)
class GpuModel:
    """One GPU model. Memory in MiB as NVML reports it; `pci_device_id` is four hex digits under vendor 10de; `product` and `family` are
    written as GPU Feature Discovery labels them; power in W, clocks in MHz; `sources` says for each figure where it comes from; `mig` is
    None where the GPU cannot be partitioned."""

    name: str
    nvml_name: str
    product: str
    memory_mib: int
    sms: int
    pci_device_id: str
    compute_capability: str
    family: str
    mig_capable: bool
    power_watts: int
    sm_clock_mhz: int
    memory_clock_mhz: int
    sources: dict[str, str]
    mig: Mig | None = None

    @property
    def compute_major(self) -> int:
        return int(self.compute_capability.split(".")[0])

    @property
    def compute_minor(self) -> int:
        return int(self.compute_capability.split(".")[1])


@cache
def _catalog() -> dict[str, GpuModel]:
    tables = tomllib.loads(DATA.read_text(encoding="utf-8"))
    return {name: GpuModel(name=name, **figures | {"mig": _mig(figures.get("mig"))}) for name, figures in tables.items()}


def _mig(table: dict | None) -> Mig | None:
    if table is None:
        return None
    profiles = [MigProfile(*row[:4], tuple(row[4]), *row[5:]) for row in table["profiles"]]
    return Mig(table["memory_slices"], {profile.name: profile for profile in profiles}, table["sources"])


def models() -> dict[str, GpuModel]:
    """All models by name, in the data file's order."""
    return dict(_catalog())


def model(name: str, field: str = "GPU model") -> GpuModel:
    """The model called `name` (e.g. "H100-80"). Raises BadInput, naming `field`, when there is none."""
    try:
        return _catalog()[name]
    except (KeyError, TypeError):
        raise BadInput(field, name, "is not a model in the catalog", f"use one of {', '.join(_catalog())}") from None
