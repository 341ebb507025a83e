"""Keeps a snapshot and a timeline of a Slurm cluster up to date by asking slurmctld: once a second at most, since Slurm has no watches.

It has the same face as orchlab.kube.feed.Feed, so views draw either. What happens between two questions is seen late by that much; a job's
own times (submit, start, end) are slurmctld's, in whole seconds.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from orchlab.errors import BadInput, EnvironmentBroken, OrchlabError, TimeLimitReached
from orchlab.fleet_nodes import FleetNode
from orchlab.slurm import model
from orchlab.slurm.client import Client
from orchlab.snapshot import ClusterSnapshot, Node, Share, Unit
from orchlab.timeline import Timeline

log = logging.getLogger(__name__)
KIND = "Job"
NODES_EVERY = 3  # polls: nodes change less often than jobs


class Feed:
    """A live ClusterSnapshot and Timeline of one cluster; a context manager.

    `fleet` says where nodes stand (zone, rack, pool); `only` limits the jobs; `interval` is the pause between two questions in seconds, at
    least 1. A question gets the client's time limit; after one that failed the pause grows to 5 s.
    """

    def __init__(
        self,
        client: Client,
        fleet: list[FleetNode] | None = None,
        only: Callable[[model.Job], bool] | None = None,
        interval: float = 1.0,
        simulated: str = "all",
    ) -> None:
        if interval < 1:
            raise BadInput(
                "interval", interval, "is below 1 second", "slurmctld answers every user of a cluster: ask it once a second at most"
            )
        self.client, self.interval, self.timeline = client, interval, Timeline()
        self._fleet = {node.name: node for node in fleet or []}
        self._only, self._simulated = only, simulated
        self._nodes: list[Node] = []
        self._gres: dict[str, Mapping[str, int]] = {}
        self._units: list[Unit] = []
        self._open: dict[str, Unit] = {}  # what waited or ran when it was last heard of, by id
        self._lock = threading.Lock()
        self._news = threading.Condition()
        self._count, self._heard = 0, 0.0
        self._stopping, self._listed = threading.Event(), threading.Event()
        self._listeners: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self.trouble = ""

    # -- life

    def start(self) -> Feed:
        """Starts the thread and returns at once. A feed that was stopped cannot start again."""
        if self._stopping.is_set():
            raise OrchlabError("a stopped feed cannot be started again", "make a new Feed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="orchlab-slurm-feed", daemon=True)
            self._thread.start()
        return self

    def ready(self, seconds: float = 10) -> Feed:
        """Waits until jobs and nodes were read once. Raises EnvironmentBroken with the last trouble when time is up."""
        if not self._listed.wait(seconds):
            raise EnvironmentBroken(self.trouble or f"slurmctld was not heard of within {seconds:g} s", "orchlab status shows what runs")
        return self

    def stop(self, seconds: float = 2.0) -> bool:
        """Ends the thread; True if it ended within `seconds`. May be called twice, and from a listener."""
        self._stopping.set()
        with self._news:
            self._news.notify_all()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(seconds)
            return not self._thread.is_alive()
        return True

    def __enter__(self) -> Feed:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- reading

    def snapshot(self) -> ClusterSnapshot:
        with self._lock:
            return ClusterSnapshot.of(self._nodes, self._units, taken=time.time(), trouble=self.trouble)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` after each question that was answered, from the feed's own thread. Returns a function that ends it."""
        self._listeners.append(listener)

        def end() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return end

    def wait(self, condition: Callable[[ClusterSnapshot], object], seconds: float, what: str = "the cluster") -> ClusterSnapshot:
        """The first snapshot for which `condition` is true. Raises TimeLimitReached, EnvironmentBroken if the feed is stopped."""
        deadline = time.monotonic() + seconds
        while True:
            seen = self._count
            if condition(snapshot := self.snapshot()):
                return snapshot
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeLimitReached(f"{what} did not come to that within {seconds:g} s" + (f": {self.trouble}" if self.trouble else ""))
            with self._news:
                self._news.wait_for(lambda seen=seen: self._count != seen or self._stopping.is_set(), timeout=min(left, 1.0))
            if self._stopping.is_set():
                raise EnvironmentBroken("the feed was stopped while something waited for it")

    # -- the thread

    def _run(self) -> None:
        poll, pause = 0, self.interval
        while not self._stopping.is_set():
            try:
                self._ask(poll % NODES_EVERY == 0)
                poll, pause = poll + 1, self.interval
            except OrchlabError as error:
                self.trouble = str(error).splitlines()[0]
                pause = min(5.0, pause * 2)
            except Exception as error:  # noqa: BLE001 - an answer that cannot be read must not end the feed in silence
                log.exception("the feed could not read an answer")
                self.trouble, pause = f"an answer of Slurm's could not be read: {error}", 5.0
            self._tell()
            self._stopping.wait(pause)

    def _ask(self, with_nodes: bool) -> None:
        if with_nodes or not self._nodes:
            nodes = self.client.nodes()
            with self._lock:
                self._gres = {node.name: node.gres for node in nodes}
                self._nodes = [node_from(node, self._fleet.get(node.name), self._simulated) for node in nodes]
        jobs = self.client.jobs()
        seen = time.time()
        units = [unit for job in jobs if self._only is None or self._only(job) for unit in units_from(job, self._gres)]
        with self._lock:
            self._units = units
        if self.trouble:
            self.timeline.mark_gap(self._heard, seen, self.trouble, KIND)
        self.trouble, self._heard = "", seen
        for unit in units:
            self.timeline.apply(unit, _moment(unit, seen))
        self._close_forgotten({unit.id for unit in units}, jobs, seen)
        self._listed.set()

    def _close_forgotten(self, present: set[str], jobs: list[model.Job], seen: float) -> None:
        """Ends what was open and slurmctld no longer knows (it forgets ended jobs after MinJobAge): as accounting has it, else with an
        uncertain end. `present`: what it knows now."""
        # Of the waiting tasks of a large array Slurm writes the first few only: "1-3,9,..."
        shortened = tuple(f"{job.array_id}_" for job in jobs if "..." in job.array_tasks)
        missing = {id: unit for id, unit in self._open.items() if id not in present and not id.startswith(shortened)}
        unwritten = {id: unit for id, unit in self._open.items() if id not in present and id not in missing}
        self._open = unwritten | {unit.id: unit for unit in self._units if unit.ended is None}
        if not missing:
            return
        try:
            past = self.client.accounting(sorted({re.split(r"[_+]", id)[0] for id in missing}))
        except OrchlabError:
            past = []
        for job in past:
            unit = missing.get(f"{job.array_id}_{job.array_task}" if job.array_id and job.array_task is not None else str(job.id))
            if unit is not None and job.ended is not None:
                ended = replace(unit, phase=job.state.capitalize(), reason="", shares=(), bound=None, started=None, ended=job.ended,
                                outcome=job.state)
                self.timeline.apply(ended, _moment(ended, seen))
        for id in missing:
            self.timeline.gone(id, seen, uncertain=True)

    def _tell(self) -> None:
        with self._news:
            self._count += 1
            self._news.notify_all()
        for listener in list(self._listeners):
            try:
                listener()
            except Exception:  # noqa: BLE001 - one listener's fault must not silence the others
                log.exception("a listener failed")


def _moment(unit: Unit, seen: float) -> float:
    """When what is seen happened: now, but for an end that was seen late, which has slurmctld's time."""
    return seen if unit.ended is None or seen < unit.ended + 1 else unit.ended


def node_from(node: model.Node, place: FleetNode | None, simulated: str = "all") -> Node:
    """A Slurm node for the views. Its GPUs are those of its Gres, numbered as Slurm numbers them (over all types of a node)."""
    gpus = {kind: count for kind, count in node.gres.items() if kind.startswith("gpu")}
    broken = node.state in ("DOWN", "UNKNOWN", "ERROR", "FUTURE") or {"NOT_RESPONDING", "INVALID_REG", "INVAL"} & set(node.flags)
    devices, first = {}, 0
    for kind, count in gpus.items():
        devices[kind] = tuple(str(number) for number in range(first, first + count))
        first += count
    return Node(
        name=node.name,
        zone=place.zone if place else "",
        rack=place.rack if place else "",
        pool=place.pool if place else "",
        product=", ".join(kind.partition(":")[2] for kind in gpus),
        capacity=dict(node.gres),
        allocatable={} if broken else dict(node.gres),
        devices=devices,
        ready=not broken,
        cordoned="DRAIN" in node.flags or node.state.startswith("DRAIN"),
        simulated=simulated,
    )


def units_from(job: model.Job, gres: Mapping[str, Mapping[str, int]]) -> Iterator[Unit]:
    """A job as the views know units of work; the waiting tasks of an array as one unit each. `gres` is what each node has."""
    shares = tuple(_share(held, gres.get(held.node, {})) for held in job.held) or tuple(Share(node) for node in job.nodes)
    running = job.state in ("RUNNING", "SUSPENDED", "COMPLETING")
    common = {
        "kind": KIND,
        "namespace": job.partition,
        "group": job.account,
        "phase": job.state.capitalize(),
        "wanted": wanted(job),
        "reason": job.reason,
        "submitted": job.submitted,
        "shares": shares if running else (),
        "bound": job.started if running else None,
        "started": job.started if running else None,
        "ended": job.ended if job.ended_for_good else None,
        "outcome": job.state if job.ended_for_good else "",
        "restarts": job.restarts,
        "priority": job.qos,
    }
    if job.array_tasks:
        for task in tasks(job.array_tasks):
            yield Unit(id=f"{job.array_id}_{task}", name=f"{job.name} {job.array_id}_{task}", **common)
    else:
        yield Unit(id=job.label, name=f"{job.name} {job.label}", **common)


def wanted(job: model.Job) -> dict[str, int]:
    """Devices by GRES in Slurm's words, e.g. {"gpu:h100": 2}; untyped ones as "gpu"."""
    asked = {name.removeprefix("gres/"): count for name, count in job.tres.items() if name.startswith("gres/")}
    typed = {name.partition(":")[0] for name in asked if ":" in name}
    return {name: count for name, count in asked.items() if name not in typed}


def tasks(text: str) -> list[int]:
    """Task numbers in Slurm's words "0,2-5,10-20:5%4". Slurm shortens long lists by "...": what is not written is left out."""
    found: list[int] = []
    for low, high, step in re.findall(r"(\d+)(?:-(\d+)(?::(\d+))?)?(?=[,%.]|$)", text.partition("%")[0]):
        found.extend(range(int(low), int(high or low) + 1, int(step or 1)))
    return found


def _share(held: model.Held, offered: Mapping[str, int]) -> Share:
    kind = f"{held.name}:{held.type}" if held.type else next((key for key in offered if key.partition(":")[0] == held.name), held.name)
    # Shards say which GPU they are on, not which part of it.
    return Share(held.node, kind, held.count, tuple(map(str, held.indices)) if held.name == "gpu" else ())
