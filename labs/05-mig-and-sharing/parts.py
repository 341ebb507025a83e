"""What the operator has made of a node, who holds which device, and nvidia-smi of a simulated node."""

from __future__ import annotations

from collections import Counter

from orchlab.course import Lab, Text, pods
from orchlab.gpu_operator import devices, gates, names, operands, readings
from orchlab.gpu_operator.policy import Policy
from orchlab.gpus import mig, smi
from orchlab.gpus.inventory import Inventory
from orchlab.simulator.inventory import REPLICA, registered
from orchlab.simulator.plugins import INVENTORY
from orchlab.simulator.pods import CRASH, INIT_ERROR, LOG

LABELS = ("nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.replicas", "nvidia.com/gpu.sharing-strategy",
          "nvidia.com/mig.strategy", names.MIG_CONFIG, names.MIG_STATE, names.PLUGIN_CONFIG)
POLICY = f"clusterpolicy/{names.POLICY}"


def resources(node: dict) -> dict[str, int]:
    """The node's allocatable GPU resources, by name."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {key: int(value) for key, value in sorted(allocatable.items()) if key.startswith(names.PREFIX)}


def node(lab: Lab, name: str, seconds: float = 30) -> Text:
    """Waits until the operator has done what labels and ClusterPolicy ask of a node, then says what the node advertises. Raises
    TimeLimitReached."""
    found, crash = settled(lab, name, seconds)
    labels = found["metadata"]["labels"]
    lines = [f"{name} advertises " + (", ".join(f"{key}: {count}" for key, count in resources(found).items() if count) or "no GPU at all")]
    width = max(map(len, LABELS))
    lines += [f"  {key:<{width}}  {labels[key]}" for key in LABELS if key in labels]
    return Text("\n".join([*lines, *([f"  log of the device plugin: {crash}"] if crash else [])]))


def settled(lab: Lab, name: str, seconds: float = 30) -> tuple[dict, str]:
    """The node once the operator is done with it, and the last line of its device plugin if that cannot run. Raises TimeLimitReached."""
    last = ""

    def look() -> tuple[dict, str] | None:
        nonlocal last
        last, found, crash = unfinished(lab, name)
        return None if last else (found, crash)

    return lab.place.until(look, seconds, f"the operator was not done with {name}", seen=lambda: last)


def unfinished(lab: Lab, name: str) -> tuple[str, dict, str]:
    """(what is still to come or "", the node, the error of its device plugin or "")."""
    # The pods first: what the node says then is at least as new.
    mine = [pod for pod in lab.place.list("pod", namespace=names.NAMESPACE) if pod["spec"].get("nodeName") == name]
    policy, found = Policy.of(lab.get(POLICY) or {"metadata": {"name": "", "uid": ""}}), lab.get(f"node/{name}")
    labels, notes = found["metadata"]["labels"], found["metadata"].get("annotations") or {}
    state, wanted = devices.State.of(notes.get(names.STATE, "")), labels.get(names.MIG_CONFIG)
    managers = [one.instance for one in _of(mine, operands.MIG_DS) if not one.deleting]
    if wanted and (len(managers) != 1 or state.mig_done != f"{managers[0]} {wanted}"):
        return f"MIG configuration {wanted}: {labels.get(names.MIG_STATE)}", found, ""
    if names.PAUSED in labels.values():
        return "operands are paused", found, ""
    config_map, default = policy.plugin_config
    chosen = (labels.get(names.PLUGIN_CONFIG) or default) if config_map else ""
    crash = ""
    for name_of, loaded in ((operands.PLUGIN_DS, state.plugin), (operands.GFD_DS, state.gfd)):
        running = _of(mine, name_of)
        fresh = [pod for pod in running if not pod.deleting and dict(pod.env).get("MIG_STRATEGY") == policy.mig_strategy
                 and pod.config_map == config_map]
        if len(running) != 1 or not fresh:
            return f"{name_of} is being replaced", found, ""
        if error := fresh[0].note(INIT_ERROR):
            return "", found, error
        if fresh[0].note(CRASH):
            crash = crash or (fresh[0].note(LOG) or "").splitlines()[-1]
        elif not fresh[0].runs or loaded.name != chosen or loaded.instance != fresh[0].instance:
            return f"{name_of} is starting", found, ""
    offered = {key: len(one.ids) - len(one.unhealthy) for key, one in registered(notes.get(INVENTORY, "")).items()}
    if {key: count for key, count in resources(found).items() if count} != {key: count for key, count in offered.items() if count}:
        return "the kubelet has not reported its devices yet", found, ""
    if not crash and not offered:
        return "the device plugin has registered nothing yet", found, ""
    return "", found, crash


def _of(found: list[dict], daemonset: str) -> list[gates.OperandPod]:
    return [gates.of(pod) for pod in found if any(owner["name"] == daemonset for owner in pod["metadata"].get("ownerReferences") or [])]


def from_the_start(lab: Lab, seconds: float = 60) -> Text:
    """Both A100 nodes whole and not shared, strategy single, nothing of the lab's running: for those who come a second time."""
    lab.kubectl("delete", "deployments,pods,resourcequotas", "--all", "--now")
    unnamed = {"config": {"name": ""}}
    lab.client.patch(f"{names.POLICIES}/{names.POLICY}",
                     {"spec": {"mig": {"strategy": "single"}, "migManager": unnamed, "devicePlugin": unnamed}})
    for name in ("a100-0", "a100-1"):
        lab.client.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {names.MIG_CONFIG: "all-disabled", names.PLUGIN_CONFIG: None}}})
    return Text("\n".join(node(lab, name, seconds).splitlines()[0] for name in ("a100-0", "a100-1")))


def inventory(lab: Lab, name: str) -> Inventory:
    """The node's GPUs with their MIG instances, as the simulated driver has them."""
    return readings.of_node(lab.env.record.id, lab.get(f"node/{name}"), lab.place.list("pod", namespace="")).inventory


def nvidia_smi(lab: Lab, name: str) -> Text:
    """`nvidia-smi -L` on the node. Simulated."""
    return Text(smi.listing(inventory(lab, name)).rstrip())


def manager_log(lab: Lab, name: str) -> Text:
    """The log of the MIG manager on a node, through kubectl."""
    for pod in lab.place.list("pod", f"app={operands.MIG_DS}", names.NAMESPACE):
        if pod["spec"].get("nodeName") == name:
            return lab.kubectl("logs", "-n", names.NAMESPACE, pod["metadata"]["name"])
    return Text(f"no MIG manager runs on {name}")


def holders(lab: Lab, selector: str = "") -> dict[str, list[str]]:
    """Running pods of the lab by the device (UUID of a GPU or MIG instance) that they hold."""
    found: dict[str, list[str]] = {}
    for pod in lab.pods(selector):
        if pods.phase(pod) == "Running":
            for ids in pods.devices(pod).values():
                for device in dict.fromkeys(one.partition(REPLICA)[0] for one in ids):
                    found.setdefault(device, []).append(pod["metadata"]["name"])
    return found


def tenants(lab: Lab, resource: str, count: int = 20, node: str = "a100-1", seconds: float = 40) -> Text:
    """`count` tenants, each a pod that asks for one `resource` on `node`; who runs, who waits and why, and who is on which GPU."""
    path = f"/api/v1/namespaces/{lab.namespace}/pods"
    lab.client.delete(path, labelSelector="app=tenant", gracePeriodSeconds=0)
    lab.until(lambda: not lab.pods("app=tenant"), seconds, "the former tenants did not go")
    for number in range(count):
        lab.client.create(path, _tenant(number, resource, node))
    lab.until(lambda: all(pods.settled(pod) for pod in lab.pods("app=tenant")), seconds, "not every tenant was settled")
    return sharing(lab, node)


def leave(lab: Lab, seconds: float = 20) -> Text:
    """All pods of the lab that nobody would make anew are deleted; says how many."""
    count = len(lab.pods())
    lab.client.delete(f"/api/v1/namespaces/{lab.namespace}/pods", gracePeriodSeconds=0)
    lab.until(lambda: not lab.pods(), seconds, "the pods did not go")
    return Text(f"{count} pods deleted")


def _tenant(number: int, resource: str, node: str) -> dict:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"tenant-{number}", "labels": {"app": "tenant"}},
            "spec": {"nodeSelector": {"kubernetes.io/hostname": node},
                     "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                     "containers": [{"name": "main", "image": "registry.example/serve:1", "resources": {"limits": {resource: 1}}}]}}


def sharing(lab: Lab, node: str) -> Text:
    """How many tenants run, how many wait and why, and per GPU of the node which tenants are on it."""
    found = lab.pods("app=tenant")
    phases = Counter(pods.phase(pod) for pod in found)
    lines = [f"{len(found)} tenants: " + ", ".join(f"{number} {phase}" for phase, number in sorted(phases.items(), reverse=True))]
    reasons = Counter(words.partition(" preemption:")[0] for pod in found if (words := pods.unschedulable(pod)))
    lines += [f"  {number} x {words}" for words, number in sorted(reasons.items())]
    on = holders(lab, "app=tenant")
    for gpu in inventory(lab, node).gpus:
        if gpu.mig_enabled:
            taken = [instance for instance in gpu.instances if instance.uuid in on]
            counts = Counter(instance.profile for instance in gpu.instances)
            made = " + ".join(f"{number} x {profile}" for profile, number in sorted(counts.items())) or "no instances"
            lines.append(f"  GPU {gpu.index}: {made}; " + (f"{len(taken)} tenants, an instance each" if taken else "no tenant"))
        else:
            here = on.get(gpu.uuid, [])
            lines.append(f"  GPU {gpu.index}: {len(here)} tenant{'' if len(here) == 1 else 's'}" + (" share it" if len(here) > 1 else ""))
    return Text("\n".join(lines))


def layouts(lab: Lab, name: str) -> dict[int, tuple[mig.Placement, ...]]:
    """The MIG instances of each GPU of a node; empty for one that is whole."""
    return {gpu.index: tuple(mig.Placement(one.start, one.size, one.profile) for one in gpu.instances) for gpu in inventory(lab, name).gpus}


def held(pod: dict) -> list[str]:
    """Device ids that a pod holds."""
    return [device for ids in pods.devices(pod).values() for device in ids]
