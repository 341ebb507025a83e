"""nvidia-smi of a node or of a pod of an environment."""

from __future__ import annotations

from orchlab.environment import Environment
from orchlab.errors import BadInput
from orchlab.gpu_operator import readings
from orchlab.gpu_operator.readings import Readings
from orchlab.gpus import smi

HEADER = "SIMULATED by orchlab: there is no GPU. What holds what is the cluster's; utilisation, memory, power and heat are made up."


def seen(env: Environment, target: str, namespace: str = "default") -> Readings:
    """The GPUs that a node has, or that a pod (NAME or NAMESPACE/NAME) holds. Raises BadInput when there is neither, ApiError,
    EnvironmentBroken."""
    client = env.client()
    node = None if "/" in target else client.find(f"/api/v1/nodes/{target}")
    if node is not None:
        found, _ = client.list("/api/v1/pods", fieldSelector=f"spec.nodeName={target}")
        return readings.of_node(env.record.id, node, found)
    space, _, name = target.rpartition("/")
    space = space or namespace
    pod = client.find(f"/api/v1/namespaces/{space}/pods/{name}")
    if pod is None:
        raise BadInput("target", target, f"is neither a node nor a pod in namespace {space}", "kubectl get nodes; kubectl get pods -A")
    where = pod["spec"].get("nodeName")
    if not where or pod["status"].get("phase") != "Running":
        raise BadInput("target", target, f"is {pod['status'].get('phase', 'Pending')}: nothing runs in it", "kubectl describe pod")
    return readings.of_pod(readings.of_node(env.record.id, client.get(f"/api/v1/nodes/{where}"), [pod]), space, name)


def text(env: Environment, target: str, namespace: str = "default", listing: bool = False, lgip: bool = False, lgi: bool = False,
         query: str | None = None) -> str:
    """What nvidia-smi prints there, with a line before it that says what it is. One of the options at most. Raises as `seen` does, and
    BadInput for an unknown field of a query."""
    if sum((listing, lgip, lgi, query is not None)) > 1:
        raise BadInput("options", "several", "can't be combined", "give one of -L, --lgip, --lgi and --query-gpu")
    found = seen(env, target, namespace)
    if listing:
        return smi.listing(found.inventory, header=HEADER)
    if lgip:
        return smi.instance_profiles(found.inventory, header=HEADER)
    if lgi:
        return smi.instances(found.inventory, header=HEADER)
    if query is not None:
        return smi.query(found.inventory, query, found.holders, found.loads, header=HEADER)
    return smi.table(found.inventory, found.holders, found.loads, header=HEADER)
