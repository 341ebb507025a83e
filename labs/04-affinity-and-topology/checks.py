"""What the exercises of lab 04 ask for, looked at in the live cluster. Where the scheduler can answer, it is asked, with a pod of the
check's own that is deleted again."""

from __future__ import annotations

from collections import Counter

from orchlab.course import Answer, Lab, not_yet, passed, pods, wrong

ZONE, RACK, POOL = "topology.kubernetes.io/zone", "orchlab/rack", "orchlab/pool"
GPU = "nvidia.com/gpu"
TOLERATION = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
PROBE = "check-probe"
FLEX, RING, EACH = 13, 8, 4
OUT = "h100-2"
SECONDS = 10


def cpu_pods(lab: Lab) -> Answer:
    """No pod without a toleration can be placed on a GPU node, usual GPU pods can; web runs elsewhere, train was left alone."""
    web, train = lab.pods("app=web"), lab.get("pod/train")
    if not web and train is None:
        return not_yet("There is neither web nor train.", 'lab.start("cpu-pods") makes them')
    if train is None or train["metadata"].get("deletionTimestamp"):
        return wrong("train is gone. It ran, and was to keep running: NoExecute also removes pods that are there already.",
                     'take that taint off, then lab.start("cpu-pods")')
    gpu_nodes = [node.name for node in lab.env.fleet.nodes() if node.gpus]
    if cordoned := [node["metadata"]["name"] for node in lab.place.list("node") if node["spec"].get("unschedulable")]:
        return wrong(f"{cordoned[0]} is cordoned: it takes no pod at all, not even one that wants its GPUs.",
                     f"kubectl uncordon {' '.join(cordoned)}")
    image = {"name": "main", "image": "registry.example/check:1"}
    plain = _ask(lab, {node: {"containers": [image]} for node in gpu_nodes})
    if open_to_all := sorted(node for node, words in plain.items() if not words):
        effects = {taint["effect"] for node in open_to_all for taint in lab.get(f"node/{node}")["spec"].get("taints") or []}
        why = "PreferNoSchedule only costs points." if "PreferNoSchedule" in effects else "Nothing on the node keeps it away."
        return wrong(f"The scheduler would still place anybody's pod without a GPU on {', '.join(open_to_all)}. {why}")
    usual = {"containers": [image | {"resources": {"limits": {GPU: 1}}}], "tolerations": [TOLERATION]}
    a100 = [node.name for node in lab.env.fleet.nodes() if node.pool == "a100"]
    if shut := sorted(node for node, words in _ask(lab, dict.fromkeys(a100, usual)).items() if "untolerated taint" in words):
        return wrong(f"{', '.join(shut)} now refuses GPU pods with the usual toleration of {GPU}:NoSchedule as well.",
                     "the taint that the other pools have")
    there = [pod for pod in web if not pod["metadata"].get("deletionTimestamp")]
    if left := sorted(pod["spec"]["nodeName"] for pod in there if pod["spec"].get("nodeName") in gpu_nodes):
        return not_yet(f"New pods are kept off, but {len(left)} of web's still run on {', '.join(sorted(set(left)))}.",
                       "NoSchedule moves nobody who is there", settling=len(there) != 4)
    if len(there) != 4 or any(pods.phase(pod) != "Running" for pod in there):
        return not_yet("web does not have its 4 pods yet.", settling=True)
    return passed("No GPU node takes a pod without the toleration, web runs on the CPU nodes, and train was never interrupted.")


def prefer_h100(lab: Lab) -> Answer:
    """13 workers of 4 GPUs: none could go to a T4, and none is on an A100 while an H100 node has room."""
    found, answer = _workers(lab, "flex", FLEX)
    if answer:
        return answer
    if waiting := [pod for pod in found if pods.phase(pod) != "Running"]:
        words = pods.unschedulable(waiting[0])
        return not_yet(f"{FLEX - len(waiting)} of {FLEX} workers run. " + (f"The scheduler says: {words}" if words else
                       pods.sentence(waiting[0])), settling=not words or "Insufficient" in words)
    spec = {key: value for key, value in found[0]["spec"].items() if key in ("affinity", "nodeSelector", "tolerations")}
    spec["containers"] = [{"name": "main", "image": "registry.example/check:1", "resources": {"limits": {GPU: 1}}}]
    words = _ask(lab, {"t4-0": spec})["t4-0"]
    # Short of GPUs: those of the T4 node are held by others, but nothing else would keep the worker off it.
    if not words or "Insufficient" in words:
        return wrong("A worker of flex could be placed on t4-0: nothing that it requires keeps it off a T4. A preference is only a score.")
    on_a100 = [pod for pod in found if pod["spec"]["nodeName"].startswith("a100-")]
    free = _free(lab, "h100")
    if on_a100 and (room := sum(count // EACH for count in free.values())):
        return wrong(f"{len(on_a100)} workers have A100s, while there is room for {room} more on H100 nodes: the H100 was not preferred.",
                     "nobody moves a pod that runs: %kubectl delete job flex, then apply it anew")
    return passed(f"{len(found) - len(on_a100)} workers have H100s, {len(on_a100)} has A100s because the H100s are full, and none could "
                  "get a T4.")


def ring(lab: Lab) -> Answer:
    """8 workers of 4 H100s: 4 in each zone, racks that can be used differ by one at most, h100-2 stays tainted and empty; and the pods
    ask for it, so that it is no luck."""
    if not lab.broken_for("ring"):
        return not_yet("No node is in maintenance yet.", 'lab.start("ring")')
    tainted = lab.get(f"node/{OUT}")
    if not any(taint["key"] == "maintenance" and taint["effect"] == "NoSchedule" for taint in tainted["spec"].get("taints") or []):
        return wrong(f"The taint of {OUT} is gone. The node is in maintenance: it is not yours to put back.",
                     f"%kubectl taint node {OUT} maintenance=disk:NoSchedule")
    found, answer = _workers(lab, "ring", RING)
    if answer:
        return answer
    on = [pod["spec"].get("nodeName", "") for pod in found]
    if OUT in on:
        return wrong(f"{on.count(OUT)} workers run on {OUT}, which is in maintenance. They tolerate its taint.")
    for key, short in ((ZONE, "zones"), (RACK, "racks")):
        mine = [one for one in found[0]["spec"].get("topologySpreadConstraints") or [] if one["topologyKey"] == key]
        hard = [one for one in mine if one["whenUnsatisfiable"] == "DoNotSchedule"]
        if not hard:
            why = ("ScheduleAnyway is only a score: with other pods about it comes out otherwise" if mine else
                   "if it came out right, it was luck")
            return wrong(f"Nothing in ring's pods demands an even spread over {short} ({key}): {why}.")
        if not all(_selects(hard[0].get("labelSelector"), pod["metadata"].get("labels") or {}) for pod in found):
            return wrong(f"The constraint over {short} does not count ring's pods: its labelSelector does not match their labels.")
    if waiting := [pod for pod in found if pods.phase(pod) != "Running"]:
        words = pods.unschedulable(waiting[0])
        return not_yet(f"{RING - len(waiting)} of {RING} workers run. " + (f"The scheduler says: {words}" if words else
                       pods.sentence(waiting[0])), settling=not words or "Insufficient" in words)
    nodes = {node.name: node for node in lab.env.fleet.nodes()}
    if strange := [node for node in on if nodes[node].pool != "h100"]:
        return wrong(f"A worker runs on {strange[0]}: all eight want H100s.")
    zones, racks = Counter(nodes[node].zone for node in on), Counter(nodes[node].rack for node in on)
    usable = {node.rack for node in nodes.values() if node.pool == "h100" and node.name != OUT}
    shares = [racks[rack] for rack in usable]
    if max(zones.values()) - min(zones[zone] for zone in lab.env.fleet.zones) > 1 or max(shares) - min(shares) > 1:
        return wrong(f"The spread is {lab.load('parts').shares(lab, found)}: zones and usable racks may differ by one at most.")
    return passed(f"{lab.load('parts').shares(lab, found)}, and {OUT} is left alone.")


# -- looking


def _workers(lab: Lab, name: str, count: int) -> tuple[list[dict], Answer | None]:
    """The pods of the Job `name`, labelled app=`name`, or what is wrong with them."""
    if lab.get(f"job/{name}") is None:
        return [], not_yet(f"There is no Job called {name}.")
    found = [pod for pod in lab.pods(f"app={name}") if not pod["metadata"].get("deletionTimestamp") and pods.phase(pod) != "Succeeded"]
    if len(found) != count:
        return found, not_yet(f"{name} has {len(found)} pods labelled app={name}, not {count}.", "parallelism says how many; "
                              "orchlab/run-for: 240h lets them run that long", settling=True)
    if other := [pod for pod in found if pods.gpus(pod) != EACH]:
        return found, wrong(f"{other[0]['metadata']['name']} asks for {pods.gpus(other[0])} GPUs, not {EACH}.")
    return found, None


def _ask(lab: Lab, specs: dict[str, dict]) -> dict[str, str]:
    """Asks the scheduler about one pod for each node, pinned to it: "" if it is placed there, else the scheduler's words."""
    path = f"/api/v1/namespaces/{lab.namespace}/pods"
    try:
        for node, spec in specs.items():
            pinned = spec | {"nodeSelector": (spec.get("nodeSelector") or {}) | {"kubernetes.io/hostname": node}}
            lab.client.create(path, {"apiVersion": "v1", "kind": "Pod", "spec": pinned,
                                     "metadata": {"name": f"{PROBE}-{node}", "labels": {"app": PROBE}}})
        lab.place.until(lambda: all(pod["spec"].get("nodeName") or pods.unschedulable(pod) for pod in lab.pods(f"app={PROBE}")), SECONDS,
                        "the scheduler did not answer the check's question")
        return {pod["metadata"]["name"].removeprefix(f"{PROBE}-"): pods.unschedulable(pod) for pod in lab.pods(f"app={PROBE}")}
    finally:
        lab.client.delete(path, labelSelector=f"app={PROBE}", gracePeriodSeconds=0)
        lab.place.until(lambda: not lab.pods(f"app={PROBE}"), SECONDS, "the check's own pods did not go")


def _free(lab: Lab, pool: str) -> dict[str, int]:
    """GPUs that nobody holds, by node of the pool."""
    free = {node.name: node.gpus for node in lab.env.fleet.nodes() if node.pool == pool}
    for pod in lab.place.list("pod", namespace=""):
        if (node := pod["spec"].get("nodeName")) in free and pods.phase(pod) in ("Pending", "Running"):
            free[node] -= pods.gpus(pod)
    return free


def _selects(selector: dict | None, labels: dict[str, str]) -> bool:
    """Whether a LabelSelector matches; none at all, or an empty one, counts nothing in a spread constraint."""
    if not selector or not (selector.get("matchLabels") or selector.get("matchExpressions")):
        return False
    fits = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    for part in selector.get("matchExpressions") or []:
        key, values = part["key"], part.get("values") or []
        fits &= {"In": labels.get(key) in values, "NotIn": labels.get(key) not in values, "Exists": key in labels,
                 "DoesNotExist": key not in labels}[part["operator"]]
    return fits
