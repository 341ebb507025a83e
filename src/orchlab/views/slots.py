"""Which unit sits in which GPU cell of which node."""

from __future__ import annotations

from dataclasses import dataclass

from orchlab.snapshot import ClusterSnapshot, Node, Share, Unit
from orchlab.views.style import Styles


@dataclass(frozen=True, slots=True)
class Cell:
    """One device of a node. `known`: the unit is known to hold this very device; else only that it holds one of this resource.

    `usable` is False where the node has the device but doesn't offer it (capacity above allocatable).
    """

    resource: str
    device: str
    unit: Unit | None = None
    known: bool = True
    usable: bool = True
    shared_by: int = 1


def slots(snapshot: ClusterSnapshot, styles: Styles) -> dict[str, list[Cell]]:
    """Cells per node, by resource, then in the order of the node's devices.

    A unit whose devices are known sits where they are; where a node doesn't say which devices it has, `styles` remembers the place at
    which each was first met. Units whose devices are unknown take the first free cells of their resource, in the order of the
    snapshot. Devices beyond a node's capacity (it lost some) get cells of their own. A node on which nothing changed since the last call
    with the same `styles` gets the very list that it got then.
    """
    held: dict[str, list[tuple[Unit, Share]]] = {node.name: [] for node in snapshot.nodes}
    for unit in snapshot.placed():
        for share in unit.shares:
            if share.node in held:
                held[share.node].append((unit, share))
    answer = {}
    for node in snapshot.nodes:
        # A feed hands out the same objects until they change, so that it is enough to see whether they are the same.
        facts = (node, *(unit for unit, _ in held[node.name]))
        kept, cells = styles.kept_cells.get(node.name, ((), []))
        if len(kept) != len(facts) or any(old is not new for old, new in zip(kept, facts, strict=True)):
            cells = _cells(node, [pair for pair in held[node.name] if pair[1].count], styles)
            styles.kept_cells[node.name] = (facts, cells)
        answer[node.name] = cells
    return answer


def _cells(node: Node, held: list[tuple[Unit, Share]], styles: Styles) -> list[Cell]:
    resources = list(node.capacity) or list(node.allocatable)
    cells: list[Cell] = []
    for resource in [*resources, *sorted({share.resource for _, share in held} - set(resources))]:
        offered = node.allocatable.get(resource, 0)
        total = max(node.capacity.get(resource, 0), offered)
        shares = [(unit, share) for unit, share in held if share.resource == resource]
        used = sorted({device for _, share in shares for device in share.devices})
        inventory = node.devices.get(resource, ())
        names = [*inventory, *(d for d in used if d not in inventory)] if inventory else styles.seats(node.name, resource, used, total)
        taken: dict[int, tuple[Unit, bool, int]] = {}
        for unit, share in shares:
            for place in (names.index(device) for device in share.devices):
                first, _, sharers = taken.get(place, (unit, True, 0))
                taken[place] = (first, True, sharers + 1)
        for unit, share in shares:
            for _ in range(share.count - len(share.devices)):
                taken[next(i for i in range(len(taken) + 1) if i not in taken)] = (unit, False, 1)
        for place in range(max(total, max(taken, default=-1) + 1)):
            unit, known, sharers = taken.get(place, (None, True, 1))
            cells.append(Cell(resource, names[place] if place < len(names) else "", unit, known, place < offered, sharers))
    return cells
