"""What installing the operator (its Helm chart) brings into a cluster: the CRD, the namespace, Node Feature Discovery, a ClusterPolicy."""

from __future__ import annotations

import time
from pathlib import Path

import yaml

from orchlab.errors import ApiError, TimeLimitReached
from orchlab.gpu_operator import names, policy, rbac, real_kubelets
from orchlab.kube.client import APPLY, Client
from orchlab.simulator.plugins import INVENTORY

CRD = Path(__file__).with_name("clusterpolicy.yaml")
# An annotation of the namespace: the ClusterPolicy has been created once ("created", then "settled"). Who deletes it wants it gone.
INSTALLED = "orchlab/cluster-policy"
NAMESPACE_PATH = f"/api/v1/namespaces/{names.NAMESPACE}"
POLICY_PATH = f"{names.POLICIES}/{names.POLICY}"
NFD_PATH = f"{names.DAEMONSETS}/{names.NFD_WORKER}"


def node_feature_discovery(image: str = "") -> dict:
    """The DaemonSet of Node Feature Discovery's workers, one on every node. `image`: what real kubelets run for it."""
    labels = {"app.kubernetes.io/name": "node-feature-discovery", "role": "worker"}
    container = {"name": "worker", "image": "registry.k8s.io/nfd/node-feature-discovery", "imagePullPolicy": "IfNotPresent"}
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    pod = {"automountServiceAccountToken": False, "tolerations": tolerations, "containers": [container]}
    if image:
        pod = real_kubelets.fit(pod, image, "", names.NFD_WORKER)
    return {"apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": names.NFD_WORKER, "namespace": names.NAMESPACE, "labels": labels},
            "spec": {"selector": {"matchLabels": labels},
                     "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
                     "template": {"metadata": {"labels": labels},
                                  "spec": pod}}}


def before_start(client: Client, image: str = "") -> None:
    """What the operator's process needs to find. `image`: what real kubelets run as operands. Raises ApiError, EnvironmentBroken."""
    definition = yaml.safe_load(CRD.read_text(encoding="utf-8"))
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
    _apply(client, path, definition)
    _apply(client, NAMESPACE_PATH, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.NAMESPACE}})
    for manifest in [*rbac.manifests(), *(real_kubelets.accounts() if image else [])]:
        client.apply(manifest)
    _apply(client, NFD_PATH, node_feature_discovery(image))


def create_policy(client: Client, seconds: float = 20) -> bool:
    """Creates the default ClusterPolicy in a cluster that never had one, as soon as its kind is served. Returns whether it did. Raises
    TimeLimitReached."""
    notes = client.get(NAMESPACE_PATH)["metadata"].get("annotations") or {}
    if INSTALLED in notes:
        return False
    restore_policy(client, seconds)
    client.patch(NAMESPACE_PATH, {"metadata": {"annotations": {INSTALLED: "created"}}})
    return True


def restore_policy(client: Client, seconds: float = 20, at_once: bool = False) -> bool:
    """Makes the ClusterPolicy `cluster-policy` the default one. Returns whether it was missing or different. `at_once`: but for one field,
    so that operands are replaced on all nodes at the same time and not node by node; another call ends that. Raises TimeLimitReached."""
    wanted, deadline = policy.default(), time.monotonic() + seconds
    spec = wanted["spec"]
    if at_once:
        daemonsets = spec["daemonsets"] | {"rollingUpdate": {"maxUnavailable": "100%"}}
        wanted = wanted | {"spec": spec | {"daemonsets": daemonsets}}
    while True:
        try:
            found = client.find(POLICY_PATH)
            if found is None:
                client.create(names.POLICIES, wanted)
                return True
            if found.get("spec") == spec:
                return False
            client.request("PUT", POLICY_PATH, wanted | {"metadata": {"name": names.POLICY,
                                                                      "resourceVersion": found["metadata"]["resourceVersion"]}})
            return True
        except ApiError as error:
            # 404: the API server does not serve the kind yet. 409: somebody else was quicker.
            if error.status not in (404, 409) or time.monotonic() > deadline:
                if error.status == 404:
                    raise TimeLimitReached(f"ClusterPolicy is not served after {seconds:.0f} s", "orchlab logs kube-apiserver") from error
                raise
        time.sleep(0.05)


def unsettled(client: Client, nodes: list[dict], gpus: set[str]) -> tuple[str, bool]:
    """(what is still to come, "" for nothing; whether this is the first start). `nodes` as the API server has them, `gpus` the names of
    those that have GPUs. At the first start everything comes up; later only nodes that the operator has not seen yet are waited for,
    since a learner may have switched anything off."""
    found = client.find(POLICY_PATH)
    first = (client.get(NAMESPACE_PATH)["metadata"].get("annotations") or {}).get(INSTALLED) == "created"
    if found is None:
        return "", first
    there = {node["metadata"]["name"]: node for node in nodes}
    if not first:
        new = [name for name in sorted(gpus & there.keys()) if INVENTORY not in (there[name]["metadata"].get("annotations") or {})]
        return (f"GPUs of {', '.join(new[:5])}" if new else ""), first
    missing = [name for name in sorted(gpus) if name not in there or not _advertises(there[name])]
    if missing:
        return f"GPUs of {', '.join(missing[:5])} are not advertised yet", first
    status = found.get("status") or {}
    if status.get("state") != "ready":
        said = [c["message"] for c in status.get("conditions") or [] if c.get("message")]
        return f"ClusterPolicy is {status.get('state', 'new')}: {'; '.join(said)}", first
    client.patch(NAMESPACE_PATH, {"metadata": {"annotations": {INSTALLED: "settled"}}})
    return "", first


def _advertises(node: dict) -> bool:
    """GPUs are allocatable, and the MIG manager has done what it begins with."""
    labels = node["metadata"].get("labels") or {}
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    idle = labels.get(names.MIG_CAPABLE) == "false" or labels.get(names.MIG_STATE) in ("success", "failed")
    return names.MIG_CAPABLE in labels and idle and any(value != "0" for key, value in allocatable.items() if key.startswith(names.PREFIX))


def _apply(client: Client, path: str, manifest: dict) -> None:
    client.request("PATCH", path, manifest, APPLY, fieldManager="orchlab", force="true")
