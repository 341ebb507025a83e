"""Who waited, who was evicted and what it cost: sums over a timeline's records, by team and by priority. Pure; for both orchestrators.

A team is a namespace, or for Slurm an account (`team` = "group"); a priority is a PriorityClass or a QoS. Time held is split:

    lost      the run ended because the orchestrator took the devices away; what came after its last checkpoint has to be done again
    failed    the run ended by an error of its own
    vain      held until the rest of the gang was there: Running or starting, but not yet released from its barrier, if ever
    overhead  held, but nothing ran: starting, and being stopped
    useful    the rest: it completed, goes on, or was stopped by its owner

Seconds here are real ones, those of the timeline. `Clock` turns them into simulated ones where they are written out (see `text`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from orchlab import clock as written
from orchlab.clock import Clock
from orchlab.errors import BadInput
from orchlab.snapshot import natural
from orchlab.timeline import Hold, Record, Run

# Kubernetes' reasons of the condition DisruptionTarget, and Slurm's states. REQUEUED is ours: devices that went before the unit ended.
_EVICTED = re.compile(r"\b(PreemptionByScheduler|EvictionByEvictionAPI|DeletionByTaintManager|DeletionByPodGC|TerminationByKubelet|PREEMPTED"
                      r"|NODE_FAIL|REQUEUED|REVOKED)\b")
_FAILED = re.compile(r"(Failed|Error|OOMKilled|FAILED|TIMEOUT|OUT_OF_MEMORY|BOOT_FAIL|DEADLINE)\b")
# Ended by SIGTERM and nobody names a reason: kubectl delete.
_STOPPED = re.compile(r"(Failed|Error) \(exit 143\)")
NONE = "(none)"


@dataclass(frozen=True, slots=True)
class Eviction:
    """One time that devices were taken from a unit. `at` and `ran` in seconds (`at` since 1970), `lost` in device-seconds."""

    unit: str
    team: str
    priority: str
    how: str
    at: float
    devices: int
    ran: float
    lost: float


@dataclass(slots=True)
class Sum:
    """What one team, one priority or all did. `waits` are seconds from submission to the first node, one per unit; `waiting` units have none
    yet; the rest in device-seconds."""

    name: str
    units: int = 0
    waiting: int = 0
    evictions: int = 0
    waits: list[float] = field(default_factory=list)
    held: float = 0.0
    lost: float = 0.0
    failed: float = 0.0
    overhead: float = 0.0
    vain: float = 0.0

    @property
    def useful(self) -> float:
        return max(0.0, self.held - self.wasted)

    @property
    def wasted(self) -> float:
        return self.lost + self.failed + self.overhead + self.vain

    @property
    def mean_wait(self) -> float:
        return sum(self.waits) / len(self.waits) if self.waits else 0.0

    @property
    def longest_wait(self) -> float:
        return max(self.waits, default=0.0)


@dataclass(slots=True)
class Account:
    """The whole of it. `start` and `end` in seconds since 1970: the first submission, the last end or now. `devices`: how many there are, or
    None; `checkpoint`: seconds between two, or None where nothing is saved; `uncertain`: ends that fell into a gap of the watch."""

    start: float
    end: float
    total: Sum
    teams: list[Sum]
    priorities: list[Sum]
    evictions: list[Eviction]
    devices: int | None = None
    checkpoint: float | None = None
    uncertain: int = 0

    @property
    def makespan(self) -> float:
        """Seconds from the first submission to the last end, or to now."""
        return self.end - self.start

    @property
    def capacity(self) -> float | None:
        return None if self.devices is None else self.devices * self.makespan

    @property
    def idle(self) -> float | None:
        """Device-seconds that nobody held."""
        return None if self.capacity is None else max(0.0, self.capacity - self.total.held)

    @property
    def utilisation(self) -> float | None:
        """Held of what there was, 0 to 1."""
        return self.total.held / self.capacity if self.capacity else None

    @property
    def goodput(self) -> float | None:
        """Useful of what there was, 0 to 1."""
        return self.total.useful / self.capacity if self.capacity else None


def account(records: Iterable[Record], now: float, devices: int | None = None, resource: str | None = None, team: str = "namespace",
            checkpoint: float | None = None) -> Account:
    """Adds up `records` (of Timeline.records(), all or some) as of `now`. `devices`: how many they shared; `resource`: count one only.
    `checkpoint`: seconds of a run after which it is saved, again and again. Raises BadInput for another `team` than namespace or group, and
    for a checkpoint that is not above 0."""
    if team not in ("namespace", "group"):
        raise BadInput("team", team, "is not something that units belong to", "use namespace, or group for Slurm's accounts")
    if checkpoint is not None and not checkpoint > 0:
        raise BadInput("checkpoint", checkpoint, "is not a time above 0", "None for work that is never saved")
    records = list(records)
    total, teams, priorities, evictions = Sum("all"), {}, {}, []
    for record in records:
        names = (getattr(record, team) or NONE, record.priority or NONE)
        sums = (total, teams.setdefault(names[0], Sum(names[0])), priorities.setdefault(names[1], Sum(names[1])))
        taken = _add(record, now, resource, checkpoint, sums, names)
        evictions += taken
        for one in sums:
            one.units += 1
            one.waits.append(record.waited(now))
            one.waiting += not record.holds and record.ended is None
            one.evictions += len(taken)
    start = min((r.submitted for r in records), default=0.0)
    open_ = any(r.ended is None for r in records)
    end = max(start, now) if open_ else max((r.ended for r in records), default=0.0)
    return Account(start, end, total, _sorted(teams), _sorted(priorities), sorted(evictions, key=lambda e: (e.at, natural(e.unit))), devices,
                   checkpoint, sum(hold.uncertain for r in records for hold in r.holds))


def _add(record: Record, now: float, resource: str | None, checkpoint: float | None, sums: tuple[Sum, ...],
         names: tuple[str, str]) -> list[Eviction]:
    """Adds a record's holds to `sums`; returns the evictions in it."""
    taken = []
    for place, hold in enumerate(record.holds):
        count = sum(share.count for share in hold.shares if resource in (None, share.resource))
        end = now if hold.end is None else min(hold.end, now)
        held = max(0.0, end - hold.start)
        # What comes before the release makes no progress, whatever the pod's phase is.
        vain = record.held_in_vain(hold.start, end)
        begun = hold.start + vain
        runs = [run for run in record.runs if run.start < end and (run.end is None or run.end > hold.start)]
        ran, lost, failed = 0.0, 0.0, 0.0
        for run in runs:
            seconds = max(0.0, min(end, now if run.end is None else run.end) - max(run.start, begun))
            ran += seconds
            how = _how(record, run, hold, place) if run is runs[-1] or run.outcome else ""
            if how and _EVICTED.search(how):
                redo = seconds if checkpoint is None else seconds % checkpoint
                lost += redo
                taken.append(Eviction(_unit(record), *names, how, run.end or end, count, seconds, count * redo))
            elif _FAILED.match(run.outcome) and not _STOPPED.match(run.outcome):
                failed += seconds
        if not runs and hold.end is not None and _EVICTED.search(how := _how(record, None, hold, place)):
            taken.append(Eviction(_unit(record), *names, how, hold.end, count, 0.0, 0.0))
        for one in sums:
            one.held += count * held
            one.lost += count * lost
            one.failed += count * failed
            one.overhead += count * max(0.0, held - vain - ran)
            one.vain += count * vain
    return taken


def _unit(record: Record) -> str:
    return f"{record.namespace}/{record.name}".lstrip("/")


def _how(record: Record, run: Run | None, hold: Hold, place: int) -> str:
    """In which words devices were given back, "" while they are held. Devices that went before the unit ended were taken: Slurm requeues."""
    if hold.end is None:
        return ""
    last = place == len(record.holds) - 1
    if last and record.ended is not None and hold.end >= record.ended:
        return record.outcome
    return run.outcome if run and _EVICTED.search(run.outcome) else "REQUEUED"


def _sorted(sums: dict[str, Sum]) -> list[Sum]:
    return [sums[name] for name in sorted(sums, key=natural)]


# -- in words ----------------------------------------------------------------------------------------------------------------------------


def notes(found: Account, scale: Clock | None = None) -> list[str]:
    """What is simulated time in the figures and what is not; what is not known."""
    if scale is None:
        lines = ["time: all of it is the orchestrator's own"]
    else:
        lines = [f"simulated time ({scale.describe()}): run times, and so GPU-hours held, lost and idle",
                 f"real time, written {written.format(scale.factor)} for a second: the scheduler's and the controllers' own delays, back-offs "
                 "and grace periods; a wait is a mix of both"]
    if found.checkpoint is None:
        lines.append("lost: nothing was saved, an evicted run begins anew")
    else:
        lines.append(f"lost: modelled, with a checkpoint every {_minutes(found.checkpoint, scale)} of a run")
    if found.total.vain:
        lines.append("in vain: held before the barrier was released, while a part of the gang was not Running")
    if found.total.waiting:
        lines.append(f"still waiting: {found.total.waiting}; their waits count up to now")
    if found.uncertain:
        lines.append(f"not known exactly: {found.uncertain} ends that fell into a gap of the watch")
    return lines


def hours(device_seconds: float, scale: Clock | None = None) -> str:
    """Device-seconds of the timeline in GPU-hours, simulated ones if there is a clock: 30 → "0.50 GPU-h" at 60 to 1."""
    return f"{(scale.factor if scale else 1) * device_seconds / 3600:.2f} GPU-h"


def _minutes(seconds: float, scale: Clock | None) -> str:
    return f"{(scale.factor if scale else 1) * seconds / 60:.1f} min"


def minutes(seconds: float, scale: Clock | None = None) -> str:
    """Seconds of the timeline in minutes, simulated ones if there is a clock."""
    return _minutes(seconds, scale)


def share(part: float | None) -> str:
    """0.5 → "50 %"; "-" for None."""
    return "-" if part is None else f"{100 * part:.0f} %"
