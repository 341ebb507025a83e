"""What the exercises of lab 03 ask for, looked at in the live cluster: the workload runs with its GPUs, and what was to be kept is kept."""

from __future__ import annotations

from orchlab.course import Answer, Lab, broken, not_yet, passed, pods, wrong

GPU = "nvidia.com/gpu"
QUOTA = f"requests.{GPU}"
POOL = "orchlab/pool"


def llm(lab: Lab) -> Answer:
    """Pods labelled app=llm hold 16 H100s: two whole nodes."""
    if trouble := _not_open(lab, "llm"):
        return trouble
    found = _there(lab, "llm")
    if not found:
        return not_yet("There is no pod labelled app=llm.", settling=True)
    if trouble := _waiting(lab, found):
        return trouble
    sizes = [_held(lab, pod) for pod in found]
    if sum(sizes) < 16:
        return not_yet(f"Pods labelled app=llm hold {sum(sizes)} GPUs; the training needs 16.", settling=sum(map(pods.gpus, found)) == 16)
    if others := [pod for pod in found if _labels(lab, pod).get(POOL) != "h100"]:
        return wrong(f"{others[0]['metadata']['name']} runs on {others[0]['spec']['nodeName']}: that is no H100.")
    if sizes != [8, 8]:
        return wrong(f"The 16 GPUs are split over {len(found)} pods. Wanted are two whole nodes, eight GPUs to a pod: within a node "
                     "they speak over NVLink.")
    return passed(f"llm holds 16 H100s: {' and '.join(sorted(pod['spec']['nodeName'] for pod in found))}, eight each.")


def detector(lab: Lab) -> Answer:
    """detector runs on t4-0, which is still vision's alone; it tolerates that taint and not everything."""
    if trouble := _not_open(lab, "detector"):
        return trouble
    taints = {(taint["key"], taint.get("value", ""), taint["effect"]) for taint in lab.get("node/t4-0")["spec"].get("taints") or []}
    if ("team", "vision", "NoSchedule") not in taints:
        return wrong("t4-0 has lost its taint: from now on everybody's pods may come to vision's machine.",
                     "kubectl taint node t4-0 team=vision:NoSchedule")
    template, trouble = _template(lab, "detector")
    if trouble:
        return trouble
    if any("key" not in one for one in template.get("tolerations") or []):
        return wrong("detector tolerates every taint there is, those of broken nodes included: it would be sent to a node that is out of "
                     "service.", "name the key")
    found = _there(lab, "detector")
    if trouble := _waiting(lab, found):
        return trouble
    if len(found) != 1 or not _held(lab, found[0]):
        return not_yet(f"{len(found)} pods of detector are there.", settling=True)
    if found[0]["spec"]["nodeName"] != "t4-0":
        return wrong(f"detector runs on {found[0]['spec']['nodeName']}, a machine of others. vision has one of its own, with a T4.")
    return passed("detector runs on t4-0 with its GPU, and the taint still keeps others away.")


def ocr(lab: Lab) -> Answer:
    """ocr has a T4 replica on t4-0, which is still shared; its tenants run."""
    if trouble := _not_open(lab, "ocr"):
        return trouble
    node = lab.get("node/t4-0")
    tenants = _running(lab, "tenants")
    if node["metadata"]["labels"].get("nvidia.com/device-plugin.config") != "four" or len(tenants) < 4:
        return wrong(f"t4-0 is to stay shared for its four tenants; {len(tenants)} of them run, and its sharing is "
                     f"{node['metadata']['labels'].get('nvidia.com/gpu.sharing-strategy', 'unknown')}.", 'board.open("ocr") begins anew')
    _, trouble = _template(lab, "ocr")
    if trouble:
        return trouble
    found = _there(lab, "ocr")
    if trouble := _waiting(lab, found):
        return trouble
    if len(found) != 1 or not _held(lab, found[0]):
        return not_yet(f"{len(found)} pods of ocr are there.", settling=True)
    if found[0]["spec"]["nodeName"] != "t4-0":
        return wrong(f"ocr runs on {found[0]['spec']['nodeName']}. It needs a T4.")
    return passed("ocr runs on t4-0 beside the four tenants.")


def train(lab: Lab) -> Answer:
    """train runs with four GPUs under the same quota; serve keeps two replicas or more."""
    if trouble := _not_open(lab, "train"):
        return trouble
    quotas = [quota["spec"]["hard"] for quota in lab.place.list("resourcequota") if QUOTA in (quota["spec"].get("hard") or {})]
    if not quotas:
        return wrong("The namespace has no quota for GPUs any more. It was not yours to take away: other teams were promised the rest.",
                     'board.open("train") begins anew')
    if min(int(hard[QUOTA]) for hard in quotas) > 8:
        return wrong(f"The quota is {quotas[0][QUOTA]} now. It is 8 for this team, by agreement with the others.")
    serve = _running(lab, "serve")
    if len(serve) < 2:
        return wrong(f"{len(serve)} replicas of serve run. Two are needed at night as well.")
    _, trouble = _template(lab, "train")
    if trouble:
        return trouble
    found = _there(lab, "train")
    if not found:
        used = (lab.place.list("resourcequota")[0]["status"].get("used") or {}).get(QUOTA, "?")
        # It also counts a pod that is leaving (train's own, when it is restarted) and one that has come since the pods were listed.
        staying = [pod for pod in lab.pods() if "deletionTimestamp" not in pod["metadata"]]
        ahead = used.isdigit() and int(used) != sum(_held(lab, pod) for pod in staying)
        retry = used.isdigit() and int(used) <= 4
        again = "there is room now; the ReplicaSet tries again later and later: kubectl rollout restart deployment train"
        return not_yet(f"There is no pod of train. The quota counts {used} of 8 GPUs as used.", again if retry else "",
                       settling=retry or ahead)
    if trouble := _waiting(lab, found):
        return trouble
    if sum(_held(lab, pod) for pod in found) < 4:
        return wrong(f"train holds {sum(_held(lab, pod) for pod in found)} GPUs; it is to have four.")
    return passed(f"train runs with four GPUs, serve with {len(serve)} replicas, and the quota is still 8.")


def infer(lab: Lab) -> Answer:
    """Four pods of infer run on the A100s with a GPU each, and still warm up on a GPU."""
    if trouble := _not_open(lab, "infer"):
        return trouble
    template, trouble = _template(lab, "infer")
    if trouble:
        return trouble
    warm = [one for one in template.get("initContainers") or [] if one["name"] == "warm-up"]
    if not warm or not _limit(warm[0]):
        return wrong("warm-up is gone or has no GPU. It converts the model on a GPU before the service starts: without it infer does not "
                     "come up.")
    if _limit(template["containers"][0]) != 1:
        return wrong(f"The container main asks for {_limit(template['containers'][0])} GPUs. One each, that was right.")
    if (lab.get("deployment/infer")["spec"]["replicas"]) < 4:
        return wrong("Four replicas are wanted.", "kubectl scale deployment infer --replicas 4")
    if others := [pod["spec"]["nodeName"] for pod in _running(lab, "infer") if _labels(lab, pod).get(POOL) != "a100"]:
        return wrong(f"A pod of infer runs on {others[0]}. They are to stay on the A100s: there is room for all four.")
    found = _there(lab, "infer")
    if trouble := _waiting(lab, found):
        return trouble
    if len(found) != 4:
        return not_yet(f"{len(found)} pods of infer are there, 4 are wanted.", settling=True)
    return passed(f"Four pods of infer run, and the scheduler counts {sum(map(pods.gpus, found))} of 8 GPUs for them.")


def render(lab: Lab) -> Answer:
    """Both pods of render run with a GPU and 12 CPUs; the collector is on every GPU node and asks for what it uses."""
    if trouble := _not_open(lab, "render"):
        return trouble
    daemon = lab.get("daemonset/collector")
    nodes = {node["metadata"]["name"] for node in lab.place.list("node", "nvidia.com/gpu.present=true")}
    if daemon is None:
        return wrong("collector is gone. It is not yours, and others read what it collects.", 'board.open("render") begins anew')
    template, trouble = _template(lab, "render")
    if trouble:
        return trouble
    if _cpu(template["containers"][0]) < 12:
        return wrong(f"render asks for {_cpu(template['containers'][0]):g} CPUs. It needs 12 for each pod; it had them until last week.")
    asked = _cpu(daemon["spec"]["template"]["spec"]["containers"][0])
    if asked < 0.3:
        return wrong(f"collector asks for {asked:g} CPUs and uses 0.3: on a busy node it would starve.")
    covered = {pod["spec"]["nodeName"] for pod in _running(lab, "collector")}
    if missing := sorted(nodes - covered):
        status = daemon["status"]
        if status.get("desiredNumberScheduled", 0) < len(nodes) and status.get("observedGeneration") == daemon["metadata"]["generation"]:
            return wrong(f"collector does not run on {', '.join(missing)}. It belongs on every GPU node.")
        return not_yet(f"collector does not run on {', '.join(missing)} yet.", settling=True)
    found = _there(lab, "render")
    if trouble := _waiting(lab, found):
        return trouble
    if len(found) != 2:
        return not_yet(f"{len(found)} pods of render are there, 2 are wanted.", settling=True)
    if any(pod["spec"]["nodeName"] != "t4-0" for pod in found):
        return wrong("A pod of render runs on another machine. Both fit on t4-0.")
    return passed(f"Both pods of render run on t4-0 with 12 CPUs each; collector asks for {asked:g} on every GPU node.")


def finetune(lab: Lab) -> Answer:
    """finetune has eight H100s; serve was not touched, and the idle Deployment is still there, scaled down."""
    if trouble := _not_open(lab, "finetune"):
        return trouble
    serve = _running(lab, "serve")
    if len(serve) < 2:
        return wrong(f"{len(serve)} replicas of serve run. serve works for its GPUs: two replicas are needed.",
                     "kubectl scale deployment serve --replicas 2")
    if lab.get("deployment/sandbox") is None:
        return wrong("sandbox is deleted: its owners have to build it anew. Its GPUs were wanted, not its definition.",
                     'board.open("finetune") begins anew; scaling gives GPUs back and keeps the rest')
    _, trouble = _template(lab, "finetune")
    if trouble:
        return trouble
    found = _there(lab, "finetune")
    if trouble := _waiting(lab, found):
        return trouble
    held = sum(_held(lab, pod) for pod in found)
    if held < 8:
        return not_yet(f"finetune holds {held} GPUs; it needs eight.", settling=True)
    if any(_labels(lab, pod).get(POOL) != "h100" for pod in found):
        return wrong("finetune runs on other GPUs than H100s.")
    return passed(f"finetune runs with eight H100s, serve with {len(serve)} replicas, and sandbox can be scaled up again by its owners.")


# -- looking


def _not_open(lab: Lab, ticket: str) -> Answer | None:
    if lab.get("node/t4-0") is None:
        return broken("t4-0 is gone.", f"orchlab reset {lab.number}")
    now = lab.load("desk").opened(lab)
    return None if now and now.id == ticket else not_yet(f"The ticket {ticket} is not open.", f'board.open("{ticket}") opens it')


def _there(lab: Lab, app: str) -> list[dict]:
    """Pods labelled app=`app` that count: not those that are going or have ended."""
    return [pod for pod in lab.pods(f"app={app}")
            if "deletionTimestamp" not in pod["metadata"] and pods.phase(pod) in ("Pending", "Running")]


def _running(lab: Lab, app: str) -> list[dict]:
    return lab.load("desk").running(lab, app)


def _waiting(lab: Lab, found: list[dict]) -> Answer | None:
    """A pod that does not run yet. What has a node settles by itself; what the scheduler has refused may, once somebody has changed
    something."""
    for pod in found:
        if pods.phase(pod) != "Running" or pods.condition(pod, "Ready").get("status") != "True":
            return not_yet(pods.sentence(pod), settling=not pods.unschedulable(pod) or lab.load("desk").touched(lab))
    return None


def _template(lab: Lab, name: str) -> tuple[dict, Answer | None]:
    """The pod spec of a Deployment, and an answer if it is not there or its controller is not done with its newest form."""
    found = lab.get(f"deployment/{name}")
    if found is None:
        return {}, not_yet(f"There is no Deployment {name}.", f'board.open("{name}") begins anew')
    seen = (found.get("status") or {}).get("observedGeneration") == found["metadata"]["generation"]
    return found["spec"]["template"]["spec"], None if seen else not_yet(f"The controller has not seen the new {name} yet.", settling=True)


def _labels(lab: Lab, pod: dict) -> dict:
    return lab.get(f"node/{pod['spec']['nodeName']}")["metadata"]["labels"]


def _held(lab: Lab, pod: dict) -> int:
    return len(lab.load("desk").held(pod))


def _limit(container: dict) -> int:
    return int(((container.get("resources") or {}).get("limits") or {}).get(GPU, 0))


def _cpu(container: dict) -> float:
    asked = str(((container.get("resources") or {}).get("requests") or {}).get("cpu")
                or ((container.get("resources") or {}).get("limits") or {}).get("cpu") or 0)
    return float(asked[:-1]) / 1000 if asked.endswith("m") else float(asked)
