"""Node by node, why a pod could not start there: computed by the rules of kube-scheduler's default filters, in their order.

The scheduler's sentence counts a node under the first filter that it fails, and under each resource that it is short of. The table here
keeps all filters that a node fails, so that one can see what else is in the way; `Table.counts` counts as the scheduler does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from orchlab.kube import why_match as match
from orchlab.kube import why_said as said
from orchlab.kube.why_between import neighbours, spread
from orchlab.kube.why_facts import Facts, controller

COMPUTED = "computed here by the scheduler's rules"
WORDS = {
    "unschedulable": "cordoned", "named": "not the node that its affinity names", "taint": "untolerated taint",
    "affinity": "node selector or affinity", "ports": "host port in use", "volume-affinity": "volume is elsewhere",
    "volume-bind": "no volume to bind", "volume-zone": "volume is in another zone", "spread": "topology spread",
    "spread-label": "topology spread: label missing", "pod-affinity": "pod affinity", "pod-anti-affinity": "pod anti-affinity",
    "existing-anti-affinity": "anti-affinity of pods that are there",
}
ZONES = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone",
         "failure-domain.beta.kubernetes.io/region")


@dataclass(frozen=True)
class Failure:
    """One filter that a node fails. `kind` as in why_said; for a resource (thousandths): `asked`, what the node has `allocatable`, what
    is `free`, its `capacity`, what its DaemonSets take (`daemons`), and whether a device plugin once registered it and now registers nothing
    (`gone`)."""

    kind: str
    detail: str = ""
    asked: int = 0
    allocatable: int = 0
    free: int = 0
    capacity: int = 0
    daemons: int = 0
    gone: bool = False

    @cached_property
    def resource(self) -> str:
        return self.kind.removeprefix("resource ") if self.kind.startswith("resource ") else ""

    @cached_property
    def stage(self) -> str:
        """The filter: all resources are one."""
        return "resource" if self.resource else self.kind

    def __str__(self) -> str:
        if not self.resource:
            return WORDS.get(self.kind, self.kind) + (f" ({self.detail})" if self.detail else "")
        if self.resource == "pods":
            return f"has as many pods as it takes ({self.allocatable // 1000})"
        if not self.allocatable:
            return f"has no {self.resource}" + (f" (capacity {match.shown(self.resource, self.capacity)}, allocatable 0)"
                                                if self.capacity or self.gone else "")
        short = match.shown(self.resource, self.asked - self.free)
        return f"short by {short} {self.resource} ({match.shown(self.resource, max(0, self.free))} of " \
               f"{match.shown(self.resource, self.allocatable)} free)"


@dataclass(frozen=True)
class Row:
    """A node and the filters that it fails, in the scheduler's order; none: the pod fits there."""

    node: dict
    failures: tuple[Failure, ...]

    @cached_property
    def name(self) -> str:
        return self.node["metadata"]["name"]

    @cached_property
    def counted(self) -> tuple[Failure, ...]:
        """Those under which the scheduler counts the node."""
        return tuple(one for one in self.failures if one.stage == self.failures[0].stage)


@dataclass(frozen=True)
class Table:
    rows: tuple[Row, ...]

    @cached_property
    def counts(self) -> Counter[str]:
        """Nodes by kind, as the scheduler counts them; those where it fits are not in it."""
        return Counter(one.kind for row in self.rows for one in row.counted)

    @property
    def fits(self) -> list[str]:
        return [row.name for row in self.rows if not row.failures]

    def groups(self) -> list[tuple[list[str], str]]:
        """Nodes that fail alike, by what they fail first: those with the most nodes first; [] at the end for nothing."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            found.setdefault("; ".join(map(str, row.counted)) or "fits", []).append(row.name)
        return sorted(((names, words) for words, names in found.items()), key=lambda one: (one[1] != "fits", -len(one[0]), one[1]))

    def lines(self, most: int = 8) -> list[str]:
        """For people: one line for nodes that fail alike."""
        groups = self.groups()
        lines = [f"{len(names)} node(s): {words}: {', '.join(names[:4])}{' …' if len(names) > 4 else ''}" for names, words in groups[:most]]
        rest = groups[most:]
        return lines + ([f"{sum(len(names) for names, _ in rest)} more nodes in {len(rest)} more groups"] if rest else [])


def table(facts: Facts, pod: dict) -> Table:
    """The table for one pod that has no node."""
    tests = _Tests(facts, pod)
    return Table(tuple(Row(node, tuple(tests.failures(node))) for node in facts["nodes"]))


class _Tests:
    """The filters for one pod; what does not depend on the node is computed once."""

    def __init__(self, facts: Facts, pod: dict) -> None:
        self._facts, self._pod = facts, pod
        self._named = match.named_nodes(pod)
        self._asks = {name: value for name, value in match.requests(pod).items() if value}
        self._ports = set(_ports(pod))
        self._spread, self._neighbours = spread(facts, pod), neighbours(facts, pod)
        self._volumes = volumes(facts, pod)
        self._kept: dict[str, list[dict]] = {}
        for other in facts.nominated:
            if other["metadata"]["uid"] != pod["metadata"].get("uid") and match.priority(other) >= match.priority(pod):
                self._kept.setdefault(other["status"]["nominatedNodeName"], []).append(other)
        self._taints: dict[tuple, str] = {}

    def failures(self, node: dict) -> Iterator[Failure]:
        pod, name = self._pod, node["metadata"]["name"]
        if self._named is not None and name not in self._named:
            yield Failure("named")
            return
        if match.cordoned(pod, node):
            yield Failure("unschedulable")
        if taints := self._untolerated(node):
            yield Failure("taint", taints)
        if not match.node_selected(pod, node):
            yield Failure("affinity")
        if self._ports and (taken := {mine[1:] for other in self._facts.on.get(name, ()) for theirs in _ports(other) for mine in self._ports
                                      if mine[1:] == theirs[1:] and ("0.0.0.0" in (mine[0], theirs[0]) or mine[0] == theirs[0])}):
            yield Failure("ports", ", ".join(sorted(f"{port}/{protocol}" for protocol, port in taken)))
        yield from self._resources(node, name)
        yield from self._volume(node)
        for found in (self._spread(node), self._neighbours(node)):
            if found:
                yield Failure(*found)

    def _untolerated(self, node: dict) -> str:
        taints = (node.get("spec") or {}).get("taints")
        if not taints:
            return ""
        key = tuple((one.get("key"), one.get("value"), one.get("effect")) for one in taints)
        if key not in self._taints:
            # A cordon is a filter of its own, and comes first.
            self._taints[key] = ", ".join(map(match.taint_text, match.untolerated(self._pod, node)))
        return self._taints[key]

    def _resources(self, node: dict, name: str) -> Iterator[Failure]:
        facts, kept = self._facts, self._kept.get(name, [])
        status = node.get("status") or {}
        has, capacity = status.get("allocatable") or {}, status.get("capacity") or {}
        used, there = facts.used.get(name, {}), facts.on.get(name, ())
        room = match.amount(has.get("pods", 0))
        if (len(there) + len(kept) + 1) * 1000 > room:
            yield Failure("resource pods", asked=1000, allocatable=room, free=room - 1000 * (len(there) + len(kept)))
        more = [match.requests(other) for other in kept]
        for resource, asked in self._asks.items():
            allocatable = match.amount(has.get(resource, 0))
            free = allocatable - used.get(resource, 0) - sum(other.get(resource, 0) for other in more)
            if asked > free:
                daemons = sum(facts.asked[other["metadata"]["uid"]].get(resource, 0) for other in there
                              if (controller(other) or {}).get("kind") == "DaemonSet")
                prefix = resource.partition("/")[0] + "/"
                # A kubelet keeps the name of a resource whose plugin has gone; where the plugin advertises another name, it has not.
                gone = "/" in resource and resource in capacity and not any(
                    name.startswith(prefix) and match.amount(value) for name, value in has.items())
                yield Failure(f"resource {resource}", "", asked, allocatable, free, match.amount(capacity.get(resource, 0)), daemons, gone)

    def _volume(self, node: dict) -> Iterator[Failure]:
        bound, unbound = self._volumes
        for volume in bound:
            required = ((volume["spec"].get("nodeAffinity") or {}).get("required"))
            if required and not match.node_terms(required, node):
                yield Failure("volume-affinity", volume["metadata"]["name"])
                break
        for claim, candidates in unbound:
            if not any(_reaches(volume, node) for volume in candidates):
                yield Failure("volume-bind", claim["metadata"]["name"])
                break
        found = match.labels(node)
        if any(key in found for key in ZONES):
            for volume in bound:
                for key in ZONES:
                    value = match.labels(volume).get(key)
                    if value is not None and found.get(key) not in value.split("__"):
                        yield Failure("volume-zone", f"{volume['metadata']['name']} is in {value}")
                        return


def claims(facts: Facts, pod: dict) -> list[tuple[str, dict | None]]:
    """The pod's PersistentVolumeClaims by name, None for one that is not there."""
    names = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"].get("volumes") or [] if "persistentVolumeClaim" in volume]
    names += [f"{pod['metadata']['name']}-{volume['name']}" for volume in pod["spec"].get("volumes") or [] if "ephemeral" in volume]
    return [(name, facts.find("persistentvolumeclaims", name, pod["metadata"].get("namespace", ""))) for name in names]


def volumes(facts: Facts, pod: dict) -> tuple[list[dict], list[tuple[dict, list[dict]]]]:
    """(volumes bound to its claims, [(claim that waits for a pod and that nobody provisions for, volumes that it could have)])."""
    bound, unbound = [], []
    for _, claim in claims(facts, pod):
        if claim is None:
            continue
        if name := claim["spec"].get("volumeName"):
            if volume := facts.find("persistentvolumes", name):
                bound.append(volume)
        elif (made := facts.find("storageclasses", claim["spec"].get("storageClassName") or "")) and nobody_provisions(made):
            unbound.append((claim, [volume for volume in facts["persistentvolumes"] if _suits(volume, claim)]))
    return bound, unbound


def nobody_provisions(storage_class: dict) -> bool:
    return storage_class.get("provisioner") == "kubernetes.io/no-provisioner"


def _suits(volume: dict, claim: dict) -> bool:
    spec, wanted = volume["spec"], claim["spec"]
    return ((volume.get("status") or {}).get("phase") in (None, "Available") and spec.get("storageClassName") == wanted.get("storageClassName")
            and set(wanted.get("accessModes") or []) <= set(spec.get("accessModes") or [])
            and match.selects(wanted.get("selector") or {}, match.labels(volume))
            and match.amount((spec.get("capacity") or {}).get("storage", 0))
            >= match.amount(((wanted.get("resources") or {}).get("requests") or {}).get("storage", 0)))


def _reaches(volume: dict, node: dict) -> bool:
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    return required is None or match.node_terms(required, node)


def _ports(pod: dict) -> Iterator[tuple[str, str, int]]:
    """Host ports as (address, protocol, port); 0.0.0.0 is all addresses."""
    spec = pod["spec"]
    sidecars = (one for one in spec.get("initContainers") or [] if one.get("restartPolicy") == "Always")
    for container in (*(spec.get("containers") or []), *sidecars):
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                yield port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP", port["hostPort"]


def agrees(computed: Table, words: said.Said) -> bool:
    """Whether the table's counts are those of the scheduler's sentence, and so add up to all of the nodes that it speaks of."""
    return not (words.unread or words.whole) and words.nodes == len(computed.rows) and +computed.counts == +words.counts
