"""What happened when: a pure record for both orchestrators, fed from watches, drawn by views.

A feeder says what it sees (`apply`, `gone`, `relisted`) as often as it likes and in any order; repeats and late news change
nothing. Times are seconds since 1970. Orchestrators stamp in whole seconds; where the moment of seeing lies within the stamped
second it is the better figure and is used, otherwise the stamp is. What could not be watched is marked as a gap.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

from orchlab.errors import BadInput
from orchlab.snapshot import Share, Unit, natural

SCHEMA = 1


@dataclass(slots=True)
class Wait:
    """A span of waiting for one reason, in the orchestrator's words ("" before it gave one). `stage`: waiting or starting."""

    stage: str
    reason: str
    message: str
    start: float
    end: float | None = None


@dataclass(slots=True)
class Hold:
    """A span in which devices were taken. `uncertain`: it ended somewhere inside a gap, at the latest at `end`."""

    shares: tuple[Share, ...]
    start: float
    end: float | None = None
    uncertain: bool = False


@dataclass(slots=True)
class Run:
    """A span in which the unit's process ran; `number` is 0 for the first and grows with each restart."""

    number: int
    start: float
    end: float | None = None
    outcome: str = ""


@dataclass(slots=True)
class Gap:
    """From `start` to `end` changes to `what` may not have been seen."""

    what: str
    start: float
    end: float
    why: str


@dataclass(slots=True)
class Record:
    """The whole life of one unit."""

    id: str
    kind: str
    namespace: str
    name: str
    group: str
    wanted: dict[str, int]
    submitted: float
    waits: list[Wait] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    ended: float | None = None
    outcome: str = ""
    version: int = 0
    removed: bool = False
    priority: str = ""
    barrier: str = ""
    released: float | None = None

    def device_seconds(self, now: float, resource: str | None = None, node: str | None = None) -> float:
        """Devices held x seconds held, up to `now`."""
        return sum(
            share.count * max(0.0, (now if hold.end is None else min(hold.end, now)) - hold.start)
            for hold in self.holds for share in hold.shares
            if resource in (None, share.resource) and node in (None, share.node)) + 0.0

    def held_in_vain(self, start: float, end: float) -> float:
        """Seconds from `start` to `end` in which the unit was at its barrier or on the way to it, not yet released; 0 without a barrier."""
        if not self.barrier:
            return 0.0
        return max(0.0, (end if self.released is None else min(end, self.released)) - start)

    def waited(self, now: float) -> float:
        """Seconds from submission to the first node, or to `now` or the end if there was none."""
        until = self.holds[0].start if self.holds else now if self.ended is None else self.ended
        return max(0.0, until - self.submitted)


@dataclass(frozen=True, slots=True)
class Interval:
    """One bar: `what` is waiting, starting, barrier or running of a unit, held or vain (until the barrier is released) of a device; `row` the
    unit's or the device's; `open`: it still goes on."""

    row: tuple[str, ...]
    unit: str
    name: str
    what: str
    start: float
    end: float
    open: bool
    text: str = ""
    uncertain: bool = False


class Timeline:
    """Records per unit. Thread-safe. Keeps the last `keep` ended units; `dropped` says how many older ones it let go."""

    def __init__(self, keep: int = 5000) -> None:
        self._lock = threading.RLock()
        self._records: dict[str, Record] = {}
        self._ended: list[str] = []
        self._gaps: list[Gap] = []
        self.keep, self.dropped = keep, 0

    # -- feeding -------------------------------------------------------------------------------------------------------------

    def apply(self, unit: Unit, at: float, version: int = 0) -> bool:
        """Takes in a unit as seen at `at`. `version` orders what is seen of one unit (0: by arrival). False if it was old news."""
        with self._lock:
            record = self._records.get(unit.id)
            if record is None:
                submitted = _moment(unit.submitted, at)
                record = Record(unit.id, unit.kind, unit.namespace, unit.name, unit.group, dict(unit.wanted), submitted,
                                priority=unit.priority)
                self._records[unit.id] = record
            elif record.ended is not None or (version and version <= record.version):
                return False
            record.version = max(version, record.version)
            record.wanted = dict(unit.wanted)
            record.barrier = unit.barrier or record.barrier
            record.released = record.released if unit.released is None else unit.released
            _apply_hold(record, unit, at)
            _apply_run(record, unit, at)
            _apply_wait(record, unit, at)
            if unit.ended is not None:
                self._end(record, _moment(unit.ended, at), unit.outcome)
            return True

    def gone(self, id: str, at: float, uncertain: bool = False) -> bool:
        """The unit was deleted, at `at` or (uncertain) some time before. True if it was known and not gone already."""
        with self._lock:
            record = self._records.get(id)
            if record is None or record.removed:
                return False
            record.removed = True
            if record.ended is None:
                self._end(record, at, "deleted", uncertain)
            return True

    def relisted(self, units: Iterable[tuple[Unit, int]], at: float, kind: str = "Pod") -> None:
        """A full list of all units of `kind`, with their versions: those known and not in it are gone since some time in the gap."""
        with self._lock:
            present = set()
            for unit, version in units:
                present.add(unit.id)
                self.apply(unit, at, version)
            for record in list(self._records.values()):
                if record.kind == kind and record.id not in present:
                    self.gone(record.id, at, uncertain=True)

    def mark_gap(self, start: float, end: float, why: str, what: str = "Pod") -> None:
        """Notes that changes to `what` (a kind) between the two times may not have been seen."""
        with self._lock:
            self._gaps.append(Gap(what, min(start, end), end, why))
            del self._gaps[:-1000]

    def _end(self, record: Record, at: float, outcome: str, uncertain: bool = False) -> None:
        record.ended = max(at, record.submitted)
        record.outcome = outcome
        for wait in record.waits[-1:]:
            _close(wait, record.ended)
        for run in record.runs[-1:]:
            run.outcome = run.outcome or outcome
            _close(run, record.ended)
        for hold in record.holds[-1:]:
            hold.uncertain = hold.uncertain or (uncertain and hold.end is None)
            _close(hold, record.ended)
        self._ended.append(record.id)
        while len(self._ended) > self.keep:
            self._records.pop(self._ended.pop(0), None)
            self.dropped += 1

    # -- reading -------------------------------------------------------------------------------------------------------------

    def records(self) -> list[Record]:
        """All records by time of submission, then by name."""
        with self._lock:
            return sorted(self._records.values(), key=lambda r: (r.submitted, natural(r.namespace), natural(r.name), r.id))

    def gaps(self, what: str | None = None) -> list[Gap]:
        """Gaps in which changes to `what` (None: to any kind of unit that was ever seen) may have been missed."""
        with self._lock:
            kinds = {record.kind for record in self._records.values()} if what is None else {what}
            return [gap for gap in self._gaps if gap.what in kinds]

    def goes_on(self) -> bool:
        """True while anything waits or runs, so that a picture of it grows with time."""
        with self._lock:
            return any(record.ended is None for record in self._records.values())

    def span(self, now: float | None = None) -> tuple[float, float]:
        """First submission and last change (or `now` while anything goes on). (0, 0) if nothing happened."""
        with self._lock:
            if not self._records:
                return 0.0, 0.0
            start = min(record.submitted for record in self._records.values())
            if self.goes_on():
                return start, max(start, time.time() if now is None else now)
            return start, max(record.ended for record in self._records.values())

    def per_unit(self, now: float | None = None) -> list[Interval]:
        """Bars per unit: waiting (by reason), starting, at its barrier, running; row (namespace, name). Ordered by submission."""
        now = time.time() if now is None else now
        return [Interval((r.namespace, r.name), r.id, r.name, what, start, _until(end, now), end is None, text)
                for r in self.records() for what, start, end, text in _spans(r)]

    def per_device(self, now: float | None = None) -> list[Interval]:
        """Bars per device: in vain, held; row (node, device id). Holds without ids get the lowest free place, row (node, "~0"), ("~1") …"""
        now = time.time() if now is None else now
        busy: dict[tuple[str, str], float] = {}
        bars = []
        holds = sorted(((h, r) for r in self.records() for h in r.holds), key=lambda pair: (pair[0].start, natural(pair[1].name)))
        for hold, record in holds:
            end = _until(hold.end, now)
            for share in hold.shares:
                for row in _places(share, hold.start, busy):
                    busy[row] = end
                    bars += _pieces(row, record, hold, end)
        return sorted(bars, key=lambda bar: ([natural(part) for part in bar.row], bar.start))

    def occupancy(self, now: float | None = None, resource: str | None = None) -> dict[str, list[tuple[float, int]]]:
        """Per node the devices held as steps [(time, devices from then on)], nodes in natural order."""
        now = time.time() if now is None else now
        changes: dict[str, dict[float, int]] = {}
        with self._lock:
            for hold in (h for r in self._records.values() for h in r.holds):
                for share in (s for s in hold.shares if resource in (None, s.resource)):
                    steps = changes.setdefault(share.node, {})
                    steps[hold.start] = steps.get(hold.start, 0) + share.count
                    if hold.end is not None and hold.end <= now:
                        steps[hold.end] = steps.get(hold.end, 0) - share.count
        answer = {}
        for node in sorted(changes, key=natural):
            level, answer[node] = 0, []
            for moment in sorted(changes[node]):
                level += changes[node][moment]
                answer[node].append((moment, level))
        return answer

    def device_seconds(self, by: str = "unit", now: float | None = None, resource: str | None = None) -> dict[str, float]:
        """Devices x seconds held, summed by "unit" (namespace/name), "group" or "node". Raises BadInput for another `by`."""
        if by not in ("unit", "group", "node"):
            raise BadInput("by", by, "is not a way to add up", "use unit, group or node")
        now = time.time() if now is None else now
        totals: dict[str, float] = {}
        for record in self.records():
            nodes = {share.node for hold in record.holds for share in hold.shares} if by == "node" else {None}
            for node in nodes:
                key = node or (record.group if by == "group" else f"{record.namespace}/{record.name}".lstrip("/"))
                totals[key] = totals.get(key, 0.0) + record.device_seconds(now, resource, node)
        return {key: totals[key] for key in sorted(totals, key=natural)}

    def to_rows(self, now: float | None = None) -> list[dict[str, object]]:
        """The text twin of the Gantt charts: a row per unit; times in seconds after the first submission, None where not (yet) so. Where
        anything has a barrier, every row says too when it was released and the device-seconds held in vain."""
        now = time.time() if now is None else now
        with self._lock:
            zero, _ = self.span(now)
            records = self.records()
            rows = [_row(record, zero, now) for record in records]
            if any(record.barrier for record in records):
                rows = [row | _at_barrier(record, zero, now) for row, record in zip(rows, records, strict=True)]
            return rows

    def to_json(self) -> dict:
        """Everything, as plain JSON values; `from_json` reads it back."""
        with self._lock:
            return {"schema": SCHEMA, "records": [asdict(r) for r in self.records()], "gaps": [asdict(g) for g in self._gaps],
                    "dropped": self.dropped}

    @classmethod
    def from_json(cls, data: dict) -> Timeline:
        """Raises BadInput for a schema that this version doesn't know."""
        if data.get("schema") != SCHEMA:
            raise BadInput("schema", data.get("schema"), f"only {SCHEMA} can be read", "record the timeline again with this version")
        timeline = cls()
        for raw in data["records"]:
            raw = dict(raw)
            raw["waits"] = [Wait(**w) for w in raw["waits"]]
            raw["runs"] = [Run(**r) for r in raw["runs"]]
            raw["holds"] = [Hold(**h | {"shares": tuple(Share(**s | {"devices": tuple(s["devices"])}) for s in h["shares"])})
                            for h in raw["holds"]]
            timeline._records[raw["id"]] = Record(**raw)
        ended = (r for r in timeline._records.values() if r.ended is not None)
        timeline._ended = [r.id for r in sorted(ended, key=lambda r: r.ended)]
        timeline._gaps = [Gap(**gap) for gap in data["gaps"]]
        timeline.dropped = data["dropped"]
        return timeline


def _moment(stamp: float | None, seen: float) -> float:
    """A stamp in whole seconds means somewhere in that second; if it was seen within the second, the seeing is the better figure."""
    return seen if stamp is None or stamp <= seen < stamp + 1 else stamp


def _close(span: Wait | Hold | Run, at: float) -> None:
    if span.end is None:
        span.end = max(at, span.start)


def _until(end: float | None, now: float) -> float:
    return now if end is None else end


def _apply_hold(record: Record, unit: Unit, at: float) -> None:
    hold = record.holds[-1] if record.holds and record.holds[-1].end is None else None
    if hold and unit.nodes == tuple(dict.fromkeys(s.node for s in hold.shares)):
        hold.shares = unit.shares
        return
    if hold:
        _close(hold, at)
    if unit.shares:
        record.holds.append(Hold(unit.shares, max(record.submitted, _moment(unit.bound, at))))


def _apply_run(record: Record, unit: Unit, at: float) -> None:
    runs = {run.number: run for run in record.runs}
    if last := unit.last_run:
        if last.number not in runs:
            # Never seen running: its times are known from the orchestrator alone.
            runs[last.number] = Run(last.number, last.start)
        if runs[last.number].end is None:
            runs[last.number].outcome = last.outcome
            _close(runs[last.number], _moment(last.end, at))
    for run in runs.values():
        if run.number < unit.restarts or unit.started is None:
            _close(run, at)
    if unit.started is not None and unit.restarts not in runs:
        runs[unit.restarts] = Run(unit.restarts, max(record.submitted, _moment(unit.started, at)))
    record.runs = [runs[number] for number in sorted(runs)]


def _apply_wait(record: Record, unit: Unit, at: float) -> None:
    bound = record.holds[-1].start if record.holds else None
    if not record.waits:
        known = (unit.reason, unit.message) if unit.stage == "waiting" else ("", "")
        record.waits.append(Wait("waiting", *known, record.submitted, bound))
    wait = record.waits[-1]
    if wait.stage == "waiting" and bound is not None:
        _close(wait, bound)
    if unit.stage == "running":
        _close(wait, _moment(unit.started, at))
        if wait.stage == "waiting" and len(record.runs) == 1 and record.runs[0].start > wait.end:
            record.waits.append(Wait("starting", "", "", wait.end, record.runs[0].start))
    if unit.stage in ("running", "ended"):
        return
    if wait.end is None and (wait.stage, wait.reason, wait.message) == (unit.stage, unit.reason, unit.message):
        return
    start = at
    if unit.stage == "starting" and wait.end is not None:
        start = record.runs[-1].end if record.runs else wait.end
    _close(wait, start)
    record.waits.append(Wait(unit.stage, unit.reason, unit.message, max(start, wait.end)))


def _spans(record: Record) -> Iterator[tuple[str, float, float | None, str]]:
    for wait in record.waits:
        yield wait.stage, wait.start, wait.end, f"{wait.reason}: {wait.message}".strip(": ")
    for run in record.runs:
        if not record.barrier or (record.released is not None and record.released <= run.start):
            yield "running", run.start, run.end, run.outcome
            continue
        free = record.released if run.end is None or (record.released is not None and record.released < run.end) else None
        yield "barrier", run.start, run.end if free is None else free, f"{record.barrier}: {run.outcome}".strip(": ")
        if free is not None:
            yield "running", free, run.end, run.outcome


def _pieces(row: tuple[str, str], record: Record, hold: Hold, end: float) -> Iterator[Interval]:
    free = hold.start + record.held_in_vain(hold.start, end)
    still = hold.end is None
    if free > hold.start:
        yield Interval(row, record.id, record.name, "vain", hold.start, free, still and free >= end, record.outcome, hold.uncertain and free >= end)
    if free < end or free == hold.start:
        yield Interval(row, record.id, record.name, "held", free, end, still, record.outcome, hold.uncertain)


def _places(share: Share, start: float, busy: dict[tuple[str, str], float]) -> list[tuple[str, str]]:
    rows = [(share.node, device) for device in share.devices]
    number = 0
    while len(rows) < share.count:
        row = (share.node, f"~{number}")
        if busy.get(row, start) <= start:
            rows.append(row)
        number += 1
    return rows


def _at_barrier(record: Record, zero: float, now: float) -> dict[str, object]:
    vain = sum(record.held_in_vain(hold.start, _until(hold.end, now)) * sum(share.count for share in hold.shares) for hold in record.holds)
    released = None if record.released is None else round(record.released - zero, 1)
    return {"barrier": record.barrier, "released": released, "in vain": round(vain, 1)}


def _row(record: Record, zero: float, now: float) -> dict[str, object]:
    def after(moment: float | None) -> float | None:
        return None if moment is None else round(moment - zero, 1)

    last = record.waits[-1] if record.waits else None
    open_wait = last if last and last.end is None else None
    shares = record.holds[-1].shares if record.holds else ()
    return {
        "unit": f"{record.kind} {record.namespace}/{record.name}".replace(" /", " "), "group": record.group,
        "wants": sum(record.wanted.values()), "submitted": after(record.submitted), "waited": round(record.waited(now), 1),
        "waits for": f"{open_wait.reason}: {open_wait.message}".strip(": ") if open_wait else "",
        "node": ",".join(dict.fromkeys(s.node for s in shares)), "devices": ",".join(d for s in shares for d in s.devices),
        "bound": after(record.holds[0].start if record.holds else None), "started": after(record.runs[0].start if record.runs else None),
        "restarts": max((run.number for run in record.runs), default=0), "ended": after(record.ended), "outcome": record.outcome,
        "device-seconds": round(record.device_seconds(now), 1),
    }
