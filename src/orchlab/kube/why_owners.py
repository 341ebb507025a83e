"""Why a Job, a Deployment or a ReplicaSet has not the pods that it should have, and why a node takes none. Pure.

A controller that cannot create its pods says so in FailedCreate events and in the condition ReplicaFailure; its pods tell the rest.
"""

from __future__ import annotations

from orchlab.diagnosis import Diagnosis, unknown
from orchlab.kube import why_holders as holders
from orchlab.kube import why_match as match
from orchlab.kube.objects import is_ready
from orchlab.kube.why_causes import waiting, words_of
from orchlab.kube.why_facts import Facts, full_name
from orchlab.kube.why_pods import placed, shares
from orchlab.kube.why_refused import refusal

# A Job's condition Failed, by its reason: (cause, remedy).
FAILED = {
    "BackoffLimitExceeded": ("Its pods failed more often than backoffLimit allows.", "find out why they fail, then make the Job anew"),
    "DeadlineExceeded": ("It ran longer than its activeDeadlineSeconds; time that its pods wait for a node counts.",
                         "raise the deadline, or leave it out; make the Job anew"),
    "PodFailurePolicy": ("A rule of its podFailurePolicy ended it.", "the rule and the exit status are in the message; mend the program or the rule"),
    "MaxFailedIndexesExceeded": ("More of its indexes failed than maxFailedIndexes allows.", "see the failed indexes' logs"),
    "FailedIndexes": ("Some of its indexes failed more often than backoffLimitPerIndex allows.", "see the failed indexes' logs"),
}
QUEUE = "kueue.x-k8s.io/queue-name"


def pod(facts: Facts, one: dict, with_table: bool = True) -> Diagnosis:
    """Why a pod does not run, at whatever stage it is."""
    if one["spec"].get("nodeName") or match.ended(one) or one["metadata"].get("deletionTimestamp"):
        return placed(facts, one)
    return waiting(facts, one, with_table)


def troubled(one: dict) -> bool:
    """Whether a pod does not run, or runs and is not ready, or failed, or is being deleted."""
    phase = (one.get("status") or {}).get("phase", "Pending")
    return phase != "Succeeded" and (phase != "Running" or not is_ready(one)) or bool(one["metadata"].get("deletionTimestamp"))


def alike(pods: list[dict], facts: Facts) -> list[list[dict]]:
    """Pods grouped by what makes one answer hold for all of them: maker, words of the scheduler, states of their containers."""
    groups: dict[tuple, list[dict]] = {}
    for one in pods:
        status, (kind, name) = one.get("status") or {}, holders.workload(one)
        template = match.labels(one).get("pod-template-hash", "")
        states = tuple((state.get("waiting") or {}).get("reason", next(iter(state), "")) for container in
                       [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])] for state in [container.get("state") or {}])
        gang = (one["spec"].get("schedulingGroup") or {}).get("podGroupName")
        waits = gang and not one["spec"].get("nodeName")
        # What holds a gang up holds all of it up, though the scheduler says it of each in other words.
        key = (gang,) if waits else (kind, name if kind != "Pod" else _shape(one), template, status.get("phase"), status.get("reason"),
               bool(one["spec"].get("nodeName")), bool(one["metadata"].get("deletionTimestamp")), words_of(facts, one), states,
               status.get("nominatedNodeName") is None)
        groups.setdefault((one["metadata"].get("namespace"), *key), []).append(one)
    return list(groups.values())


def job(facts: Facts, one: dict) -> list[Diagnosis]:
    """One answer for each way in which it does not run; the first is the Job's own where it has one."""
    spec, status = one.get("spec") or {}, one.get("status") or {}
    seen = [f"job {full_name(one)}: {status.get('succeeded', 0)} of {spec.get('completions', '?')} completed, {status.get('active', 0)} active,"
            f" {status.get('failed', 0)} failed"]
    conditions = {part["type"]: part for part in status.get("conditions") or [] if part["status"] == "True"}
    pods = facts.owned("pods", one)
    if failed := conditions.get("Failed") or conditions.get("FailureTarget"):
        said = f"condition Failed, {failed.get('reason')}: {failed.get('message', '')}"
        ends = [f"pod {group[0]['metadata']['name']}: {placed(facts, group[0]).cause}" for group in
                alike([part for part in pods if (part.get("status") or {}).get("phase") == "Failed"], facts)[:3]]
        if failed.get("reason") in FAILED:
            cause, remedy = FAILED[failed["reason"]]
            return [Diagnosis(cause, [*seen, said, *ends], remedy)]
        return [unknown([*seen, said, *ends], f"kubectl describe job {one['metadata']['name']}")]
    if "Complete" in conditions:
        return [Diagnosis("It has completed; nothing is wrong.", seen)]
    if spec.get("suspend"):
        queue = match.labels(one).get(QUEUE)
        said = [f"condition Suspended: {conditions['Suspended'].get('message', '')}"] if "Suspended" in conditions else []
        if queue or spec.get("managedBy"):
            return [Diagnosis(f"It is suspended until {f'Kueue admits it to the queue {queue}' if queue else spec['managedBy'] + ' starts it'}.",
                              [*seen, *said, *_told(facts, one)], f"kubectl -n {one['metadata'].get('namespace')} get workloads; kubectl describe localqueue")]
        return [Diagnosis("It is suspended (spec.suspend): it makes no pods.", [*seen, *said],
                          f"kubectl patch job {one['metadata']['name']} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'")]
    wants = min(spec.get("parallelism", 1), (spec.get("completions") or spec.get("parallelism", 1)) - status.get("succeeded", 0))
    found = []
    if status.get("active", 0) < wants and (events := facts.events(one, "FailedCreate")):
        found = [_refused(facts, one, events[-1].get("message", ""), seen)]
    return found + _of_pods(facts, pods, seen) or [_nothing(facts, pods, seen, status.get("active", 0))]


def replicas(facts: Facts, one: dict) -> list[Diagnosis]:
    """The same for a Deployment or a ReplicaSet."""
    spec, status, kind = one.get("spec") or {}, one.get("status") or {}, one.get("kind", "")
    seen = [f"{kind.lower()} {full_name(one)}: {status.get('readyReplicas', 0)} of {spec.get('replicas', 1)} ready"]
    sets = facts.owned("replicasets", one) if kind == "Deployment" else [one]
    if not spec.get("replicas", 1):
        return [Diagnosis("It is scaled to 0: it has no pods.", seen, f"kubectl scale {kind.lower()} {one['metadata']['name']} --replicas=1")]
    found = []
    for part in (one, *(each for each in sets if each is not one)):
        failure = next((each for each in (part.get("status") or {}).get("conditions") or [] if each["type"] == "ReplicaFailure" and each["status"] == "True"), None)
        events = facts.events(part, "FailedCreate")
        lacks = (part.get("status") or {}).get("replicas", 0) < (part.get("spec") or {}).get("replicas", 1)
        if failure and not found:
            found = [_refused(facts, part, failure.get("message", ""), seen)]
        elif events and lacks and not found:
            found = [_refused(facts, part, events[-1].get("message", ""), seen)]
    pods = [each for part in sets for each in facts.owned("pods", part)]
    found += _of_pods(facts, pods, seen)
    if found:
        return found
    if spec.get("paused"):
        return [Diagnosis("It is paused: changes of its template start no new pods.", seen, f"kubectl rollout resume deploy {one['metadata']['name']}")]
    return [_nothing(facts, pods, seen, status.get("readyReplicas", 0))]


def broken(one: dict) -> bool:
    """Whether a Node object is out of service or was cordoned."""
    return not is_ready(one) or bool((one.get("spec") or {}).get("unschedulable"))


def node(facts: Facts, one: dict) -> Diagnosis:
    """Why a node takes no (more) pods."""
    name, status = one["metadata"]["name"], one.get("status") or {}
    taints = [match.taint_text(taint) for taint in (one.get("spec") or {}).get("taints") or []]
    ready = next((part for part in status.get("conditions") or [] if part["type"] == "Ready"), {})
    seen = [f"condition Ready is {ready.get('status', 'missing')}, {ready.get('reason', '')}: {ready.get('message', '')}",
            *([f"taints: {', '.join(taints)}"] if taints else [])]
    if not is_ready(one):
        return Diagnosis(f"Its kubelet does not report that it is ready: {ready.get('reason', 'no condition Ready')}.", seen,
                         "see whether the machine and its kubelet run; orchlab fault list shows what was broken on purpose")
    if (one.get("spec") or {}).get("unschedulable"):
        return Diagnosis("It is cordoned: what runs may go on, nothing new starts.", seen, f"kubectl uncordon {name}")
    lost = [resource for resource, value in (status.get("capacity") or {}).items()
            if match.amount(value) and "/" in resource and not match.amount((status.get("allocatable") or {}).get(resource, 0))]
    if lost:
        return Diagnosis(f"Its device plugin is not ready: {', '.join(lost)} has capacity, but nothing is allocatable.",
                         [*seen, *holders.operands(facts, {name})], "kubectl -n gpu-operator get pods -o wide, then the logs of those that are not ready")
    used = facts.used.get(name, {})
    full = [f"{match.shown(resource, used.get(resource, 0))} of {match.shown(resource, match.amount(value))} {resource} in use"
            for resource, value in (status.get("allocatable") or {}).items() if used.get(resource)]
    return Diagnosis("It takes pods that tolerate its taints and fit; nothing is wrong.", [*seen, *full])


def _of_pods(facts: Facts, pods: list[dict], seen: list[str]) -> list[Diagnosis]:
    bad = [one for one in pods if troubled(one) and (one.get("status") or {}).get("phase") != "Failed"]
    found = []
    for group in alike(sorted(bad, key=lambda one: one["metadata"]["name"]), facts):
        answer = pod(facts, group[0])
        more = f"so it is with {len(group)} of its pods: {', '.join(one['metadata']['name'] for one in group[:4])}{' …' if len(group) > 4 else ''}"
        found.append(Diagnosis(answer.cause, [*seen, more, *answer.evidence], answer.remedy, answer.known))
    return found


def _refused(facts: Facts, one: dict, message: str, seen: list[str]) -> Diagnosis:
    found = refusal(message, facts, one["metadata"].get("namespace", ""))
    return Diagnosis(found.cause, [*seen, f"{one.get('kind', '').lower()} {full_name(one)} cannot create its pods (FailedCreate)", *found.evidence],
                     found.remedy, found.known)


def _nothing(facts: Facts, pods: list[dict], seen: list[str], there: int) -> Diagnosis:
    if there:
        return Diagnosis("Its pods run; nothing is wrong.", [*seen, *dict.fromkeys(line for each in pods for line in shares(facts, each))])
    return unknown([*seen, "it has no pods, and its controller has said nothing"], "ask again in a few seconds; is kube-controller-manager up?")


def _told(facts: Facts, one: dict) -> list[str]:
    return [f"event {event.get('reason')}: {event.get('message', '')}" for event in facts.events(one)[-3:]]


def _shape(one: dict) -> str:
    """What tells one bare pod from another as far as its place goes."""
    spec = {name: value for name, value in one["spec"].items() if name not in ("volumes", "nodeName", "hostname")}
    return repr((sorted(match.labels(one).items()), [str(volume.get("persistentVolumeClaim")) for volume in one["spec"].get("volumes") or []],
                 [{key: value for key, value in part.items() if key != "volumeMounts"} for part in spec.pop("containers", [])], spec))
