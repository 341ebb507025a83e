"""What the exercises of lab 01 ask for, looked at in the live cluster."""

from __future__ import annotations

from orchlab.course import Answer, Lab, not_yet, passed, pods, wrong

PRODUCT = "nvidia.com/gpu.product"
AGAIN = '%kubectl delete pod by-hand --now, then lab.start("by-hand")'
RECREATE = "a pod's spec is fixed: kubectl delete pod {name}, then apply it anew"


def by_hand(lab: Lab) -> Answer:
    """The pod by-hand, which asks for a scheduler called `you`, runs on an A100 node because somebody bound it there."""
    pod = lab.get("pod/by-hand")
    if pod is None:
        return not_yet("There is no pod called by-hand.", 'lab.start("by-hand") makes it')
    if pod["spec"]["schedulerName"] != "you":
        return wrong(f"This by-hand asks for the scheduler {pod['spec']['schedulerName']}, so it wasn't you who placed it.",
                     AGAIN)
    node = pod["spec"].get("nodeName")
    if not node:
        return not_yet("by-hand has no node yet: nobody has bound it.")
    if not pods.condition(pod, "PodScheduled"):
        return wrong("by-hand was created with a nodeName in its spec. That goes round scheduling; a scheduler binds.",
                     AGAIN)
    product = _product(lab, node)
    if "A100" not in product:
        held = "no GPU" if not product else product
        return wrong(
            f"by-hand is bound to {node}, which has {held}. A Binding is not checked against resources, labels or taints: that is a "
            "scheduler's work.",
            f"a bound pod stays bound: {AGAIN}; then bind it to an A100 node",
        )
    if pods.phase(pod) not in ("Running", "Succeeded"):
        return not_yet(pods.sentence(pod), settling=pods.phase(pod) == "Pending")
    return passed(f"{pods.sentence(pod)}. You were its scheduler.")


def two_gpus(lab: Lab) -> Answer:
    """The pod mine has one container that holds two A100s, placed by the default scheduler."""
    pod = lab.get("pod/mine")
    if pod is None:
        return not_yet("There is no pod called mine.")
    asked = [pods.gpus({"spec": {"containers": [container]}}) for container in pod["spec"]["containers"]]
    if sum(asked) == 0:
        return wrong("mine asks for no GPU at all.", RECREATE.format(name="mine"))
    if max(asked) != 2:
        split = (
            f"its containers ask for {' and '.join(map(str, asked))}: no container sees two"
            if sum(asked) == 2
            else f"it asks for {sum(asked)}"
        )
        return wrong(f"mine should give one container two GPUs; {split}.", RECREATE.format(name="mine"))
    if words := pods.unschedulable(pod):
        return not_yet(
            f"mine is pending. The scheduler says: {words}", "find the nodes you meant among those words, and what keeps the pod from them"
        )
    node = pod["spec"].get("nodeName")
    if not node or pods.phase(pod) == "Pending":
        return not_yet(pods.sentence(pod), settling=True)
    if not pods.condition(pod, "PodScheduled"):
        return wrong(f"mine names its node ({node}) itself. No scheduler has looked whether there is room.", RECREATE.format(name="mine"))
    product = _product(lab, node)
    if "A100" not in product:
        return wrong(
            f"mine runs on {node}, which carries {product}. It has to be sure to get A100s, not lucky.", RECREATE.format(name="mine")
        )
    if not _is_steered(pod):
        return wrong(f"mine runs on {node} by luck: nothing in it asks for an A100 node.", RECREATE.format(name="mine"))
    held = max((len(ids) for ids in pods.devices(pod).values()), default=0)
    if pods.phase(pod) not in ("Running", "Succeeded") or held != 2:
        return not_yet(f"{pods.sentence(pod)}; it holds {held} devices.", settling=True)
    return passed(f"{pods.sentence(pod)}. One container holds two A100s.")


def _product(lab: Lab, node: str) -> str:
    found = lab.get(f"node/{node}") or {"metadata": {}}
    return (found["metadata"].get("labels") or {}).get(PRODUCT, "")


def _is_steered(pod: dict) -> bool:
    """Whether the pod itself narrows down the nodes: by a selector, or by required node affinity."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return bool(pod["spec"].get("nodeSelector") or affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
