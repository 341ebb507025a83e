"""Gangs that need all their members: a pod that declares a barrier (orchlab/barrier) makes no progress until as many pods of it as it needs
are Running at once. Until then it is Running and holds its devices.

What is counted: pods of the same namespace and barrier that are not being deleted and whose first container runs now. Each pod goes by the
size that it declares itself. The decision is the simulator's alone and stands on the pods, so that a restart loses nothing:

    orchlab/barrier-released   the time from which the pod's run time counts. Once released stays released, also over a restart in place.
    orchlab/barrier-missed     "RUN/PRESENT/SIZE": orchlab/barrier-timeout was over; that run (restart count) ends with exit code 1.

A member that dies after the release does not stop the others. In a real NCCL job they would hang in their next collective until a watchdog ends
them (PyTorch: TORCH_NCCL_ASYNC_ERROR_HANDLING, after the process group's timeout); a pod that shall end so says it by orchlab/exit. A pod
that a Job starts in its place is a pod of its own and waits at the barrier anew: the members that are still Running count, and if they have
completed it waits for ever or for its timeout, as a late worker at an empty rendezvous does.

Costs one request for a pod that is released, two (annotation, event) for one that times out, none for one that waits, and no list: what the
watch of pods brings is counted as it comes.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from orchlab import clock
from orchlab.simulator import pods

log = logging.getLogger("barriers")


@dataclass
class _Member:
    """A pod of a barrier. `run` is its restart count, `since` when that run began (None: it does not run); times since 1970 in s."""

    pod: dict
    wants: pods.Barrier
    run: int = 0
    since: float | None = None
    released: float | None = None
    missed: int | None = None
    # Pods on real kubelets count, but are not ours to hold or to release.
    ours: bool = True

    @property
    def present(self) -> bool:
        return self.since is not None and self.missed != self.run

    @property
    def waits(self) -> bool:
        return self.ours and self.present and self.released is None


@dataclass
class _Barrier:
    """`present` counts members, `sizes` those that wait by the size they need. `course` is how `present` changed while somebody
    waited: (time, present)."""

    members: dict[str, _Member] = field(default_factory=dict)
    present: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    course: list[tuple[float, int]] = field(default_factory=list)
    changed: bool = False


class Barriers:
    """Decides about releases and timeouts. `note` writes annotations on a pod, `warn` an event (pod, reason, message). Call `pod`, `pod_gone`
    and `relisted` as the watch of pods brings them, `tick` every now and then; all may come from different threads."""

    def __init__(self, note: Callable[[dict, dict[str, str | None]], None], warn: Callable[[dict, str, str], None]) -> None:
        self._note, self._warn = note, warn
        self._lock = threading.RLock()
        self._barriers: dict[tuple[str, str], _Barrier] = {}
        self._of: dict[str, tuple[str, str]] = {}
        self._due: list[tuple[float, str, int]] = []

    def pod(self, pod: dict, now: float) -> None:
        """A pod was bound or changed, seen at `now` (s since 1970)."""
        with self._lock:
            if key := self._look_at(pod, now):
                self._settle(self._barriers[key], now)

    def pod_gone(self, uid: str) -> None:
        """A pod is no more."""
        with self._lock:
            key = self._of.pop(uid, None)
            if key is None:
                return
            barrier = self._barriers[key]
            self._count(barrier, barrier.members.pop(uid), -1)
            if not barrier.members:
                del self._barriers[key]

    def relisted(self, found: list[dict], now: float) -> None:
        """The pods that there are now. All are counted before anybody is released. A release that a predecessor of this process had not written on
        all members is completed: who already ran when another was released belonged to it."""
        with self._lock:
            there = {pod["metadata"]["uid"] for pod in found}
            for uid in self._of.keys() - there:
                self.pod_gone(uid)
            for pod in found:
                self._look_at(pod, now)
            for barrier in self._barriers.values():
                if barrier.sizes:
                    self._complete(barrier)
                    self._settle(barrier, now)

    def tick(self, now: float) -> None:
        """Ends what has waited for too long, and notes how many are there for the logs."""
        with self._lock:
            late: list[tuple[_Barrier, _Member]] = []
            while self._due and self._due[0][0] <= now:
                _, uid, run = heapq.heappop(self._due)
                barrier = self._barriers.get(self._of.get(uid, ("", "")))
                member = barrier.members[uid] if barrier else None
                if member and member.run == run and member.waits:
                    late.append((barrier, member))
            # Those that are late together were there together.
            for barrier, member, present in [(barrier, member, barrier.present) for barrier, member in late]:
                self._miss(barrier, member, present)
            for barrier in self._barriers.values():
                if barrier.changed:
                    barrier.changed = False
                    if not barrier.course or barrier.course[-1][1] != barrier.present:
                        barrier.course.append((now, barrier.present))

    def course(self, pod: dict) -> list[tuple[datetime, int]]:
        """How many of the pod's barrier were Running from when on, while somebody waited there. Kept in memory: after a restart of the simulator
        it begins anew."""
        with self._lock:
            barrier = self._barriers.get(self._of.get(pod["metadata"]["uid"], ("", "")))
            return [(datetime.fromtimestamp(at, UTC), present) for at, present in barrier.course] if barrier else []

    def _look_at(self, pod: dict, now: float) -> tuple[str, str] | None:
        try:
            return self._take(pod, now)
        except Exception:
            # One pod that is beyond us (somebody rewrote what stands on it) must not hold up the others.
            log.exception("%s/%s", pod["metadata"].get("namespace"), pod["metadata"].get("name"))
            return None

    def _take(self, pod: dict, now: float) -> tuple[str, str] | None:
        """Counts a pod as it is now; its barrier's key, or None if it has none."""
        wants = pods.barrier(pod)
        if wants is None:
            return None
        metadata, notes = pod["metadata"], pod["metadata"].get("annotations") or {}
        uid, key = metadata["uid"], (metadata["namespace"], wants.name)
        run, since = _runs(pod)
        member = _Member(_reference(pod), wants, run, since, ours=pods.is_admitted(pod))
        if self._of.get(uid, key) != key:
            # The name on a pod of a real kubelet was changed.
            self.pod_gone(uid)
        known = self._barriers[key].members.get(uid) if key in self._barriers else None
        # What was decided may not be on the pod yet.
        if member.ours:
            member.released = known.released if known and known.released is not None else _seconds(notes.get(pods.RELEASED))
            found = pods.missed(pod)
            runs = [number for number in (found and found[0], known and known.missed) if number is not None]
            member.missed = max(runs, default=None)
        self._of[uid] = key
        barrier = self._barriers.setdefault(key, _Barrier())
        if known:
            self._count(barrier, known, -1)
        barrier.members[uid] = member
        self._count(barrier, member, 1)
        begins = not (known and known.since == since and known.run == run)
        if member.waits and begins and wants.seconds is not None:
            # Stamps are cut to whole seconds; the moment of seeing is the better figure if it lies in that second.
            heapq.heappush(self._due, (max(since, min(now, since + 1)) + wants.seconds, uid, run))
        return key

    def _count(self, barrier: _Barrier, member: _Member, step: int) -> None:
        before = barrier.present
        if member.present:
            barrier.present += step
        if member.waits:
            barrier.sizes[member.wants.size] += step
            if not barrier.sizes[member.wants.size]:
                del barrier.sizes[member.wants.size]
        barrier.changed = barrier.changed or (barrier.present != before and bool(barrier.sizes))

    def _settle(self, barrier: _Barrier, now: float) -> None:
        """Releases whoever finds enough others."""
        if any(size <= barrier.present for size in barrier.sizes):
            for member in barrier.members.values():
                if member.waits and member.wants.size <= barrier.present:
                    self._release(barrier, member, now)

    def _complete(self, barrier: _Barrier) -> None:
        earlier = [(other.released, other.wants.size) for other in barrier.members.values() if other.released is not None]
        for member in barrier.members.values():
            if member.waits:
                times = [at for at, size in earlier if member.since <= at and member.wants.size <= size]
                if times:
                    self._release(barrier, member, max(times))

    def _release(self, barrier: _Barrier, member: _Member, at: float) -> None:
        self._count(barrier, member, -1)
        member.released = at
        self._count(barrier, member, 1)
        self._note(member.pod, {pods.RELEASED: datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")})

    def _miss(self, barrier: _Barrier, member: _Member, present: int) -> None:
        self._count(barrier, member, -1)
        member.missed = member.run
        self._count(barrier, member, 1)
        wants = member.wants
        self._note(member.pod, {pods.MISSED: f"{member.run}/{present}/{wants.size}"})
        self._warn(member.pod, "BarrierTimeout", f"barrier {wants.name}: {present} of {wants.size} pods were Running after "
                   f"{clock.format(wants.seconds)} of real time ({pods.BARRIER_TIMEOUT}); the container ends with exit code 1")


def _runs(pod: dict) -> tuple[int, float | None]:
    """The restart count of the first container, and since when it runs; None if it does not, or is about to be stopped."""
    status = ((pod.get("status") or {}).get("containerStatuses") or [{}])[0]
    started = ((status.get("state") or {}).get("running") or {}).get("startedAt")
    if pods.phase(pod) != "Running" or "deletionTimestamp" in pod["metadata"]:
        started = None
    return status.get("restartCount", 0), _seconds(started)


def _reference(pod: dict) -> dict:
    """As much of a pod as writing on it takes."""
    kept = {name: pod["metadata"][name] for name in ("namespace", "name", "uid", "resourceVersion")}
    return {"metadata": kept, "spec": {"nodeName": pod["spec"].get("nodeName", "")}}


def _seconds(stamp: str | None) -> float | None:
    return datetime.fromisoformat(stamp).timestamp() if stamp else None
