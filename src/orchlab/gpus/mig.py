"""Where MIG instances fit on a GPU: profile names, placements, all layouts.

A placement is start:size in memory slices; a layout is valid when its instances do not overlap and at most one has media extensions.
Sources: NVIDIA MIG User Guide (profiles, placements); NVML's and mig-parted's way of naming profiles and of retrying orderings.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from orchlab.errors import BadInput
from orchlab.gpus.catalog import GpuModel, MigProfile, models

_NAME = re.compile(r"(?:(?P<c>\d+)c\.)?(?P<g>\d+)g\.(?P<gb>\d+)gb(?P<rest>(?:[+-].*)?)")


@dataclass(frozen=True)
class ProfileName:
    """A parsed profile name: compute slices of the compute instance and of the GPU instance, GB of the name, attributes such as
    ("me",) and those that are left out ("-me")."""

    c: int
    g: int
    gb: int
    attributes: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def __str__(self) -> str:
        suffix = "-" + ",".join(self.without) if self.without else "+" + ",".join(self.attributes) if self.attributes else ""
        return f"{f'{self.c}c.' if self.c != self.g else ''}{self.g}g.{self.gb}gb{suffix}"


@dataclass(frozen=True, order=True)
class Placement:
    """One instance of `profile` on the memory slices start … start+size-1."""

    start: int
    size: int
    profile: str

    @property
    def slices(self) -> range:
        return range(self.start, self.start + self.size)

    @property
    def mask(self) -> int:
        return ((1 << self.size) - 1) << self.start


class NoPlacement(BadInput):
    """A wanted layout does not fit on the GPU; the problem says which profile is left over and what is in its way."""


def parse(name: object, field: str = "MIG profile") -> ProfileName:
    """Reads "1g.10gb", "1g.10gb+me", "1g.24gb-me", "1c.3g.20gb" and "1g.10gb.me", which is how resource, label and configuration names
    write "+". Raises BadInput, naming `field`."""
    problem = "is not a MIG profile"
    match = None
    if isinstance(name, str):
        dotted = re.fullmatch(r"((?:\d+c\.)?\d+g\.\d+gb)\.(.+)", name)
        match = _NAME.fullmatch(f"{dotted[1]}+{dotted[2]}" if dotted else name)
    if match is None:
        raise BadInput(field, name, problem, 'write it like "1g.10gb" or "1g.10gb+me"')
    sign, names = match["rest"][:1], match["rest"][1:]
    attributes = tuple(names.split(",")) if sign else ()
    if any(not part or part != part.strip() or "+" in part or "-" in part for part in attributes) or len(set(attributes)) < len(attributes):
        raise BadInput(field, name, problem + ": its attributes are malformed", 'write it like "1g.10gb+me"')
    g = int(match["g"])
    return ProfileName(int(match["c"] or g), g, int(match["gb"]), *((), attributes) if sign == "-" else (attributes, ()))


def dotted(profile: str) -> str:
    """The profile as resources, labels and configuration names write it: "1g.10gb.me"."""
    return profile.replace("+", ".")


def profile(model: GpuModel, name: object, field: str = "MIG profile") -> MigProfile:
    """The model's profile of this name, with "+me" or ".me". Raises BadInput when the model has none."""
    parsed = parse(name, field)
    profiles = capable(model, field, name).mig.profiles
    if parsed.c != parsed.g:
        raise BadInput(field, name, "is a compute instance inside a GPU instance, which the simulated GPUs do not have",
                       f"use one of {', '.join(profiles)}")
    try:
        return profiles[str(parsed)]
    except KeyError:
        raise BadInput(field, name, f"is not a profile of {model.name}", f"use one of {', '.join(profiles)}") from None


def capable(model: GpuModel, field: str = "GPU model", value: object = None) -> GpuModel:
    """The model itself if it can be partitioned; raises BadInput otherwise."""
    if model.mig is None:
        raise BadInput(field, value if value is not None else model.name, f"{model.name} cannot be partitioned",
                       f"use one of {', '.join(m.name for m in models().values() if m.mig)}")
    return model


def name_from_memory(slices: int, memory_mib: float, total_mib: float, media: bool = False) -> str:
    """The name that NVIDIA's tools compute for an instance with `slices` compute slices and `memory_mib` of a GPU with `total_mib`:
    the memory is rounded up to eighths of the GPU, the GPU's up to whole GiB, and the product to the nearest whole number (half up)."""
    eighths = math.ceil(memory_mib * 8 / total_mib)
    return f"{slices}g.{math.floor(eighths * math.ceil(total_mib / 1024) / 8 + 0.5)}gb{'+me' if media else ''}"


def instance_id(model: GpuModel, placement: Placement) -> int:
    """The GPU instance id at this place, numbered as a binary tree over the memory slices: 0 for the whole GPU, then its halves, quarters
    and slices. Seen so in public `nvidia-smi mig -lgi` output; a GPU whose floor plan is mirrored numbers the halves the other way."""
    return capable(model).mig.memory_slices // placement.size - 1 + placement.start // placement.size


def wanted_names(model: GpuModel, wanted: Iterable[str] | Mapping[str, int], field: str = "mig-devices") -> list[MigProfile]:
    """The profiles asked for, one entry each, biggest first as mig-parted sorts them. Raises BadInput."""
    if isinstance(wanted, Mapping):
        found = []
        for name, count in wanted.items():
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise BadInput(f"{field}.{name}", count, "is not a count", "use a whole number, 0 or more")
            found += [profile(model, name, field)] * min(count, model.mig.memory_slices + 1 if model.mig else 1)
    else:
        found = [profile(model, name, field) for name in wanted]
    return sorted(found, key=lambda p: (-p.slices, -p.size, p.name))


def place(model: GpuModel, wanted: Iterable[str] | Mapping[str, int], held: Sequence[Placement] = (),
          field: str = "mig-devices") -> tuple[Placement, ...]:
    """A placement for every wanted profile beside those `held` already, in the order of creation. Any order of asking gives the same
    answer: the biggest instances first, each where it leaves the most placements open, as hardware was seen to do.

    Raises BadInput (unknown profile, GPU without MIG) and NoPlacement (they do not fit together).
    """
    queue = wanted_names(model, wanted, field)
    media = [p.profile for p in held if p.profile.endswith("+me")] + [p.name for p in queue if p.media]
    if len(media) > 1:
        raise NoPlacement(field, media[-1], f"no free placement for {media[-1]}: a GPU has one set of media extensions, held by {media[0]}",
                          "ask for one profile with +me")
    furthest: list[Placement] = []
    used = 0
    for placement in held:
        used |= placement.mask

    def descend(depth: int, used: int, chosen: list[Placement]) -> list[Placement] | None:
        nonlocal furthest
        if len(chosen) > len(furthest):
            furthest = list(chosen)
        if depth == len(queue):
            return chosen
        for option in _options(model, queue[depth], used):
            if (result := descend(depth + 1, used | option.mask, [*chosen, option])) is not None:
                return result
        return None

    if (result := descend(0, used, [])) is not None:
        return tuple(result)
    missing = queue[len(furthest)]
    raise NoPlacement(field, missing.name, _reason(missing, [*held, *furthest]), _remedy(model, missing))


def _options(model: GpuModel, wanted: MigProfile, used: int) -> list[Placement]:
    options = [Placement(start, wanted.size, wanted.name) for start in wanted.starts]
    free = [option for option in options if not option.mask & used]
    return sorted(free, key=lambda option: (-_open(model, used | option.mask), option.start))


def _open(model: GpuModel, used: int) -> int:
    """How many placements of any profile remain."""
    return sum(not mask & used for mask in _masks(model.name))


@cache
def _masks(model_name: str) -> tuple[int, ...]:
    found = models()[model_name].mig
    return tuple(Placement(start, p.size, p.name).mask for p in found.profiles.values() if not p.media for start in p.starts)


def _span(run: Sequence[Placement]) -> str:
    first, last = run[0].start, run[-1].slices[-1]
    return str(first) if first == last else f"{first}-{last}"


def _reason(missing: MigProfile, held: Sequence[Placement]) -> str:
    reach = {s for start in missing.starts for s in range(start, start + missing.size)}
    inside = sorted(p for p in held if reach & set(p.slices))
    if not inside:
        return f"no free placement for {missing.name}"
    runs: list[list[Placement]] = []
    for placement in inside:
        if runs and runs[-1][-1].profile == placement.profile and runs[-1][-1].slices.stop == placement.start:
            runs[-1].append(placement)
        else:
            runs.append([placement])
    parts = [f"{_span(run)} {'are' if run[-1].slices[-1] > run[0].start else 'is'} held by {text(run)}" for run in runs]
    return f"no free placement for {missing.name}: slices " + ", ".join(parts)


def _remedy(model: GpuModel, missing: MigProfile) -> str:
    at = ", ".join(f"{start}:{missing.size}" for start in missing.starts)
    return f"{missing.name} fits at {at} (start:size of {model.mig.memory_slices} memory slices), at most {missing.max_count} times"


@cache
def _all(model_name: str, maximal: bool, media: bool) -> tuple[tuple[Placement, ...], ...]:
    model = models()[model_name]
    every = sorted(Placement(start, p.size, p.name) for p in model.mig.profiles.values() for start in p.starts if media or not p.media)

    def extend(index: int, used: int, chosen: tuple[Placement, ...]) -> Iterator[tuple[Placement, ...]]:
        yield chosen
        for position in range(index, len(every)):
            option = every[position]
            if option.mask & used or (option.profile.endswith("+me") and any(p.profile.endswith("+me") for p in chosen)):
                continue
            yield from extend(position + 1, used | option.mask, (*chosen, option))

    def full(layout: tuple[Placement, ...]) -> bool:
        used = sum(p.mask for p in layout)
        return not any(not mask & used for mask in _masks(model_name))

    return tuple(layout for layout in extend(0, 0, ()) if not maximal or full(layout))


def placements(model: GpuModel, maximal: bool = True, media: bool = False) -> tuple[tuple[Placement, ...], ...]:
    """All valid layouts with their places; `maximal` leaves out those to which another instance could be added; `media` adds the +me
    variants. Raises BadInput for a GPU without MIG."""
    return _all(capable(model).name, maximal, media)


def layouts(model: GpuModel, maximal: bool = True, media: bool = False) -> list[tuple[str, ...]]:
    """All valid layouts as multisets of profile names, biggest instances first, each once. Raises BadInput for a GPU without MIG."""
    order = {p.name: (-p.slices, -p.size, p.name) for p in capable(model).mig.profiles.values()}
    found = {tuple(sorted((p.profile for p in layout), key=order.__getitem__)) for layout in placements(model, maximal, media)}
    return sorted(found, key=lambda names: [order[name] for name in names])


def text(placements: Iterable[Placement]) -> str:
    """A layout in words: "3g.20gb + 2g.10gb + 2 x 1g.5gb"."""
    counts = Counter(p.profile for p in placements)
    return " + ".join(name if n == 1 else f"{n} x {name}" for name, n in sorted(counts.items(), reverse=True)) or "no instances"
