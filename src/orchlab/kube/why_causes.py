"""Why a pod has no node: from the scheduler's words, and the table of nodes where it agrees with them. Pure: Facts to Diagnosis.

Where the table's counts are not those of the scheduler's sentence, that is said; where the sentence does not name what the table finds, the
answer is "I don't know".
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from orchlab.diagnosis import Diagnosis, unknown
from orchlab.kube import why_match as match
from orchlab.kube import why_nodes as nodes
from orchlab.kube import why_reasons as reasons
from orchlab.kube import why_said as said
from orchlab.kube.objects import seconds
from orchlab.kube.why_facts import Facts, full_name, when

DEFAULT = "default-scheduler"
# A pod that no scheduler has looked at for so long (s) has been overlooked.
OVERLOOKED = 10


def waiting(facts: Facts, pod: dict, with_table: bool = True) -> Diagnosis:
    """Why a pod that has no node has none. Without a table (`with_table`, or nodes that cannot be read) the scheduler's words are all."""
    sentence = words_of(facts, pod)
    seen = [f"it asks for {asks(pod)}"] + ([f"{scheduler(pod)} says: {sentence}"] if sentence else [])
    for rule in (_gated, _nominated, _group, _claims, _devices, _silent):
        if (found := rule(facts, pod, sentence, seen)) is not None:
            return found
    words = said.read(sentence)
    if words is None:
        return unknown(seen, "kubectl describe pod")
    if words.whole and not words.counts:
        return unknown([*seen, f"it holds for all nodes at once: {words.whole}"], "kubectl describe pod")
    seen += _preemption(words)
    if not with_table or facts.missing.keys() & {"nodes", "pods"} or not facts["nodes"]:
        return _from_words(words, [*seen, *facts.missing.values()])
    return _from_table(facts, pod, words, seen)


def could_start(facts: Facts, pod: dict) -> Diagnosis | None:
    """For a pod that no scheduler has seen: why no node could take it now, or None if one could. All of it is computed."""
    table = nodes.table(facts, pod)
    if table.fits or not table.rows:
        return None
    return _diagnosis(facts, pod, table, [f"it asks for {asks(pod)}", f"{nodes.COMPUTED}; no scheduler was asked:", *table.lines()])


def asks(pod: dict) -> str:
    wanted = match.requests(pod)
    names = [name for name in sorted(wanted, key=lambda one: ("/" not in one, one)) if wanted[name]]
    inits = list(dict.fromkeys(filter(None, (match.init_that_asks(pod, name) for name in names))))
    why = f" (init container {', '.join(inits)}: what counts is the larger of the largest init container and the sum of the containers)" if inits else ""
    return (", ".join(f"{match.shown(name, wanted[name])} {name}" for name in names) or "nothing in particular") + why


def scheduler(pod: dict) -> str:
    return pod["spec"].get("schedulerName") or DEFAULT


def words_of(facts: Facts, pod: dict) -> str:
    """The scheduler's latest sentence about a pod: its condition PodScheduled, else its last FailedScheduling event."""
    for one in (pod.get("status") or {}).get("conditions") or []:
        if one["type"] == "PodScheduled" and one["status"] == "False" and one.get("message"):
            return one["message"]
    events = facts.events(pod, "FailedScheduling")
    return events[-1].get("message", "") if events else ""


# -- what is known without looking at nodes


def _gated(facts: Facts, pod: dict, sentence: str, seen: list[str]) -> Diagnosis | None:
    gates = [gate["name"] for gate in pod["spec"].get("schedulingGates") or []]
    if not gates:
        return None
    return Diagnosis(f"It has scheduling gates ({', '.join(gates)}): no scheduler looks at it before they are taken away.", seen,
                     "wait for the controller that set them; or take them out of spec.schedulingGates, for example with kubectl edit")


def _nominated(facts: Facts, pod: dict, sentence: str, seen: list[str]) -> Diagnosis | None:
    node = (pod.get("status") or {}).get("nominatedNodeName")
    if not node or not sentence:
        return None
    leaving = [other for other in facts.on.get(node, []) if other["metadata"].get("deletionTimestamp")]
    if not leaving and not ("preempting" in sentence or "terminating pod on the nominated node" in sentence):
        return None
    lines = [f"pod {full_name(one)} on {node} is terminating, priority {match.priority(one)}" for one in leaving[:5]]
    return Diagnosis(
        f"The scheduler keeps a place for it on {node} and preempts pods of lower priority there, which are still terminating.",
        [*seen, f"nominated node {node}, its priority is {match.priority(pod)}", *lines],
        "wait for their terminationGracePeriodSeconds; a finalizer on one of them can hold it up: orchlab why pod/NAME")


def _group(facts: Facts, pod: dict, sentence: str, seen: list[str]) -> Diagnosis | None:
    name, namespace = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName"), pod["metadata"].get("namespace", "")
    if not name:
        return None
    group = facts.find("podgroups", name, namespace)
    if group is None:
        if "podgroups" in facts.missing:
            return unknown([*seen, facts.missing["podgroups"]])
        return Diagnosis(f"It belongs to PodGroup {name}, which there is not in namespace {namespace}.", seen,
                         f"make the PodGroup, or take spec.schedulingGroup out of the pod; kubectl -n {namespace} get podgroups")
    least = ((group["spec"].get("schedulingPolicy") or {}).get("gang") or {}).get("minCount") or 0
    members = [one for one in facts["pods"] if one["metadata"].get("namespace") == namespace
               and (one["spec"].get("schedulingGroup") or {}).get("podGroupName") == name and not match.ended(one)]
    if len(members) < least:
        return Diagnosis(f"Its PodGroup {name} starts all or nothing from {least} pods on (gang.minCount), and has {len(members)}.",
                         seen, f"create the missing {least - len(members)} pod(s), or lower minCount")
    condition = next((one for one in (group.get("status") or {}).get("conditions") or []
                      if one["type"] == "PodGroupInitiallyScheduled" and one["status"] == "False"), None)
    if condition is None:
        return None
    others = dict.fromkeys(words for one in members if (words := words_of(facts, one)) and said.read(words))
    return Diagnosis(f"Its PodGroup {name} starts all or nothing, and not all of its {least} pods (gang.minCount) find a place at once.",
                     [*seen, f"PodGroup {name}, PodGroupInitiallyScheduled {condition.get('reason', '')}: {condition.get('message', '')}",
                      *(f"of a member: {words}" for words in list(others)[:2])],
                     "wait until enough is free at the same time, ask for less per pod, or lower minCount")


def _claims(facts: Facts, pod: dict, sentence: str, seen: list[str]) -> Diagnosis | None:
    """Claims for volumes: those that hold it up for all nodes at once, and those that wait for a provisioner after a node was chosen."""
    words = said.read(sentence)
    if words and not words.whole:
        return None
    for name, claim in nodes.claims(facts, pod):
        if "persistentvolumeclaims" in facts.missing:
            return unknown([*seen, facts.missing["persistentvolumeclaims"]])
        if claim is None:
            return Diagnosis(f"Its PersistentVolumeClaim {name} does not exist.", seen, "make it in the pod's namespace, or correct claimName")
        if claim["metadata"].get("deletionTimestamp"):
            return Diagnosis(f"Its PersistentVolumeClaim {name} is being deleted.", seen, "make another, or wait and make it again")
        if (claim.get("status") or {}).get("phase") == "Bound":
            continue
        wanted = claim["spec"].get("storageClassName") or ""
        told = [f"claim {name}: {event['reason']}: {event['message']}" for event in facts.events(claim)[-2:]]
        made = facts.find("storageclasses", wanted)
        if not wanted:
            return Diagnosis(f"Its PersistentVolumeClaim {name} is bound to no volume, and names no storage class that would make one.",
                             [*seen, *told], "kubectl get pv,storageclass: name a class, or make a PersistentVolume that suits it")
        if made is None and "storageclasses" not in facts.missing:
            return Diagnosis(f"Its PersistentVolumeClaim {name} names the storage class {wanted}, which there is not.", [*seen, *told],
                             "kubectl get storageclass; make the claim anew with one of those")
        if words is None and (made or {}).get("volumeBindingMode") == "WaitForFirstConsumer" and not (pod.get("status") or {}).get("nominatedNodeName"):
            continue
        provisioner = (made or {}).get("provisioner", "its provisioner")
        return Diagnosis(f"Its PersistentVolumeClaim {name} is not bound: {provisioner} has made no volume yet.",
                         [*seen, f"storage class {wanted}, {(made or {}).get('volumeBindingMode', 'binding mode unknown')}", *told],
                         f"kubectl describe pvc {name}; see whether the provisioner {provisioner} runs")
    return None


def _devices(facts: Facts, pod: dict, sentence: str, seen: list[str]) -> Diagnosis | None:
    """ResourceClaims that are not there keep a pod out of the scheduler's queue, without a word."""
    if sentence:
        return None
    statuses = {one["name"]: one.get("resourceClaimName") for one in (pod.get("status") or {}).get("resourceClaimStatuses") or []}
    for one in pod["spec"].get("resourceClaims") or []:
        name = one.get("resourceClaimName") or statuses.get(one["name"])
        told = [event["message"] for event in facts.events(pod, "FailedResourceClaimCreation")[-1:]]
        if name is None and told:
            return Diagnosis(f"Its ResourceClaim {one['name']} cannot be made from template {one.get('resourceClaimTemplateName')}.",
                             [*seen, *told], "kubectl get resourceclaimtemplates; make it, or correct resourceClaimTemplateName")
        if name and "resourceclaims" not in facts.missing and facts.find("resourceclaims", name, pod["metadata"].get("namespace", "")) is None:
            return Diagnosis(f"Its ResourceClaim {name} does not exist.", seen, "make it in the pod's namespace, or correct resourceClaimName")
    return None


def _silent(facts: Facts, pod: dict, sentence: str, seen: list[str]) -> Diagnosis | None:
    if sentence:
        return None
    name, created = scheduler(pod), pod["metadata"].get("creationTimestamp")
    age = time.time() - (seconds(created) or time.time())
    spoke = any(name in (event.get("reportingComponent"), (event.get("source") or {}).get("component")) for event in facts["events"])
    spoke = spoke or any(scheduler(one) == name and one["spec"].get("nodeName") for one in facts["pods"] if one is not pod)
    seen = [*seen, f"created at {created}; no scheduler has said anything about it: no condition PodScheduled, no event"]
    if name != DEFAULT and not spoke:
        return Diagnosis(f"It asks for the scheduler {name}, and none of that name has said a word: probably there is none.", seen,
                         f"make the pod anew without schedulerName (that is {DEFAULT}), or start {name}")
    if age < OVERLOOKED:
        return unknown([*seen, f"it is {age:.0f} s old"], "ask again in a few seconds")
    who = "kube-scheduler" if name == DEFAULT else name
    return Diagnosis(f"No scheduler has looked at it for {age:.0f} s: {who} does not run, or cannot reach the API server.", seen,
                     "orchlab status; on a cluster of yours: kubectl -n kube-system get pods,leases")


# -- what needs the nodes


def _from_table(facts: Facts, pod: dict, words: said.Said, seen: list[str]) -> Diagnosis:
    table = nodes.table(facts, pod)
    agreed = nodes.agrees(table, words)
    lines = [f"node by node, {nodes.COMPUTED}{'; the counts add up to its sentence' if agreed else ' now'}:", *table.lines()]
    if not agreed:
        # It looks at a pod again only when something has changed that may help it.
        lines.append("the counts computed now are not those of the scheduler's sentence: its last word is older, or says what is not"
                     f" computed here{_times(facts, pod)}")
        rows, _ = reasons.decisive(table)
        named = {one.kind for row in rows for one in row.counted}
        if not named or words.unread or words.whole or not named <= words.counts.keys():
            return unknown([*seen, *lines], "ask again in a few seconds; kubectl describe pod")
    return _diagnosis(facts, pod, table, [*seen, *lines])


def _diagnosis(facts: Facts, pod: dict, table: nodes.Table, seen: list[str]) -> Diagnosis:
    rows, classes = reasons.decisive(table)
    parts = [reasons.clause(facts, pod, table, rows, one) for one in classes]
    cause = "; and ".join(part.text for part in parts)
    return Diagnosis(f"{cause[0].upper()}{cause[1:]}.", [*seen, *(line for part in parts for line in part.evidence)],
                     "; ".join(part.remedy for part in parts))


def _from_words(words: said.Said, seen: list[str]) -> Diagnosis:
    parts = []
    for kind, count in sorted(words.counts.items(), key=lambda one: said.ORDER.index(one[0].split()[0])):
        resource = kind.removeprefix("resource ")
        parts.append(f"{count} short of {resource}" if kind != resource else f"{count} {nodes.WORDS.get(kind, kind)}")
    if not parts or words.unread:
        return unknown(seen, "kubectl describe pod")
    return Diagnosis(f"None of {words.nodes} nodes can take it: {', '.join(parts)}.", seen,
                     "orchlab why pod/NAME looks at it alone, node by node")


def _preemption(words: said.Said) -> Iterator[str]:
    if "preemptionPolicy=Never" in words.preemption:
        yield "its PriorityClass preempts nobody (preemptionPolicy Never): it waits until something is free"
    elif "No preemption victims found" in words.preemption:
        yield "the scheduler found no pods of lower priority whose removal would make room"


def _times(facts: Facts, pod: dict) -> str:
    events = facts.events(pod, "FailedScheduling")
    return f" (said at {when(events[-1])})" if events else ""
