"""Keeps a snapshot and a timeline of a cluster up to date, by watches of its nodes, pods and events."""

from __future__ import annotations

import time
from collections.abc import Callable

from orchlab.errors import EnvironmentBroken, TimeLimitReached
from orchlab.kube.client import Client
from orchlab.kube.following import Following
from orchlab.kube.objects import event_from, node_from, unit_from
from orchlab.snapshot import ClusterSnapshot, Event, Node, Unit
from orchlab.timeline import Timeline


class Feed(Following):
    """A live ClusterSnapshot and Timeline of one cluster.

    `namespace` limits pods and events (None: all); `events` is how many events are kept. The span in which nothing was heard is marked in
    the timeline as a gap. For `rate` and `watch_seconds` see Following.
    """

    def __init__(self, client: Client, namespace: str | None = None, rate: float = 5.0, events: int = 500,
                 watch_seconds: float = 30) -> None:
        super().__init__(client, rate, watch_seconds)
        scope = f"/api/v1/namespaces/{namespace}" if namespace else "/api/v1"
        self.namespace = namespace
        self.timeline = Timeline()
        self._keep_events = events
        self._nodes: dict[str, Node] = {}
        self._units: dict[str, Unit] = {}
        self._versions: dict[str, int] = {}
        self._events: dict[str, Event] = {}
        self.follow("Node", "/api/v1/nodes", self._list_nodes, self._node)
        self.follow("Pod", f"{scope}/pods", self._list_pods, self._pod)
        self.follow("Event", f"{scope}/events", self._list_events, self._event)

    def snapshot(self) -> ClusterSnapshot:
        with self._lock:
            nodes, units, events = list(self._nodes.values()), list(self._units.values()), list(self._events.values())
        return ClusterSnapshot.of(nodes, units, events, taken=time.time() if self.listed else 0.0, trouble=self.trouble)

    def wait(self, condition: Callable[[ClusterSnapshot], object], seconds: float, what: str = "the cluster") -> ClusterSnapshot:
        """The first snapshot for which `condition` is true. Raises TimeLimitReached, EnvironmentBroken if the feed is stopped."""
        deadline = time.monotonic() + seconds
        while True:
            with self._news:
                seen = self._count
            snapshot = self.snapshot()
            if condition(snapshot):
                return snapshot
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeLimitReached(f"{what} did not come to that within {seconds:g} s" + (f": {self.trouble}" if self.trouble else ""))
            with self._news:
                self._news.wait_for(lambda: self._count != seen or self._stopping.is_set(), timeout=min(left, 1.0))
            if self._stopping.is_set():
                raise EnvironmentBroken("the feed was stopped while something waited for it")

    # -- what the watches bring ----------------------------------------------------------------------------------------------

    def _missed(self, since: float, until: float, why: str, kind: str) -> None:
        self.timeline.mark_gap(since, until, why, kind)

    def _list_nodes(self, items: list[dict], seen: float) -> None:
        nodes = {item["metadata"]["name"]: node_from(item) for item in items}
        with self._lock:
            self._nodes = nodes

    def _list_pods(self, items: list[dict], seen: float) -> None:
        units = [(unit_from(item), _version(item)) for item in items]
        with self._lock:
            self._units = {unit.id: unit for unit, _ in units}
            self._versions = {unit.id: version for unit, version in units}
        self.timeline.relisted(units, seen)

    def _list_events(self, items: list[dict], seen: float) -> None:
        events = {item["metadata"]["uid"]: event_from(item) for item in items}
        with self._lock:
            self._events = events
            self._trim_events()

    def _node(self, kind: str, item: dict, seen: float) -> None:
        with self._lock:
            if kind == "DELETED":
                self._nodes.pop(item["metadata"]["name"], None)
            else:
                self._nodes[item["metadata"]["name"]] = node_from(item)

    def _pod(self, kind: str, item: dict, seen: float) -> None:
        unit, version = unit_from(item), _version(item)
        with self._lock:
            if version < self._versions.get(unit.id, 0):
                return
            if kind == "DELETED":
                self._units.pop(unit.id, None)
                self._versions.pop(unit.id, None)
            else:
                self._units[unit.id] = unit
                self._versions[unit.id] = version
        self.timeline.apply(unit, seen, version)
        if kind == "DELETED":
            self.timeline.gone(unit.id, seen)

    def _event(self, kind: str, item: dict, seen: float) -> None:
        # The API server forgets events after an hour; those that were seen stay in the feed until newer ones push them out.
        if kind != "DELETED":
            with self._lock:
                self._events[item["metadata"]["uid"]] = event_from(item)
                self._trim_events()

    def _trim_events(self) -> None:
        if len(self._events) > self._keep_events * 1.2:
            latest = sorted(self._events.values(), key=lambda e: (e.at, e.id))[-self._keep_events:]
            self._events = {event.id: event for event in latest}


def _version(item: dict) -> int:
    """resourceVersion as a number: since Kubernetes 1.35 the API promises that they compare so; 0 (by arrival) if it is none."""
    version = item["metadata"].get("resourceVersion", "")
    return int(version) if version.isdigit() else 0
