"""Looks at nodes and operands for the GPU Operator's tests."""

from __future__ import annotations

from simulator_support import TOLERATED, until

from orchlab.errors import ApiError
from orchlab.kube.client import Client

SPACE = "gpu-operator"
CONFIG_MAPS, PODS = f"/api/v1/namespaces/{SPACE}/configmaps", f"/api/v1/namespaces/{SPACE}/pods"
POLICY = "/apis/nvidia.com/v1/clusterpolicies/cluster-policy"
PREFIX = "nvidia.com/"


def gpus(client: Client, node: str, part: str = "allocatable") -> dict[str, str]:
    """The node's devices by resource, without the prefix."""
    found = client.get(f"/api/v1/nodes/{node}")["status"][part]
    return {key.removeprefix(PREFIX): value for key, value in found.items() if key.startswith(PREFIX)}


def advertises(client: Client, node: str, seconds: float = 40, **wanted: str) -> None:
    """Waits until the node's allocatable is this; names with _ for - and ."""
    until(lambda: {key: value for key, value in gpus(client, node).items() if value != "0"} == wanted, seconds, f"{wanted} on {node}")


def labels(client: Client, node: str) -> dict[str, str]:
    return client.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]


def label(client: Client, node: str, **wanted: str | None) -> None:
    """Labels a node under nvidia.com/; names with _ for - in the first part, e.g. mig_config → mig.config."""
    client.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {PREFIX + key: value for key, value in wanted.items()}}})


def operand(client: Client, node: str, app: str) -> dict | None:
    """The operand's pod on a node that is not on its way out."""
    found, _ = client.list(PODS, labelSelector=f"app={app}", fieldSelector=f"spec.nodeName={node}")
    return next((pod for pod in found if "deletionTimestamp" not in pod["metadata"]), None)


def is_ready(pod: dict | None) -> bool:
    return pod is not None and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or [])


def became_ready(pod: dict) -> str:
    return next(c["lastTransitionTime"] for c in pod["status"]["conditions"] if c["type"] == "Ready")


def restart(client: Client, node: str, app: str) -> None:
    """Deletes the operand's pod on a node and waits for its successor."""
    before = operand(client, node, app)
    client.delete(f"{PODS}/{before['metadata']['name']}")

    def renewed() -> bool:
        found = operand(client, node, app)
        return is_ready(found) and found["metadata"]["uid"] != before["metadata"]["uid"]

    until(renewed, what=f"a new {app} on {node}")


def config_map(client: Client, name: str, **files: str) -> None:
    client.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": SPACE}, "data": files}, manager="test")


def policy(client: Client, **sections: dict) -> None:
    client.patch(POLICY, {"spec": sections})


def log(client: Client, pod: dict, container: str) -> str:
    name = pod["metadata"]["name"]
    return client.request("GET", f"{PODS}/{name}/log", container=container)["text"]


def tenant(name: str, node: str, resource: str = "gpu", count: int = 1) -> dict:
    """A pod that the scheduler has to put on this node."""
    container = {"name": "main", "image": "none", "resources": {"limits": {PREFIX + resource: str(count)}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [container], "tolerations": TOLERATED, "nodeSelector": {"kubernetes.io/hostname": node}}}


def mig(client: Client, node: str, wanted: str, state: str, seconds: float = 40) -> None:
    """Asks the MIG manager for a configuration and waits for its answer, which follows `pending` where something has to change."""
    client.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {PREFIX + "mig.config": wanted, PREFIX + "mig.config.state": None}}})
    until(lambda: labels(client, node).get(PREFIX + "mig.config.state") == state, seconds, f"{wanted}: {state} on {node}")


def gone(client: Client, path: str) -> bool:
    try:
        client.get(path)
        return False
    except ApiError as error:
        return error.status == 404
