"""What the exercises of lab 08 ask for: whom admission lets in (asked by dry run), who waits, who was evicted, how long it took."""

from __future__ import annotations

from orchlab.course import Answer, Lab, not_yet, passed, pods, wrong
from orchlab.errors import ApiError
from orchlab.kube.objects import seconds

MOST, AT_PRODUCTION, LIMIT = 4, 2, 60
VISION, SPEECH = "lab-08-vision", "lab-08-speech"
AGAIN = 'parts.fresh(lab), then lab.start("{}") again'
NEVER = "not eligible due to preemptionPolicy=Never"


def unlimited(lab: Lab) -> Answer:
    """Whatever they look like, the pods of vision hold four GPUs at most, and a quota sees to it."""
    held = sum(pods.gpus(pod) for pod in lab.place.list("pod", namespace=VISION) if pods.phase(pod) not in ("Succeeded", "Failed"))
    room = max(0, MOST - held)
    kinds = {", which names no CPU and no memory,": {}, " and requests for CPU and memory": {"cpu": "1", "memory": "1Gi"},
             " and a deadline": None}
    for words, extra in kinds.items():
        over = _refusal(lab, VISION, room + 1, extra)
        if not over:
            return not_yet(f"A pod of vision with {room + 1} GPUs{words} is let in.",
                           "used against hard tells which quota has counted it: kubectl -n lab-08-vision describe resourcequota")
        if "exceeded quota" not in over:
            return wrong(f"A pod of vision with {room + 1} GPUs{words} is refused, but not for its number of GPUs: {over}")
        if room and (over := _refusal(lab, VISION, room, extra)):
            return wrong(f"A pod of vision with {room} GPUs is refused: {over}", "only the GPUs were to be rationed")
    return passed(f"Vision holds {held} of {MOST} GPUs, and admission refuses any pod that asks for more.")


def scoped(lab: Lab) -> Answer:
    """In speech, pods of priority production hold two GPUs at most; all others are not limited."""
    held = sum(pods.gpus(pod) for pod in lab.place.list("pod", namespace=SPEECH)
               if pod["spec"].get("priorityClassName") == "production" and pods.phase(pod) not in ("Succeeded", "Failed"))
    over = _refusal(lab, SPEECH, max(0, AT_PRODUCTION - held) + 1, {}, "production")
    if "no PriorityClass" in over:
        return not_yet("There is no PriorityClass called production.", 'lab.start("scoped") makes the three')
    if not over:
        return not_yet(f"A pod of speech with priority production and {max(0, AT_PRODUCTION - held) + 1} GPUs is let in.")
    if "exceeded quota" not in over:
        return wrong(f"It is refused, but not by a quota: {over}")
    for priority, gpus in (("research", 8), ("best-effort", 8), ("", 8), ("production", AT_PRODUCTION - held)):
        if gpus > 0 and (refused := _refusal(lab, SPEECH, gpus, {}, priority)):
            named = f"with priority {priority}" if priority else "without a priority"
            return wrong(f"A pod of speech {named} and {gpus} GPUs is refused: {refused}", "the quota was to count production only")
    return passed("In speech, production gets two GPUs at most; research and best effort are as free as before.")


def never_evict(lab: Lab) -> Answer:
    """The pod sweep waits for a T4, ahead of research, and leaves the pods that hold the T4s alone."""
    busy = {name: lab.get(f"pod/{name}") for name in ("busy-0", "busy-1")}
    sweep = lab.at(lab.home).client.find(f"/api/v1/namespaces/{SPEECH}/pods/sweep")
    for name, pod in busy.items():
        if (pod is None or pod["metadata"].get("deletionTimestamp")) and _evicted(lab, name):
            return wrong(f"sweep has evicted {name}: its class may make room for itself.", AGAIN.format("never-evict"))
    if missing := [name for name, pod in busy.items() if pod is None]:
        return not_yet(f"{missing[0]} is not there.", 'lab.start("never-evict") makes it')
    if late := [pod for pod in busy.values() if pods.phase(pod) != "Running"]:
        return not_yet(pods.sentence(late[0]), settling=True)
    if sweep is None:
        return not_yet(f"There is no pod called sweep in {SPEECH}.")
    if not pods.gpus(sweep) or (sweep["spec"].get("nodeSelector") or {}).get("orchlab/pool") != "t4":
        return wrong("sweep does not ask for a GPU of the pool t4.", AGAIN.format("never-evict"))
    words = pods.unschedulable(sweep)
    if not words:
        return not_yet(pods.sentence(sweep), settling=True)
    if NEVER not in words:
        return wrong(f"It evicts nobody at the moment, for want of anybody below it. The scheduler says: {words}",
                     AGAIN.format("never-evict"))
    if (value := sweep["spec"]["priority"]) <= 1000:
        return wrong(f"sweep never evicts, but its priority is {value}: research jobs that wait are served before it.",
                     AGAIN.format("never-evict"))
    return passed(f"sweep waits at priority {value}, ahead of research, and evicts nobody: {NEVER}.")


def within_a_minute(lab: Lab) -> Answer:
    """The pod serve runs on four A100s within a minute of its creation, by the scheduler's own evictions."""
    for name in ("quick-0", "quick-1", "slow"):
        if lab.get(f"pod/{name}") is None and not _evicted(lab, name):
            if not lab.get("pod/quick-0") and not lab.get("pod/slow"):
                return not_yet("The cluster is not full.", 'lab.start("within-a-minute") fills it')
            return wrong(f"{name} is gone, and nobody has evicted {name}. At three in the morning nobody is there to delete pods.",
                         AGAIN.format("within-a-minute"))
    serve = lab.at(lab.home).client.find(f"/api/v1/namespaces/{VISION}/pods/serve")
    if serve is None:
        return not_yet(f"There is no pod called serve in {VISION}.")
    if pods.gpus(serve) != 4:
        return wrong(f"serve asks for {pods.gpus(serve)} GPUs, not for four.", "kubectl -n lab-08-vision delete pod serve")
    created = seconds(serve["metadata"]["creationTimestamp"])
    if pods.phase(serve) == "Running":
        started = seconds(serve["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])
        if started - created > LIMIT:
            return wrong(f"serve runs, {started - created:.0f} s after it was created. A minute was given.", AGAIN.format("within-a-minute"))
        return passed(f"serve runs on {serve['spec']['nodeName']}, within a minute; the scheduler evicted "
                      f"{', '.join(name for name in ('quick-0', 'quick-1', 'slow') if _evicted(lab, name)) or 'nobody'}.")
    nominated = serve["status"].get("nominatedNodeName")
    for pod in lab.pods() if nominated else []:
        leaves = seconds(pod["metadata"].get("deletionTimestamp"))
        if leaves and leaves - created > LIMIT:
            return wrong(f"serve is nominated to {nominated} and waits for {pod['metadata']['name']}, which may take "
                         f"{pod['spec']['terminationGracePeriodSeconds']} s to stop.", AGAIN.format("within-a-minute"))
    return not_yet(f"serve is pending. The scheduler says: {pods.unschedulable(serve) or 'nothing yet'}",
                   settling=bool(nominated or not pods.unschedulable(serve) or serve["spec"].get("nodeName")))


def _evicted(lab: Lab, name: str) -> bool:
    return any(event["reason"] == "Preempted" for event in lab.place.events("Pod", name))


def _refusal(lab: Lab, namespace: str, gpus: int, extra: dict | None, priority: str = "") -> str:
    """In which words admission refuses such a pod, "" if it lets it in; a dry run, nothing is stored. `extra` None: with a deadline."""
    body = lab.load("parts").manifest("asked-by-the-check", gpus, priority, namespace)
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": gpus, **(extra or {})}}
    if extra is None:
        body["spec"]["activeDeadlineSeconds"] = 3600
    try:
        lab.client.create(f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All")
    except ApiError as error:
        if error.status != 403:
            raise
        return error.args[0]
    return ""
