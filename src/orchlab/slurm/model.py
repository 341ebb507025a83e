"""What the client answers with, whichever way it asked. Times are seconds since 1970, durations seconds, memory MiB; None where unknown.

States and reasons are Slurm's own words (PENDING, JobArrayTaskLimit). Numbers that Slurm shows as UNLIMITED are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Held:
    """What a job holds of one GRES on one node; `indices` are device numbers, empty where Slurm does not give them."""

    node: str
    name: str
    type: str
    count: int
    indices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Job:
    """A job that slurmctld knows: waiting, running, or ended not long ago. An array's waiting tasks are one job with `array_tasks`
    ("2-9%2")."""

    id: int
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    state: str = ""
    reason: str = ""
    array_id: int | None = None
    array_task: int | None = None
    array_tasks: str = ""
    het_id: int | None = None
    het_offset: int | None = None
    dependency: str = ""
    priority: int | None = None
    nodes: tuple[str, ...] = ()
    node_count: int = 0
    cpus: int = 0
    tres: Mapping[str, int] = field(default_factory=dict)
    held: tuple[Held, ...] = ()
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    limit: int | None = None
    restarts: int = 0
    exit_code: int = 0
    exit_signal: int = 0
    directory: str = ""
    output: str = ""
    reservation: str = ""

    @property
    def label(self) -> str:
        """The id as squeue prints it: 7, 7_3, 7_[4-9%2], 7+1."""
        if self.array_tasks:
            return f"{self.array_id or self.id}_[{self.array_tasks}]"
        if self.array_id and self.array_task is not None:
            return f"{self.array_id}_{self.array_task}"
        return f"{self.het_id}+{self.het_offset}" if self.het_id else str(self.id)

    @property
    def gpus(self) -> int:
        """GPUs asked for, or held once it runs, on all nodes together."""
        return int(self.tres.get("gres/gpu", 0))

    @property
    def ended_for_good(self) -> bool:
        return self.state in ENDED


ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "REVOKED"}
)


@dataclass(frozen=True)
class Step:
    """A part of a job that runs now; `id` is 5.0 or 5.batch."""

    id: str
    name: str = ""
    state: str = ""
    nodes: tuple[str, ...] = ()
    started: float | None = None


@dataclass(frozen=True)
class Node:
    """`state` is one word (IDLE, MIXED, ALLOCATED, DOWN …), `flags` what comes on top (DRAIN, NOT_RESPONDING, COMPLETING …)."""

    name: str
    state: str = ""
    flags: tuple[str, ...] = ()
    cpus: int = 0
    cpus_allocated: int = 0
    memory: int = 0
    memory_allocated: int = 0
    gres: Mapping[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Partition:
    """`limit` is MaxTime, `default` whether jobs without -p go there, `max_nodes` per job."""

    name: str
    state: str = ""
    nodes: tuple[str, ...] = ()
    limit: int | None = None
    default_limit: int | None = None
    max_nodes: int | None = None
    priority_tier: int = 0


@dataclass(frozen=True)
class Reservation:
    """Nodes kept for some users or accounts from `start` to `end`."""

    name: str
    nodes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    start: float | None = None
    end: float | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class PastStep:
    """A step as accounting has it; `exit_code` None where the transport gives none that is right."""

    id: str
    name: str = ""
    state: str = ""
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = 0


@dataclass(frozen=True)
class PastJob:
    """A job as accounting has it (it may still run: then `ended` is None). `tres` is what was allocated; `exit_code` None where the
    transport
    gives none that is right. slurmdbd hears of jobs late: a name can be "allocation" for a second."""

    id: int
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    state: str = ""
    array_id: int | None = None
    array_task: int | None = None
    nodes: tuple[str, ...] = ()
    tres: Mapping[str, int] = field(default_factory=dict)
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    elapsed: int = 0
    exit_code: int | None = 0
    exit_signal: int = 0
    steps: tuple[PastStep, ...] = ()


@dataclass(frozen=True)
class Priority:
    """The parts of a waiting job's priority, each already multiplied by its weight, as sprio prints them."""

    job: str
    user: str
    total: float
    age: float = 0
    fairshare: float = 0
    job_size: float = 0
    partition: float = 0
    qos: float = 0


@dataclass(frozen=True)
class Share:
    """One line of sshare: `user` is "" for an account's own line; `raw_usage` in weighted TRES-seconds; `fairshare` 0 to 1."""

    account: str
    user: str
    raw_shares: str
    norm_shares: float | None
    raw_usage: int
    effective_usage: float | None
    fairshare: float | None


@dataclass(frozen=True)
class Qos:
    """A quality of service. Limits in TRES words ("gres/gpu=4"), "" where there is none."""

    name: str
    priority: int = 0
    preempts: tuple[str, ...] = ()
    preempt_mode: str = ""
    max_tres_per_user: str = ""
    group_tres: str = ""
