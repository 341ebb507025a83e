"""What a cluster looks like at one moment: nodes, the units of work on them, events. For both orchestrators; knows neither.

A unit is a pod or a Slurm job. A device is whatever the orchestrator hands out one by one under an nvidia.com resource or a GRES:
a whole GPU, a MIG instance, or a share of a GPU. All times are seconds since 1970 (UTC).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Share:
    """What a unit holds on one node: `count` devices of one `resource`; `devices` are their ids where they are known, else empty."""

    node: str
    resource: str = ""
    count: int = 0
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LastRun:
    """The latest finished run of a unit that is or will be started again; `number` is 0 for its first."""

    number: int
    start: float
    end: float
    outcome: str


@dataclass(frozen=True, slots=True)
class Unit:
    """A pod or a job as last seen. `shares` is empty until a node is chosen; `reason` and `message` are the orchestrator's own words.

    `submitted`, `bound`, `started`, `ended` are the orchestrator's own times where it gives them. `started` is None while the unit's
    process is not running and has not ended; `restarts` counts how often it was started again. `priority` is the name of its PriorityClass or
    QoS, "" if it has none. `barrier` is the name of the barrier at which it waits for the rest of its gang before it makes progress, "" if there is
    none; `released` is when that was over, None while it is not.
    """

    id: str
    name: str
    kind: str = "Pod"
    namespace: str = ""
    group: str = ""
    phase: str = "Pending"
    wanted: Mapping[str, int] = field(default_factory=dict)
    shares: tuple[Share, ...] = ()
    reason: str = ""
    message: str = ""
    submitted: float | None = None
    bound: float | None = None
    started: float | None = None
    ended: float | None = None
    outcome: str = ""
    restarts: int = 0
    last_run: LastRun | None = None
    priority: str = ""
    barrier: str = ""
    released: float | None = None

    @property
    def stage(self) -> str:
        """waiting (no node yet), starting (on a node, not running), running, ended."""
        if self.ended is not None:
            return "ended"
        if not self.shares:
            return "waiting"
        return "starting" if self.started is None else "running"

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(share.node for share in self.shares))

    @property
    def devices_wanted(self) -> int:
        return sum(self.wanted.values())


@dataclass(frozen=True, slots=True)
class Node:
    """A node as last seen. `capacity` and `allocatable`: devices per resource; `devices`: per resource their ids in slot order, if known.

    `simulated` says what is made up: "" nothing, "gpus" the GPUs only, "all" the node with its GPUs.
    """

    name: str
    zone: str = ""
    rack: str = ""
    pool: str = ""
    product: str = ""
    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    ready: bool = True
    cordoned: bool = False
    simulated: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the event feed. `about` is "Pod NAME" or the like; `count` how often it was repeated up to `at`."""

    id: str
    at: float
    type: str
    reason: str
    about: str
    message: str
    source: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Everything a view draws, in a fixed order: nodes and units by name, events by time. `taken` is 0 before everything was read
    once; `trouble` tells why it may be out of date."""

    nodes: tuple[Node, ...] = ()
    units: tuple[Unit, ...] = ()
    events: tuple[Event, ...] = ()
    taken: float = 0.0
    trouble: str = ""

    @classmethod
    def of(cls, nodes: Iterable[Node], units: Iterable[Unit] = (), events: Iterable[Event] = (), taken: float = 0.0,
           trouble: str = "") -> ClusterSnapshot:
        return cls(
            tuple(sorted(nodes, key=lambda n: natural(n.name))),
            tuple(sorted(units, key=lambda u: (natural(u.namespace), natural(u.name), u.id))),
            tuple(sorted(events, key=lambda e: (e.at, e.id))), taken, trouble)

    def waiting(self) -> list[Unit]:
        """Units without a node, oldest first: the order in which they were submitted, then by name."""
        return sorted((u for u in self.units if u.stage == "waiting"), key=lambda u: (u.submitted or 0, natural(u.name)))

    def placed(self) -> list[Unit]:
        """Units that hold a node now: bound or running, not ended."""
        return [u for u in self.units if u.stage in ("starting", "running")]


@lru_cache(maxsize=1 << 16)
def natural(text: str) -> tuple:
    """Sort key that puts node-2 before node-10."""
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text) if part)
