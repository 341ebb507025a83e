"""What the exercises of lab 05 ask for, looked at in the live cluster: what pods hold, and what nodes advertise."""

from __future__ import annotations

from orchlab.course import Answer, Lab, not_yet, passed, pods, wrong
from orchlab.gpus import mig
from orchlab.gpus.packing import fewest_gpus
from orchlab.gpus.inventory import Gpu, Instance

DEMAND = {"3g.20gb": 3, "2g.10gb": 4, "1g.5gb": 4}
REPLICA = "::"


def balanced(lab: Lab) -> Answer:
    """The pods small, middle and large run on a100-1, each in a MIG instance of its size."""
    wanted = {"small": "1g.5gb", "middle": "2g.10gb", "large": "3g.20gb"}
    found = {pod["metadata"]["name"]: pod for pod in lab.pods()}
    if missing := [name for name in wanted if name not in found]:
        return not_yet(f"There is no pod called {missing[0]}.", 'lab.start("balanced") makes the three')
    for name, profile in wanted.items():
        if pods.gpus(found[name], f"nvidia.com/mig-{profile}") != 1:
            return wrong(f"{name} asks for something else than one nvidia.com/mig-{profile}.", 'delete it and run lab.start("balanced")')
    pending = [found[name] for name in wanted if pods.phase(found[name]) != "Running"]
    if not pending:
        return passed("small, middle and large run on a100-1, each in an instance of its own size.")
    busy, crash = _operator(lab, "a100-1")
    if busy:
        return not_yet(f"a100-1: {busy}.", settling=True)
    if crash:
        return not_yet(f"{pending[0]['metadata']['name']} waits. The device plugin of a100-1 says: {crash}")
    made = {one.profile for gpu in _gpus(lab, "a100-1") for one in gpu.instances}
    if made and (lacking := [profile for profile in wanted.values() if profile not in made]):
        return wrong(f"a100-1 has no {lacking[0]}: its layout is not all-balanced.", "label it nvidia.com/mig.config=all-balanced")
    return not_yet(pods.sentence(pending[0]), settling=bool(made))


def seven(lab: Lab) -> Answer:
    """Seven pods labelled app=seven hold a MIG instance each, all on one GPU of a100-0, whose other GPUs stay whole."""
    found, answer = _running(lab, "app=seven", 7)
    if answer:
        return answer
    devices = [device for pod in found for device in _held(pod)]
    where = _where(lab, "a100-0")
    if any(REPLICA in device for device in devices):
        way = _strategy(lab, "a100-0")
        return wrong(f"The seven share a GPU by {way}: they are not isolated. A fault of one, or its hunger for memory or time, reaches "
                     "the others.")
    if not all(device in where for device in devices) or any(where[device][1] is None for device in devices):
        return wrong("Not every one of the seven holds a MIG instance on a100-0; some hold whole GPUs or sit on another node.")
    if len({where[device][0].index for device in devices}) > 1:
        return wrong("The seven are spread over several GPUs. One A100 is enough for them.")
    mine = where[devices[0]][0].index
    if others := [f"GPU {gpu.index}" for gpu in _gpus(lab, "a100-0") if gpu.index != mine and gpu.mig_enabled]:
        listed = " and ".join([", ".join(others[:-1]), others[-1]] if others[1:] else others)
        return wrong(f"The seven are isolated on GPU {mine}, but {listed} of a100-0 are cut up as well. They were to stay whole.",
                     "a configuration of your own can name devices")
    return passed(f"Seven tenants on GPU {mine} of a100-0, each in an instance of its own; the other three GPUs are whole.")


def training(lab: Lab) -> Answer:
    """On one GPU of a100-1: train in an instance with at least 54 SMs, three pods labelled app=notebooks in one each beside it."""
    pod = lab.get("pod/train")
    if pod is None:
        return not_yet("There is no pod called train.")
    if pods.phase(pod) != "Running":
        return _waiting(lab, pod, "a100-1")
    notebooks, answer = _running(lab, "app=notebooks", 3)
    if answer:
        return answer
    where, held = _where(lab, "a100-1"), _held(pod)
    gpu, instance = where.get(held[0].partition(REPLICA)[0], (None, None)) if held else (None, None)
    if gpu is None or instance is None or len(held) != 1:
        return wrong("train does not hold exactly one MIG instance on a100-1: it is not to have the whole GPU, nor a share of it.")
    sms = gpu.profile(instance).sms
    if sms * 2 < gpu.figures.sms:
        return wrong(f"train's instance {instance.profile} has {sms} SMs; half of the GPU's {gpu.figures.sms} were asked for.")
    devices = [device for notebook in notebooks for device in _held(notebook)]
    if any(device not in where or where[device][1] is None or where[device][0].index != gpu.index for device in devices):
        return wrong(f"Not every notebook has an instance of its own on GPU {gpu.index}, beside train.")
    return passed(f"GPU {gpu.index} of a100-1: {mig.text(_placements(gpu))}. train has {instance.profile}, each notebook an instance of "
                  "its own.")


def twice(lab: Lab) -> Answer:
    """a100-1 stays shared, its plugin refuses double's request for two replicas, the six tenants run, and fast has a GPU to itself."""
    double, fast = lab.get("pod/double"), lab.get("pod/fast")
    if double is None:
        return not_yet("There is no pod called double.", 'lab.start("twice") makes it')
    if pods.gpus(double) != 2 or double["spec"].get("nodeName", "a100-1") != "a100-1":
        return wrong("double no longer asks for two nvidia.com/gpu on a100-1.", 'delete it and run lab.start("twice")')
    busy, _ = _operator(lab, "a100-1")
    if busy:
        return not_yet(f"a100-1: {busy}.", settling=True)
    if _strategy(lab, "a100-1") != "time-slicing":
        return not_yet("a100-1 is not shared by time-slicing: the six tenants need it.")
    if pods.phase(double) == "Running":
        return not_yet(f"double still runs: it holds {len(_held(double))} devices, so it was not refused.",
                       "a pod that runs stays admitted: make it anew")
    if pods.phase(double) != "Failed":
        return not_yet(pods.sentence(double), settling=bool(double["spec"].get("nodeName")))
    if "maximum request size for shared resources is 1" not in double["status"].get("message", ""):
        return wrong(f"double was refused, but for another reason: {double['status'].get('message', '')}")
    six, answer = _running(lab, "app=six", 6)
    if answer:
        return answer
    if fast is None:
        return not_yet("double is refused as it should be, and the six run. Now the team needs a pod called fast.")
    if pods.phase(fast) != "Running":
        return _waiting(lab, fast, fast["spec"].get("nodeName") or "a100-0")
    held = _held(fast)
    if any(REPLICA in device for device in held):
        return wrong("fast holds a replica: how fast it is depends on who else is on that GPU.",
                     "a GPU that is not shared, on another node")
    if len(held) != 1 or not held[0].startswith("GPU-"):
        return wrong(f"fast holds {len(held)} devices; it was to have one whole GPU.")
    return passed(f"double is refused ({double['status']['reason']}), the six tenants run, and fast has a GPU of "
                  f"{fast['spec']['nodeName']} to itself.")


def packing(lab: Lab) -> Answer:
    """a100-0 advertises the demanded instances, and no more GPUs are cut up than it takes; the optimum is computed."""
    busy, crash = _operator(lab, "a100-0")
    if busy:
        return not_yet(f"a100-0: {busy}.", settling=True)
    gpus, offered = _gpus(lab, "a100-0"), lab.load("parts").resources(lab.get("node/a100-0"))
    made = [one.profile for gpu in gpus for one in gpu.instances]
    if short := [f"{count - made.count(profile)} x {profile}" for profile, count in DEMAND.items() if made.count(profile) < count]:
        return not_yet(f"a100-0 has {mig.text(place for gpu in gpus for place in _placements(gpu))}; still missing: {', '.join(short)}.")
    if any(offered.get(f"nvidia.com/mig-{profile}", 0) < count for profile, count in DEMAND.items()):
        return not_yet(f"The instances are there, but nobody can ask for them by size: a100-0 advertises {offered}. {crash}".rstrip())
    taken, best = sum(gpu.mig_enabled for gpu in gpus), len(fewest_gpus(gpus[0].figures, DEMAND))
    if taken > best:
        return wrong(f"The demand is met, but it takes {taken} GPUs; {best} are enough.", "look which GPUs have slices that nobody can use")
    return passed(f"{', '.join(f'{count} x {profile}' for profile, count in DEMAND.items())} on {taken} GPUs, the fewest possible.")


# -- looking


def _gpus(lab: Lab, node: str) -> list[Gpu]:
    return lab.load("parts").inventory(lab, node).gpus


def _placements(gpu: Gpu) -> list[mig.Placement]:
    return [mig.Placement(one.start, one.size, one.profile) for one in gpu.instances]


def _where(lab: Lab, node: str) -> dict[str, tuple[Gpu, Instance | None]]:
    """The GPU, and the MIG instance or None, of every device of the node."""
    gpus = _gpus(lab, node)
    return {gpu.uuid: (gpu, None) for gpu in gpus} | {one.uuid: (gpu, one) for gpu in gpus for one in gpu.instances}


def _held(pod: dict) -> list[str]:
    return [device for ids in pods.devices(pod).values() for device in ids]


def _strategy(lab: Lab, node: str) -> str:
    return lab.get(f"node/{node}")["metadata"]["labels"].get("nvidia.com/gpu.sharing-strategy", "none")


def _operator(lab: Lab, node: str) -> tuple[str, str]:
    """(what the operator still has to do on the node or "", the last line of its device plugin if that cannot run)."""
    busy, _, crash = lab.load("parts").unfinished(lab, node)
    return busy, crash


def _running(lab: Lab, selector: str, count: int) -> tuple[list[dict], Answer | None]:
    found = [pod for pod in lab.pods(selector) if pods.phase(pod) != "Failed" and not pod["metadata"].get("deletionTimestamp")]
    if len(found) != count:
        return found, not_yet(f"There are {len(found)} pods labelled {selector}, not {count}.", settling=0 < len(found) < count)
    waiting = [pod for pod in found if pods.phase(pod) != "Running"]
    if waiting:
        node = (waiting[0]["spec"].get("nodeSelector") or {}).get("kubernetes.io/hostname", "a100-0")
        return found, _waiting(lab, waiting[0], node)
    return found, None


def _waiting(lab: Lab, pod: dict, node: str) -> Answer:
    """A pod that does not run yet: settling as long as the operator is at work on the node where it may go."""
    busy, crash = _operator(lab, node)
    if busy:
        return not_yet(f"{node}: {busy}.", settling=True)
    said = f" The device plugin of {node} says: {crash}" if crash else ""
    return not_yet(pods.sentence(pod) + said, settling=not crash)
