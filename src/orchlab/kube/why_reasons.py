"""From a table of nodes to what is decisive: one clause for a cause, with its evidence and remedy. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from orchlab.kube import why_holders as holders
from orchlab.kube import why_match as match
from orchlab.kube.why_facts import Facts
from orchlab.kube.why_nodes import Failure, Row, Table

# How far away a node is on which that filter fails: the nearest nodes tell the cause. What passes by itself is nearest, then what one
# setting mends; a node without the resource is no candidate while there is any other.
COST = {"in use": 1, "unschedulable": 2, "not ready": 2, "plugin": 2, "ports": 2, "taint": 3, "spread": 3, "pod-anti-affinity": 3,
        "existing-anti-affinity": 3, "pod-affinity": 4, "spread-label": 4, "volume-bind": 4, "volume-affinity": 5, "volume-zone": 5,
        "daemons": 7, "oversize": 8, "affinity": 9, "named": 9, "absent": 30}
CONDITIONS = ("not-ready", "unreachable", "memory-pressure", "disk-pressure", "pid-pressure", "network-unavailable")
_CONDITION = re.compile(rf"node\.kubernetes\.io/({'|'.join(CONDITIONS)})")
PREFIX = "nvidia.com/"


@dataclass(frozen=True)
class Clause:
    """A part of a cause, without its full stop."""

    text: str
    remedy: str
    evidence: list[str] = field(default_factory=list)


def decisive(table: Table) -> tuple[list[Row], list[str]]:
    """The nodes that are nearest to taking the pod, and the classes of what is in its way there, the weightiest first. ([], []) without
    nodes or where it fits."""
    failing = [row for row in table.rows if row.failures]
    # What the pod itself selects is meant so, unless it selects nothing.
    meant = [row for row in failing if not any(one.kind in ("affinity", "named") for one in row.failures)] or failing
    if not meant or len(failing) < len(table.rows):
        return [], []
    classed = {row.name: {class_of(one) for one in row.failures} for row in meant}
    costs = {name: sum(COST.get(one, 6) for one in classes) for name, classes in classed.items()}
    least = min(costs.values())
    near = [row for row in meant if costs[row.name] == least]
    common = Counter(frozenset(classed[row.name]) for row in near).most_common(1)[0][0]
    return [row for row in near if classed[row.name] == common], sorted(common, key=lambda one: (-COST.get(one, 6), one))


def class_of(failure: Failure) -> str:
    if failure.kind == "taint" and _CONDITION.search(failure.detail):
        return "not ready"
    if failure.kind == "taint" and failure.detail.startswith("node.kubernetes.io/unschedulable"):
        # A cordon, once more: kubectl uncordon takes both away.
        return "unschedulable"
    if not failure.resource:
        return failure.kind
    if not failure.allocatable:
        return "plugin" if failure.capacity or failure.gone else "absent"
    if failure.asked > failure.allocatable:
        return "oversize"
    return "daemons" if failure.asked > failure.allocatable - failure.daemons else "in use"


def clause(facts: Facts, pod: dict, table: Table, rows: list[Row], which: str) -> Clause:
    """`which`: one of the classes that `decisive` gives."""
    mine = [next(one for one in row.failures if class_of(one) == which) for row in rows]
    names = _some(row.name for row in rows)
    if which == "in use":
        return _in_use(facts, pod, rows)
    if which in ("oversize", "daemons", "absent", "plugin"):
        return {"oversize": _oversize, "daemons": _daemons, "absent": _absent, "plugin": _plugin}[which](facts, pod, table, rows, mine)
    if which in ("affinity", "named"):
        return _affinity(facts, pod)
    details = _some(dict.fromkeys(one.detail for one in mine if one.detail))
    if which == "taint":
        keys = dict.fromkeys(taint["key"] for row in rows for taint in match.untolerated(pod, row.node))
        adds = "; ".join(f'{{key: {key}, operator: Exists}}' for key in keys)
        return Clause(f"it does not tolerate the taint {details} of the nodes that it could use otherwise ({names})",
                      f"add to spec.tolerations: {adds}")
    if which == "not ready":
        return Clause(f"the nodes that it could use are not ready ({names}: {details})",
                      "see why their kubelets do not report: kubectl describe node; orchlab fault list shows what was broken on purpose")
    text, remedy = PLAIN.get(which, (which, "kubectl describe pod"))
    return Clause(f"{text} ({names}{': ' + details if details else ''})", remedy)


# Class: (clause, remedy). The nodes follow in brackets.
PLAIN = {
    "unschedulable": ("the nodes that it could use are cordoned", "kubectl uncordon NODE, or wait until whoever cordoned it is done"),
    "ports": ("the host port that it asks for is in use on the nodes that it could use", "leave hostPort out and use a Service, or wait"),
    "spread": ("its topology spread constraint (DoNotSchedule) allows no more pods in the domains with room",
               "raise maxSkew, use whenUnsatisfiable: ScheduleAnyway, or make room in the other domains"),
    "spread-label": ("its topology spread constraint is over a label that the nodes do not have",
                     "kubectl get nodes --show-labels; use a topologyKey that the nodes have"),
    "pod-affinity": ("its required pod affinity finds no such pod there", "start the pod that it wants to be near first; compare its labels"
                     " and namespace with labelSelector"),
    "pod-anti-affinity": ("its required pod anti-affinity keeps it apart from pods that are there",
                          "wait, add nodes or domains, or make it preferred instead of required"),
    "existing-anti-affinity": ("pods that are there have a required anti-affinity against it", "wait until they are gone, or change its labels"),
    "volume-affinity": ("its volume can be reached from other nodes only", "let the pod go where its volume is: drop the selector, or use another volume"),
    "volume-zone": ("its volume is in another zone", "let the pod go where its volume is: drop the selector, or use another volume"),
    "volume-bind": ("no free volume suits its claim, and its storage class makes none (kubernetes.io/no-provisioner)",
                    "kubectl get pv; make a PersistentVolume of that class, size and access mode"),
}


def _in_use(facts: Facts, pod: dict, rows: list[Row]) -> Clause:
    short = [one for row in rows for one in row.failures if class_of(one) == "in use"]
    resources = sorted(dict.fromkeys(one.resource for one in short), key=lambda name: not name.startswith(PREFIX))
    resource = resources[0]
    of_it = [one for one in short if one.resource == resource]
    asked, most = of_it[0].asked, max(max(0, one.free) for one in of_it)
    total = sum(max(0, one.free) for one in of_it)
    where = _some(row.name for row in rows)
    if resource == "pods":
        return Clause(f"the nodes that it could use run as many pods as they may ({where})", "wait, or raise the kubelets' maxPods")
    words = f"{_who_asks(pod, of_it[0])} for {match.shown(resource, asked)}, at most {match.shown(resource, most)} {'is' if most == 1000 else 'are'} free on one node"
    if total >= asked > most:
        text = f"enough {resource} is free in all ({match.shown(resource, total)}), but on no single node: {words} ({where})"
    else:
        text = f"all {resource} that it could use is held by others: {words} ({where})"
    if len(resources) > 1:
        text += f"; the same for {', '.join(resources[1:])}"
    held = holders.of(facts, [row.name for row in rows], resource)
    remedy = "wait until they end" if not held or held[0].ends else f"{held[0].name} does not end by itself: kubectl scale or delete it"
    return Clause(text, f"{remedy}; or ask for less; or use a PriorityClass that preempts", [one.line(resource) for one in held[:6]])


def _oversize(facts: Facts, pod: dict, table: Table, rows: list[Row], mine: list[Failure]) -> Clause:
    over = [failure for row in rows for failure in row.failures if class_of(failure) == "oversize"]
    one = max(over, key=lambda failure: (failure.resource.startswith(PREFIX), failure.allocatable))
    others = sorted({failure.resource for failure in over} - {one.resource})
    evidence = [f"also more than a node has: {', '.join(others)}"] if others else []
    selected = " that it selects" if _selects(pod) else ""
    return Clause(f"{_who_asks(pod, one)} for {match.shown(one.resource, one.asked)} {one.resource}, more than any node{selected} has:"
                  f" {match.shown(one.resource, one.allocatable)} at most",
                  "waiting does not help: ask for less per pod, or split the work over several pods", evidence)


def _daemons(facts: Facts, pod: dict, table: Table, rows: list[Row], mine: list[Failure]) -> Clause:
    one = max(mine, key=lambda failure: failure.allocatable - failure.daemons)
    row = rows[mine.index(one)]
    return Clause(f"the DaemonSets' pods leave too little {one.resource} on any node that it could use: of"
                  f" {match.shown(one.resource, one.allocatable)} they take {match.shown(one.resource, one.daemons)}, it asks for"
                  f" {match.shown(one.resource, one.asked)}", "ask for less: what is allocatable less what every node's daemons take",
                  [held.line(one.resource) for held in holders.of(facts, [row.name], one.resource) if held.kind == "DaemonSet"][:6])


def _absent(facts: Facts, pod: dict, table: Table, rows: list[Row], mine: list[Failure]) -> Clause:
    resource = mine[0].resource
    other = Counter(name for row in rows for name, value in ((row.node.get("status") or {}).get("allocatable") or {}).items()
                    if name.startswith(PREFIX) and match.amount(value))
    everywhere = len(rows) == len(table.rows) or not any(match.amount(((row.node.get("status") or {}).get("allocatable") or {}).get(resource, 0))
                                                         for row in table.rows)
    if everywhere:
        other = Counter(name for row in table.rows for name, value in ((row.node.get("status") or {}).get("allocatable") or {}).items()
                        if name.startswith(PREFIX) and match.amount(value))
    who = "no node advertises" if everywhere else "none of the nodes that it selects advertises"
    text = f"{who} {resource}"
    remedy = "compare the name with kubectl get nodes -o yaml: status.allocatable"
    if other and resource.startswith(PREFIX):
        text += f"; they advertise {', '.join(f'{name} ({count} node(s))' for name, count in other.most_common(4))}"
        remedy = f"ask for one of those: {', '.join(name for name, _ in other.most_common(4))}"
        if "mig-" in resource or any("mig-" in name for name in other):
            remedy += "; or have the MIG strategy or layout changed: mixed advertises nvidia.com/mig-PROFILE, single and none nvidia.com/gpu"
        elif any(name.endswith(".shared") for name in (resource, *other)):
            remedy += "; time-slicing with renameByDefault appends .shared to the name"
    elif resource.startswith(PREFIX):
        remedy = "see whether the device plugin runs: kubectl -n gpu-operator get pods -o wide"
    return Clause(text, remedy)


def _plugin(facts: Facts, pod: dict, table: Table, rows: list[Row], mine: list[Failure]) -> Clause:
    where = _some(row.name for row in rows)
    return Clause(f"the device plugin is not ready on the nodes that it could use ({where}): capacity"
                  f" {match.shown(mine[0].resource, mine[0].capacity)} {mine[0].resource}, allocatable 0",
                  "mend what keeps the device plugin from running: kubectl -n gpu-operator get pods -o wide, then their logs",
                  holders.operands(facts, {row.name for row in rows})[:6])


def _affinity(facts: Facts, pod: dict) -> Clause:
    named = match.named_nodes(pod)
    if named is not None:
        return Clause(f"its affinity names nodes that there are not ({_some(named)})", "kubectl get nodes; DaemonSets' pods of a removed node go by themselves")
    lines, hint = [], ""
    for key, wanted in _selected_values(pod):
        there = Counter(match.labels(node)[key] for node in facts["nodes"] if key in match.labels(node))
        if not there.keys() & wanted:
            has = ", ".join(f"{value} ({count})" for value, count in there.most_common(6)) or "no value at all"
            lines.append(f"no node has {key}={' or '.join(sorted(wanted))}; nodes have {has}")
            hint = hint or _changed(key, wanted, there)
    what = f": {lines[0]}" if lines else ""
    return Clause(f"no node matches its node selector or required node affinity{what}",
                  hint or "compare it with kubectl get nodes --show-labels", lines[1:])


def _changed(key: str, wanted: set[str], there: Iterable[str]) -> str:
    if not key.startswith(PREFIX):
        return ""
    for value in there:
        for one in wanted:
            bases = {re.sub(r"-(SHARED|MIG-.*)$", "", text) for text in (value, one)}
            if len(bases) == 1 and value != one:
                return (f"GPU Feature Discovery writes {value} now: sharing appends -SHARED, MIG with strategy single -MIG-PROFILE; select"
                        f" {value}, or by a label that stays (nvidia.com/gpu.family, a pool of your own)")
    return ""


def _selected_values(pod: dict) -> list[tuple[str, set[str]]]:
    """(label, values that would do) of nodeSelector and of required affinity with one term."""
    found = [(key, {value}) for key, value in (pod["spec"].get("nodeSelector") or {}).items()]
    terms = (match.affinity(pod, "nodeAffinity").get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []
    for term in terms if len(terms) == 1 else []:
        found += [(one["key"], set(one.get("values") or [])) for one in term.get("matchExpressions") or [] if one["operator"] == "In"]
    return found


def _selects(pod: dict) -> bool:
    return bool(pod["spec"].get("nodeSelector") or match.affinity(pod, "nodeAffinity").get("requiredDuringSchedulingIgnoredDuringExecution"))


def _who_asks(pod: dict, failure: Failure) -> str:
    name = match.init_that_asks(pod, failure.resource)
    return f"its init container {name} asks" if name else "it asks"


def _some(names: Iterable[str], most: int = 4) -> str:
    found = list(names)
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")
