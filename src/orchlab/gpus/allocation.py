"""Which of several free devices the device plugin prefers when the kubelet asks it (GetPreferredAllocation, device plugin 0.20)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchlab.errors import BadInput
from orchlab.gpus.inventory import Slot

POLICIES = ("distributed", "packed")


def preferred(slots: Sequence[Slot], free: Sequence[str], size: int, required: Sequence[str] = (),
              policy: str = "distributed") -> list[str]:
    """The ids of `size` slots for one container, those of `required` first. `slots` are all of one resource, `free` the ids that nobody
    holds and that are healthy.

    Replicas: one at a time from the device with the fewest replicas taken (distributed, the default) or the most (packed); among equals
    from the one that this container has the least of. So a container that asks for two time slices gets them on two GPUs where it can.
    Whole GPUs: the lowest indexes; the real plugin looks for NVLinks, which are the same between all GPUs of a simulated node.

    Raises BadInput: unknown policy, unknown slot, too few free ones.
    """
    known = {slot.id: position for position, slot in enumerate(slots)}
    device = {slot.id: slot.device for slot in slots}
    if policy not in POLICIES:
        raise BadInput("sharedDevicesAllocationPolicy", policy, "is not a policy", f"use one of {', '.join(POLICIES)}")
    for name in (*free, *required):
        if name not in known:
            raise BadInput("device", name, "is not a device of this resource", "use the id of a slot")
    candidates = sorted(set(free) - set(required), key=known.__getitem__)
    needed = size - len(required)
    if len(candidates) < needed:
        raise BadInput("size", size, "not enough available devices to satisfy allocation", f"{len(candidates)} are free")
    total = Counter(device.values())
    left = Counter(device[name] for name in candidates)
    picked: Counter[str] = Counter()
    chosen = list(required)
    sign = 1 if policy == "distributed" else -1
    for _ in range(max(needed, 0)):
        best = min(candidates, key=lambda name: (sign * (total[device[name]] - left[device[name]]), picked[device[name]], known[name]))
        candidates.remove(best)
        picked[device[best]] += 1
        left[device[best]] -= 1
        chosen.append(best)
    return chosen
