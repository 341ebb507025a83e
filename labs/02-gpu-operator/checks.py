"""What the exercises of lab 02 ask for, looked at in the live cluster."""

from __future__ import annotations

from orchlab.course import Answer, Lab, not_yet, passed, wrong
from orchlab.kube.objects import is_ready

GPU = "nvidia.com/gpu"
PLUGIN, DRIVER = "nvidia-device-plugin-daemonset", "nvidia-driver-daemonset"
DEPLOY_PLUGIN, DEPLOY_DRIVER, OPERANDS = (f"nvidia.com/gpu.deploy.{part}" for part in ("device-plugin", "driver", "operands"))
ONLY = "h100"
SICK, XID, NOTE = "h100-2", "74", "lab-02/xid"


def one_pool(lab: Lab) -> Answer:
    """The nodes of one pool advertise their GPUs, no others do, and all of them keep their driver."""
    policy = lab.get("clusterpolicy/cluster-policy")
    if policy is None:
        return wrong("There is no ClusterPolicy, so nobody sees to any driver.", "apply the one of section 3 again")
    if not policy["spec"].get("devicePlugin", {}).get("enabled", True):
        return wrong("ClusterPolicy has the device plugin switched off: no node of the cluster can advertise GPUs.",
                     "switch it on again; what you want is a matter of some nodes, not of all")
    nodes = {node["metadata"]["name"]: node for node in lab.place.list("node")}
    fleet = {node.name: node for node in lab.env.fleet.nodes() if node.gpus}
    if gone := sorted(fleet.keys() - nodes.keys()):
        return wrong(f"{', '.join(gone)} is gone. A node that was deleted is no node without GPUs.", f"orchlab reset {lab.number}")
    if cordoned := [name for name in fleet if nodes[name]["spec"].get("unschedulable")]:
        return wrong(f"{cordoned[0]} is cordoned. That keeps new pods away, but the node advertises its GPUs all the same.",
                     f"kubectl uncordon {' '.join(cordoned)}")
    if doomed := [name for name in fleet if "false" in (_label(nodes[name], OPERANDS), _label(nodes[name], DEPLOY_DRIVER))]:
        return wrong(f"The labels of {', '.join(doomed)} take the driver away as well. Only the advertisement of the GPUs is to go.")
    ready = _ready(lab, DRIVER)
    if bare := [name for name in fleet if name not in ready]:
        return not_yet(f"The driver does not run on {', '.join(bare)}.", settling=True)
    for name, wanted in fleet.items():
        offered, off = _allocatable(nodes[name]), _label(nodes[name], DEPLOY_PLUGIN) != "true"
        if wanted.pool == ONLY and offered != wanted.gpus:
            return not_yet(f"{name} is of the pool {ONLY} and offers {offered} of its {wanted.gpus} GPUs.", settling=not off)
        if wanted.pool != ONLY and offered:
            return not_yet(f"{name} still advertises {offered} GPUs.", settling=off)
    return passed(f"Only {', '.join(name for name in fleet if fleet[name].pool == ONLY)} advertise GPUs, and the driver runs on all "
                  f"{len(fleet)} nodes.")


def zero_of_eight(lab: Lab) -> Answer:
    """The GPUs of the sick node are allocatable again, and a label of the node names the XID."""
    if not lab.broken_for("zero-of-eight"):
        return not_yet("Nothing is broken yet.", 'lab.start("zero-of-eight")')
    node = lab.get(f"node/{SICK}")
    if node is None:
        return wrong(f"{SICK} is gone.", f"orchlab reset {lab.number}")
    offered, found = _allocatable(node), _label(node, NOTE)
    if found and found != XID:
        return wrong(f"The label says XID {found}. That is not what the device plugin of {SICK} had logged.")
    if not offered:
        if _label(node, DEPLOY_PLUGIN) != "true":
            return wrong(f"{SICK} has no device plugin any more. Capacity will follow allocatable to 0.")
        known = f"XID {XID} it is. " if found else ""
        return not_yet(f"{known}{SICK} still offers 0 of its 8 GPUs.", settling=SICK not in _ready(lab, PLUGIN))
    if offered != 8:
        return not_yet(f"{SICK} offers {offered} of its 8 GPUs.", settling=True)
    if not found:
        return not_yet(f"The GPUs are back. Which XID was it? Note it: kubectl label node {SICK} {NOTE}=NUMBER",
                       'is the log gone with the pod? lab.reset(), then lab.start("zero-of-eight") again')
    return passed(f"XID {XID} on all GPUs of {SICK}; its device plugin was started anew, and the node offers 8.")


def _allocatable(node: dict) -> int:
    return int(node["status"]["allocatable"].get(GPU, 0))


def _label(node: dict, key: str) -> str:
    return (node["metadata"].get("labels") or {}).get(key, "")


def _ready(lab: Lab, app: str) -> set[str]:
    """Nodes on which an operand's pod is ready."""
    found = lab.place.list("pod", f"app={app}", "gpu-operator")
    return {pod["spec"].get("nodeName", "") for pod in found if "deletionTimestamp" not in pod["metadata"] and is_ready(pod)}
