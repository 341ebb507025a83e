"""The fewest GPUs that hold a demand for MIG instances: exact, by search over the layouts of one GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from orchlab.errors import BadInput
from orchlab.gpus import mig
from orchlab.gpus.catalog import GpuModel

LIMIT = 200


def fewest_gpus(model: GpuModel, demand: Mapping[str, int]) -> list[tuple[str, ...]]:
    """A packing of all instances in `demand` (profile: how many) onto as few GPUs as possible: the profiles on each GPU, biggest first.

    Its length is the optimum. Raises BadInput: unknown profile, a count that is none, more than 200 instances, a GPU without MIG.
    """
    mig.capable(model)
    wanted: Counter[str] = Counter()
    for name, count in demand.items():
        profile = mig.profile(model, name, "demand")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise BadInput(f"demand.{name}", count, "is not a count", "use a whole number, 0 or more")
        wanted[profile.name] += count
    if wanted.total() > LIMIT:
        raise BadInput("demand", wanted.total(), f"is more than {LIMIT} instances", "pack in portions")
    order = sorted((p for p in model.mig.profiles.values() if wanted[p.name]), key=lambda p: (-p.slices, -p.size, p.name))
    names = [profile.name for profile in order]
    patterns = _patterns(model, names)
    start = tuple(wanted[name] for name in names)
    sizes = [(profile.slices, profile.size, profile.max_count) for profile in order]
    depth = _bound(start, sizes, model.mig.compute_slices, model.mig.memory_slices)
    while True:
        failed: dict[tuple[int, ...], int] = {}
        found = _search(start, depth, patterns, failed, sizes, (model.mig.compute_slices, model.mig.memory_slices))
        if found is not None:
            return [tuple(name for name, count in zip(names, gpu, strict=True) for _ in range(count)) for gpu in found]
        depth += 1


def _patterns(model: GpuModel, names: list[str]) -> list[tuple[int, ...]]:
    """What one GPU can hold of these profiles; patterns that another one contains are left out."""
    media = any(name.endswith("+me") for name in names)
    counts = {tuple(layout.count(name) for name in names) for layout in mig.layouts(model, maximal=False, media=media)}
    kept = [p for p in counts if not any(p != q and all(a <= b for a, b in zip(p, q, strict=True)) for q in counts)]
    return sorted(kept, reverse=True)


def _bound(left: tuple[int, ...], sizes: list[tuple[int, int, int]], compute: int, memory: int) -> int:
    """No packing needs fewer: compute slices, memory slices, and how often each profile fits."""
    slices = sum(n * size[0] for n, size in zip(left, sizes, strict=True))
    space = sum(n * size[1] for n, size in zip(left, sizes, strict=True))
    return max([-(-slices // compute), -(-space // memory), *(-(-n // size[2]) for n, size in zip(left, sizes, strict=True))], default=0)


def _search(left: tuple[int, ...], gpus: int, patterns: list[tuple[int, ...]], failed: dict[tuple[int, ...], int],
            sizes: list[tuple[int, int, int]], totals: tuple[int, int]) -> list[tuple[int, ...]] | None:
    if not any(left):
        return []
    if _bound(left, sizes, *totals) > gpus or failed.get(left, -1) >= gpus:
        return None
    first = next(index for index, count in enumerate(left) if count)
    options = {tuple(min(a, b) for a, b in zip(left, pattern, strict=True)) for pattern in patterns if pattern[first]}
    # A GPU that holds more of the biggest ones first.
    for taken in sorted(options, reverse=True):
        rest = _search(tuple(a - b for a, b in zip(left, taken, strict=True)), gpus - 1, patterns, failed, sizes, totals)
        if rest is not None:
            return [taken, *rest]
    failed[left] = gpus
    return None
