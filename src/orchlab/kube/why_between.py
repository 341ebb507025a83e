"""What pods have to do with each other on nodes: topology spread and required pod (anti-)affinity, by the scheduler's rules.

Sources: Kubernetes' documentation of topology spread constraints and of inter-pod affinity; kube-scheduler's plugins PodTopologySpread and
InterPodAffinity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from orchlab.kube import why_match as match
from orchlab.kube.why_facts import Facts

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
# From a node: None if it passes, else the kind of what it fails and what is wrong.
Test = Callable[[dict], tuple[str, str] | None]


def spread(facts: Facts, pod: dict) -> Test:
    """Topology spread constraints with whenUnsatisfiable DoNotSchedule."""
    constraints = [one for one in pod["spec"].get("topologySpreadConstraints") or [] if one.get("whenUnsatisfiable") == "DoNotSchedule"]
    if not constraints:
        return lambda node: None
    keys = [one["topologyKey"] for one in constraints]
    namespace, mine = pod["metadata"].get("namespace", ""), match.labels(pod)
    counted = []
    for one in constraints:
        selector = _with_keys(one, mine)
        domains: Counter[str] = Counter()
        for node in facts["nodes"]:
            found = match.labels(node)
            if any(key not in found for key in keys):
                continue
            if one.get("nodeAffinityPolicy", "Honor") == "Honor" and not match.node_selected(pod, node):
                continue
            if one.get("nodeTaintsPolicy", "Ignore") == "Honor" and (match.untolerated(pod, node) or match.cordoned(pod, node)):
                continue
            domains[found[one["topologyKey"]]] += sum(
                other["metadata"].get("namespace", "") == namespace and not other["metadata"].get("deletionTimestamp")
                and match.selects(selector, match.labels(other)) for other in facts.on.get(node["metadata"]["name"], ()))
        least = 0 if len(domains) < (one.get("minDomains") or 1) else min(domains.values())
        counted.append((one, domains, least, match.selects(selector, mine)))

    def test(node: dict) -> tuple[str, str] | None:
        found = match.labels(node)
        for one, domains, least, itself in counted:
            key = one["topologyKey"]
            if key not in found:
                return "spread-label", f"has no label {key}"
            there = domains.get(found[key], 0)
            if there + itself - least > one["maxSkew"]:
                few = f" (fewer than minDomains {one['minDomains']} domains)" if least == 0 and len(domains) < (one.get("minDomains") or 1) else ""
                return "spread", f"{key} {found[key]} has {there} such pods, the least is {least}{few}, maxSkew {one['maxSkew']}"
        return None

    return test


def neighbours(facts: Facts, pod: dict) -> Test:
    """Required pod affinity and anti-affinity, and the anti-affinity of the pods that are there."""
    wanted, unwanted = _terms(pod, "podAffinity"), _terms(pod, "podAntiAffinity")
    nodes = {node["metadata"]["name"]: match.labels(node) for node in facts["nodes"]}
    near: Counter[tuple[str, str]] = Counter()
    far: Counter[tuple[str, str]] = Counter()
    theirs: dict[tuple[str, str], str] = {}
    for other in facts.active:
        where = nodes.get(other["spec"]["nodeName"])
        if where is None:
            continue
        if wanted and all(_about(facts, term, pod, other) for term in wanted):
            near.update((term["topologyKey"], where[term["topologyKey"]]) for term in wanted if term["topologyKey"] in where)
        far.update((term["topologyKey"], where[term["topologyKey"]]) for term in unwanted
                   if term["topologyKey"] in where and _about(facts, term, pod, other))
        for term in _terms(other, "podAntiAffinity"):
            if term["topologyKey"] in where and _about(facts, term, other, pod):
                theirs[term["topologyKey"], where[term["topologyKey"]]] = other["metadata"]["name"]
    # The first pod of a group that wants to be near its own kind may start alone.
    first = bool(wanted) and not near and all(_about(facts, term, pod, pod) for term in wanted)
    if not (wanted or far or theirs):
        return lambda node: None

    def test(node: dict) -> tuple[str, str] | None:
        found = match.labels(node)
        for term in wanted:
            key = term["topologyKey"]
            if key not in found:
                return "pod-affinity", f"has no label {key}"
            if not near[key, found[key]] and not first:
                return "pod-affinity", f"no pod that it wants to be near in the same {key}"
        for term in unwanted:
            key = term["topologyKey"]
            if key in found and far[key, found[key]]:
                return "pod-anti-affinity", f"pods that it wants to be apart from in the same {key}"
        for (key, value), name in theirs.items():
            if found.get(key) == value:
                return "existing-anti-affinity", f"pod {name} in the same {key} wants to be apart from it"
        return None

    return test


def _terms(pod: dict, kind: str) -> list[dict]:
    affinity = pod["spec"].get("affinity")
    return ((affinity.get(kind) or {}).get(REQUIRED) or []) if affinity else []


def _about(facts: Facts, term: dict, owner: dict, other: dict) -> bool:
    """Whether a term of `owner` is about the pod `other`."""
    namespace, names, selector = other["metadata"].get("namespace", ""), term.get("namespaces") or [], term.get("namespaceSelector")
    if not names and selector is None:
        meant = namespace == owner["metadata"].get("namespace", "")
    else:
        meant = namespace in names
        if not meant and selector is not None:
            meant = not selector or match.selects(selector, match.labels(facts.find("namespaces", namespace) or {"metadata": {}}))
    return meant and match.selects(_with_keys(term, match.labels(owner)), match.labels(other))


def _with_keys(part: dict, mine: dict[str, str]) -> dict | None:
    """The label selector with matchLabelKeys (and mismatchLabelKeys) put in, as newer API servers do themselves."""
    selector = part.get("labelSelector")
    same = [{"key": key, "operator": "In", "values": [mine[key]]} for key in part.get("matchLabelKeys") or [] if key in mine]
    other = [{"key": key, "operator": "NotIn", "values": [mine[key]]} for key in part.get("mismatchLabelKeys") or [] if key in mine]
    if selector is None or not (same or other):
        return selector
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or []), *same, *other]}
