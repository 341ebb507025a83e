"""Teams, their pods and quotas, and questions about them. Each helper does what the kubectl commands in the text do."""

from __future__ import annotations

import yaml

from orchlab.course import Lab, Text, pods
from orchlab.course.place import Place
from orchlab.errors import ApiError
from orchlab.views.text import table

TEAMS = ("lab-08-vision", "lab-08-speech")
GPU = "nvidia.com/gpu"
QUOTA = f"requests.{GPU}"
# What a section may have made, in the order in which it goes: owners before what they own.
MADE = ("apis/batch/v1", "jobs"), ("api/v1", "pods"), ("api/v1", "resourcequotas"), ("api/v1", "limitranges"), (
    "apis/policy/v1", "poddisruptionbudgets"), ("api/v1", "events")
SECONDS = 30


def manifest(name: str, gpus: int, priority: str = "", team: str = TEAMS[0], pool: str = "a100", resource: str = GPU,
             run_for: str = "", grace: int | None = None, deaf: bool = False, node: str = "", **labels: str) -> dict:
    """A pod that asks for GPUs of one pool, on one node if it is named. `grace` in real seconds; `deaf`: it ignores SIGTERM."""
    notes = ({"orchlab/run-for": run_for} if run_for else {}) | ({"orchlab/on-sigterm": "ignore"} if deaf else {})
    spec = {"nodeSelector": {"orchlab/pool": pool}, "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [{"name": "main", "image": "registry.example/train:1", "resources": {"limits": {resource: gpus}}}]}
    spec |= ({"restartPolicy": "Never"} if run_for else {}) | ({"priorityClassName": priority} if priority else {})
    spec["nodeSelector"] |= {"kubernetes.io/hostname": node} if node else {}
    spec |= {} if grace is None else {"terminationGracePeriodSeconds": grace}
    metadata = {"name": name, "namespace": team} | ({"labels": labels} if labels else {}) | ({"annotations": notes} if notes else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def submit(lab: Lab, team: str, name: str, gpus: int, priority: str = "", **options: object) -> None:
    """kubectl apply of a pod like `first` in section 2; prints what kubectl says."""
    lab.apply(yaml.safe_dump(manifest(name, gpus, priority, f"lab-08-{team}", **options), sort_keys=False))


def wait(lab: Lab, *names: str, state: str | None = None, seconds: float = SECONDS) -> Text:
    """Waits for pods, "TEAM/NAME" each, as lab.wait does; a sentence for each. Raises TimeLimitReached."""
    said = []
    for name in names:
        team, _, pod = name.partition("/")
        said.append(Place(lab.home, f"lab-08-{team}").wait(f"pod/{pod}", state, seconds))
    return Text("\n".join(said))


def wait_jobs(lab: Lab, team: str, seconds: float = SECONDS, **wanted: str) -> Text:
    """Waits until each Job has come to what is wanted of it: "running" (a pod of it runs) or a condition. Raises TimeLimitReached."""
    place = Place(lab.home, f"lab-08-{team}")
    for name, state in wanted.items():
        if state != "running":
            place.wait(f"job/{name}", state, seconds)
        else:
            lab.until(lambda name=name: any(pods.phase(pod) == "Running" for pod in place.list("pod", f"job-name={name}")), seconds,
                      f"no pod of {name} runs")
    return Text("; ".join(f"{name}: {state}" for name, state in wanted.items()))


def node_of(lab: Lab, name: str) -> str:
    """The node of the pod "TEAM/NAME"."""
    team, _, pod = name.partition("/")
    return lab.client.get(f"/api/v1/namespaces/lab-08-{team}/pods/{pod}")["spec"].get("nodeName", "")


def budget(lab: Lab, team: str, name: str, seconds: float = SECONDS) -> Text:
    """A PodDisruptionBudget's status, as soon as it counts a healthy pod."""
    path = f"/apis/policy/v1/namespaces/lab-08-{team}/poddisruptionbudgets/{name}"
    status = lab.until(lambda: (found := lab.client.get(path).get("status") or {}).get("currentHealthy") and found, seconds,
                       "the budget counts no healthy pod")
    return Text(f"{name}: {status['currentHealthy']} healthy, {status['desiredHealthy']} desired, {status['disruptionsAllowed']} disruptions "
                "allowed")


def jobs() -> str:
    """Two Jobs of vision that may not fail once; `again` ignores what the cluster does to its pods. As YAML."""
    made = []
    for name in ("once", "again"):
        template = manifest(name, 4, "research", run_for="20h")
        spec = {"backoffLimit": 0, "template": {"metadata": {"annotations": template["metadata"]["annotations"]}, "spec": template["spec"]}}
        if name == "again":
            spec["podFailurePolicy"] = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
        made.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": TEAMS[0]}, "spec": spec})
    return yaml.safe_dump_all(made, sort_keys=False)


def fresh(lab: Lab, seconds: float = SECONDS) -> Text:
    """Nothing of the lab is left in its namespaces: pods, Jobs, quotas, limit ranges, budgets. PriorityClasses stay."""
    def left() -> bool:
        found = False
        for space in lab.folder.namespaces:
            for base, kind in MADE:
                path = f"/{base}/namespaces/{space}/{kind}"
                lab.client.delete(path, gracePeriodSeconds=0, propagationPolicy="Background")
                for item in lab.client.list(path)[0] if kind in ("jobs", "pods") else []:
                    found = True
                    if item["metadata"].get("finalizers"):
                        _without_finalizers(lab, f"{path}/{item['metadata']['name']}")
        return found

    lab.until(lambda: not left(), seconds, "the namespaces did not get empty")
    return Text("nothing of ours is in " + ", ".join(lab.folder.namespaces))


def _without_finalizers(lab: Lab, path: str) -> None:
    try:
        lab.client.patch(path, {"metadata": {"finalizers": None}})
    except ApiError as error:
        if error.status not in (404, 409):
            raise


def who(lab: Lab) -> Text:
    """The teams' pods: GPUs, priority, phase; under a pending pod the scheduler's words, each reason once."""
    found = [pod for team in TEAMS for pod in lab.place.list("pod", namespace=team)]
    rows = [[f"{pod['metadata']['namespace'].removeprefix('lab-08-')}/{pod['metadata']['name']}", str(pods.gpus(pod)),
             f"{pod['spec'].get('priorityClassName', '-')} ({pod['spec'].get('priority', 0)})",
             "Terminating" if pod["metadata"].get("deletionTimestamp") else pods.phase(pod), pod["spec"].get("nodeName", "-")]
            for pod in found]
    said = [f"{pod['metadata']['name']}: {words}" for pod in found if (words := pods.unschedulable(pod))]
    return Text("\n".join([table(["pod", "GPUs", "priority", "phase", "node"], rows) if rows else "no pods", *said]))


def used(lab: Lab, team: str, until: str = "", seconds: float = SECONDS) -> Text:
    """Used against hard of a team's quotas; `until` waits for a line that ends so: the controller writes it a moment after the change."""
    said = [""]

    def look() -> bool:
        lines = []
        for quota in lab.place.list("resourcequota", namespace=f"lab-08-{team}"):
            status = quota.get("status") or {}
            lines += [f"{quota['metadata']['name']}: {name} {status.get('used', {}).get(name, '-')} of {hard}"
                      for name, hard in sorted((status.get("hard") or {}).items())]
        said[0] = "\n".join(lines)
        return bool(lines) and (not until or said[0].endswith(until))

    lab.until(look, seconds, f"the quota of {team} did not come to {until or 'anything'}")
    return Text(said[0])


def spellings(lab: Lab, gpus: int = 3) -> Text:
    """Quotas of two GPUs, spelled in several ways: what the API server says to each, and what then becomes of a pod with three. Each is
    made in lab-08-speech and taken away again."""
    ways = [(QUOTA, {}), ("gpu", {}), (GPU, {}), (f"limits.{GPU}", {}), (f"{QUOTA}s", {}), (QUOTA, {"scopes": ["NotBestEffort"]}),
            (QUOTA, {"scopes": ["Terminating"]}), (QUOTA, {"scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": "In", "values": ["produktion"]}]}})]
    rows = []
    for name, scope in ways:
        words = " ".join(scope.get("scopes", ["PriorityClass In [produktion]"] if scope else ["-"]))
        rows.append([f"{name}: 2", words, *_tried(lab, {name: "2"}, scope, manifest("tried", gpus, team=TEAMS[1]))])
    return Text(table(["hard", "scope", "API server", "used", f"a pod with {gpus} GPUs"], rows))


def mig(lab: Lab) -> Text:
    """Quotas of a team without GPUs, and a pod that asks for a MIG instance; made and tried like the spellings."""
    rows = []
    for hard in ({QUOTA: "0"}, {QUOTA: "0", "requests.nvidia.com/mig-1g.5gb": "0"}):
        said, counted, verdict = _tried(lab, hard, {}, manifest("tried", 1, team=TEAMS[1], resource="nvidia.com/mig-1g.5gb"))
        rows.append([", ".join(f"{key}: {value}" for key, value in hard.items()), said, verdict])
    return Text(table(["hard", "API server", "a pod with nvidia.com/mig-1g.5gb: 1"], rows))


def _tried(lab: Lab, hard: dict, scope: dict, pod: dict) -> tuple[str, str, str]:
    """(what the API server says to the quota, what it counts, what it says to the pod)."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tried", "namespace": TEAMS[1]},
             "spec": {"hard": hard, **scope}}
    path = f"/api/v1/namespaces/{TEAMS[1]}/resourcequotas/tried"
    try:
        lab.client.apply(quota, lab.manager)
    except ApiError as error:
        return ("refused: " + error.args[0].rpartition(": ")[2].rstrip("]"), "-", "-")
    lab.until(lambda: (lab.client.get(path).get("status") or {}).get("hard"), SECONDS, "the quota was not looked at")
    try:
        lab.client.create(f"/api/v1/namespaces/{TEAMS[1]}/pods", pod, dryRun="All")
        verdict = "let in"
    except ApiError as error:
        verdict = "refused" if "exceeded quota" in error.args[0] else error.args[0]
    counted = lab.client.get(path)["status"].get("used", {})
    lab.client.delete(path)
    lab.until(lambda: lab.client.find(path) is None, SECONDS, "the quota did not go")
    return "accepted", ", ".join(counted.values()) or "nothing", verdict


def failed_create(lab: Lab, team: str, seconds: float = SECONDS) -> Text:
    """What the Job controller says about pods that it could not create, each once; pods' names shortened."""
    def look() -> set[str]:
        return {"Error creating: pods … is" + event["message"].partition('" is')[2]
                for event in lab.place.list("event", namespace=f"lab-08-{team}") if event["reason"] == "FailedCreate"}

    return Text("\n".join(sorted(lab.until(look, seconds, "no pod was refused"))))


def evicted(lab: Lab, count: int = 1) -> Text:
    """Events with the reason Preempted in the teams' namespaces, oldest first: about whom, and in which words. Waits for `count`."""
    def look() -> list[dict]:
        return [event for team in TEAMS for event in lab.place.list("event", namespace=team) if event["reason"] == "Preempted"]

    events = lab.until(lambda: len(found := look()) >= count and found, SECONDS, f"{count} evictions were not seen")
    events.sort(key=lambda event: event.get("eventTime") or event.get("lastTimestamp") or "")
    return Text("\n".join(f"{event['involvedObject']['namespace'].removeprefix('lab-08-')}/{event['involvedObject']['name']}: "
                          f"{event['message']}" for event in events))


def first_words(lab: Lab, team: str, name: str, seconds: float = SECONDS) -> Text:
    """The scheduler's first FailedScheduling about a pod: what it found, and what it did about it."""
    def look() -> list[str]:
        return [event["message"] for event in Place(lab.home, f"lab-08-{team}").events("Pod", name) if event["reason"] == "FailedScheduling"]

    return Text(lab.until(look, seconds, f"nothing was said about {name}")[0])
