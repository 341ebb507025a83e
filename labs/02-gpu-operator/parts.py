"""Questions about the operator's work on a node: who wrote which label, what nvidia-smi and the operands' logs say, GPUs by pool."""

from __future__ import annotations

import re

from orchlab.course import Lab, Text, pods
from orchlab.errors import BadInput
from orchlab.gpu_operator import smi as printing
from orchlab.kube import kind_nodes

GPU = "nvidia.com/gpu"
# In this order: the first pattern that fits names the writer. On hardware NFD's master puts GPU Feature Discovery's labels on the node.
WRITERS = (("Node Feature Discovery", r"feature\.node\.kubernetes\.io/.+"),
           ("the operator", r"nvidia\.com/(gpu\.present|gpu\.deploy\..+|mig\.config)"),
           ("the MIG manager", r"nvidia\.com/mig\.config\.state"),
           ("GPU Feature Discovery", r"nvidia\.com/.+"))


def labels(lab: Lab, node: str, writer: str = "") -> Text:
    """A node's labels about GPUs, by who decides them; one `writer` if it is named."""
    found = (lab.get(f"node/{node}") or {"metadata": {}})["metadata"].get("labels") or {}
    groups: dict[str, list[str]] = {name: [] for name, _ in WRITERS}
    for key, value in sorted(found.items()):
        for name, pattern in WRITERS:
            if re.fullmatch(pattern, key):
                groups[name].append(f"  {key}={value}")
                break
    if writer and writer not in groups:
        raise BadInput("writer", writer, "writes no labels here", f"one of: {', '.join(groups)}")
    shown = {name: lines for name, lines in groups.items() if name == writer or not writer}
    return Text("\n".join("\n".join([f"{name}: {len(lines)}", *lines]) for name, lines in shown.items()))


def pools(lab: Lab) -> Text:
    """nvidia.com/gpu of the nodes, added up by pool."""
    lines = [f"{'pool':<6}{'nodes':>6}{'capacity':>10}{'allocatable':>13}"]
    nodes = lab.place.list("node")
    for pool in sorted({node["metadata"]["labels"].get("orchlab/pool", "-") for node in nodes}):
        mine = [node for node in nodes if node["metadata"]["labels"].get("orchlab/pool", "-") == pool]
        sums = [[node["status"][part][GPU] for node in mine if GPU in node["status"][part]] for part in ("capacity", "allocatable")]
        shown = [str(sum(map(int, numbers))) if numbers else "-" for numbers in sums]
        lines.append(f"{pool:<6}{len(mine):>6}{shown[0]:>10}{shown[1]:>13}")
    return Text("\n".join(lines))


def smi(lab: Lab, target: str, **options: object) -> Text:
    """What `orchlab smi TARGET` prints in a terminal, of a node or of a pod of this lab."""
    return Text(printing.text(lab.env, target, lab.namespace, **options).rstrip("\n"))


def log(lab: Lab, node: str, app: str) -> Text:
    """kubectl logs -n gpu-operator POD, of the operand's pod on that node."""
    found = [pod for pod in lab.place.list("pod", f"app={app}", "gpu-operator") if pod["spec"].get("nodeName") == node]
    if not found:
        return Text(f"{app} has no pod on {node}")
    return lab.kubectl("logs", "-n", "gpu-operator", found[-1]["metadata"]["name"], "-c", found[-1]["spec"]["containers"][0]["name"])


def conditions(lab: Lab, not_ready: int = 0) -> Text:
    """What the ClusterPolicy says of itself; `not_ready` waits until it names so many states. Raises TimeLimitReached."""
    found: dict = {}

    def look() -> bool:
        found.update((lab.get("clusterpolicy/cluster-policy") or {}).get("status") or {})
        named = [re.findall(r"\[(.*)\]", c["message"]) for c in found.get("conditions") or []]
        return not not_ready or any(len(states.split()) == not_ready for message in named for states in message)

    lab.until(look, what=f"ClusterPolicy did not name {not_ready} states")
    said = [f"{c['type']}={c['status']} {c['reason']}: {c['message']}".rstrip(": ") for c in found.get("conditions") or []]
    return Text("\n".join([f"state: {found.get('state', '(none)')}", *said]))


def restart_node(lab: Lab, name: str, seconds: float = 180) -> Text:
    """Restarts a node's container on the kind backend, which is to it what a reboot is to a machine; waits until its kubelet has decided
    about the pods there and its device plugin has registered again. Says what became of the lab's pods. Raises BadInput for a node without a
    kubelet, TimeLimitReached."""
    real = kind_nodes.of(lab.env)
    if name not in real.workers:
        raise BadInput("name", name, "has no kubelet here", f"one of: {', '.join(real.workers)}")
    container, gpus = real.workers[name], lab.get(f"node/{name}")["status"]["allocatable"].get(GPU, "0")
    before = _since(lab, name)
    real.cluster.docker.run("restart", container, seconds=120)

    def settled() -> bool:
        now = _since(lab, name)
        # In between the kubelet knows a pod and not its containers: phase Running, and no state. What it was before is out of date.
        decided = all(now.get(uid) not in ("", since) for uid, since in before.items() if uid in now)
        return decided and lab.get(f"node/{name}")["status"]["allocatable"].get(GPU) == gpus

    lab.until(settled, seconds, f"{name} did not come back with its {gpus} GPUs")
    return Text("\n".join([f"docker restart {container}", *map(pods.sentence, _on(lab.pods(), name))]))


def _on(found: list[dict], node: str) -> list[dict]:
    return [pod for pod in found if pod["spec"].get("nodeName") == node]


def _since(lab: Lab, node: str) -> dict[str, str]:
    """Of the lab's pods there and of the device plugin's, by uid: since when their container runs, "over" for one that has ended or was
    refused, "" while nothing is known."""
    plugin = lab.place.list("pod", "app=nvidia-device-plugin-daemonset", "gpu-operator")
    found = {}
    for pod in _on([*lab.pods(), *plugin], node):
        states = [(one.get("state") or {}) for one in pod["status"].get("containerStatuses") or [{}]]
        found[pod["metadata"]["uid"]] = "over" if pods.phase(pod) in ("Succeeded", "Failed") else (states[0].get("running") or {}).get("startedAt", "")
    return found
