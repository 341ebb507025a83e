"""The operands as DaemonSets, under the names, labels, selectors and init containers of the real ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from orchlab.gpu_operator import names
from orchlab.gpu_operator.policy import Policy
from orchlab.simulator.pods import INIT

# What an init container waits for; see gates.py.
DRIVER_MANAGER, DRIVER, TOOLKIT, CUDA, PLUGIN = ("k8s-driver-manager", "driver-validation", "toolkit-validation", "cuda-validation",
                                                  "plugin-validation")
CONFIG_INIT, MPS_MOUNTS = "config-manager-init", "mps-control-daemon-mounts"
TOLERATION = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
PLUGIN_DS, GFD_DS, MPS_DS = "nvidia-device-plugin-daemonset", "gpu-feature-discovery", "nvidia-device-plugin-mps-control-daemon"
DRIVER_DS, TOOLKIT_DS, VALIDATOR_DS = "nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset", "nvidia-operator-validator"
MIG_DS, DCGM_DS, EXPORTER_DS = "nvidia-mig-manager", "nvidia-dcgm", "nvidia-dcgm-exporter"


@dataclass(frozen=True)
class Operand:
    """`state` as ClusterPolicy's conditions name it, `section` of the spec that switches it, `label` behind nvidia.com/gpu.deploy. that
    a node needs, `container` its main one; `configured`: it takes the device plugin's configuration."""

    name: str
    state: str
    section: str
    label: str
    container: str
    inits: tuple[str, ...]
    image: str
    configured: bool = False


@dataclass(frozen=True)
class Site:
    """A cluster with real kubelets: the image that they have for the operands, the id of the environment."""

    image: str
    environment: str


OPERANDS = (
    Operand(DRIVER_DS, "state-driver", "driver", "driver", "nvidia-driver-ctr", (DRIVER_MANAGER,), "nvcr.io/nvidia/driver"),
    Operand(TOOLKIT_DS, "state-container-toolkit", "toolkit", "container-toolkit", "nvidia-container-toolkit-ctr", (DRIVER,),
            "nvcr.io/nvidia/k8s/container-toolkit"),
    Operand(VALIDATOR_DS, "state-operator-validation", "validator", "operator-validator", "nvidia-operator-validator",
            (DRIVER, TOOLKIT, CUDA, PLUGIN), "nvcr.io/nvidia/gpu-operator"),
    Operand(PLUGIN_DS, "state-device-plugin", "devicePlugin", "device-plugin", "nvidia-device-plugin", (TOOLKIT,),
            "nvcr.io/nvidia/k8s-device-plugin", configured=True),
    Operand(MPS_DS, "state-mps-control-daemon", "devicePlugin", "device-plugin", "mps-control-daemon-ctr", (TOOLKIT, MPS_MOUNTS),
            "nvcr.io/nvidia/k8s-device-plugin", configured=True),
    Operand(DCGM_DS, "state-dcgm", "dcgm", "dcgm", "nvidia-dcgm-ctr", (TOOLKIT,), "nvcr.io/nvidia/cloud-native/dcgm"),
    Operand(EXPORTER_DS, "state-dcgm-exporter", "dcgmExporter", "dcgm-exporter", "nvidia-dcgm-exporter", (TOOLKIT,),
            "nvcr.io/nvidia/k8s/dcgm-exporter"),
    Operand(GFD_DS, "gpu-feature-discovery", "gfd", "gpu-feature-discovery", "gpu-feature-discovery", (TOOLKIT,),
            "nvcr.io/nvidia/k8s-device-plugin", configured=True),
    Operand(MIG_DS, "state-mig-manager", "migManager", "mig-manager", "nvidia-mig-manager", (TOOLKIT,),
            "nvcr.io/nvidia/cloud-native/k8s-mig-manager"),
    Operand("nvidia-node-status-exporter", "state-node-status-exporter", "nodeStatusExporter", "node-status-exporter",
            "nvidia-node-status-exporter", (TOOLKIT,), "nvcr.io/nvidia/gpu-operator"),
)
BY_NAME = {operand.name: operand for operand in OPERANDS}
# The labels nvidia.com/gpu.deploy.* that a node with GPUs gets; mig-manager only where MIG can be.
DEPLOYED = ("driver", "gpu-feature-discovery", "container-toolkit", "device-plugin", "dcgm", "dcgm-exporter", "node-status-exporter",
            "operator-validator", "client")


def wanted(policy: Policy, site: Site | None = None) -> dict[str, dict]:
    """The DaemonSets of a policy by name, each with a digest of itself."""
    made = {operand.name: _daemonset(operand, policy, site) for operand in OPERANDS if policy.enabled(operand.section)}
    for manifest in made.values():
        text = json.dumps(manifest, sort_keys=True)
        manifest["metadata"]["annotations"] = {names.HASH: hashlib.sha256(text.encode()).hexdigest()[:16]}
    return made


def _daemonset(operand: Operand, policy: Policy, site: Site | None) -> dict:
    given = policy.part("daemonsets")
    rolling = given.get("updateStrategy", "RollingUpdate") != "OnDelete" and operand.name != DRIVER_DS
    strategy = {"type": "OnDelete"}
    if rolling:
        unavailable = (given.get("rollingUpdate") or {}).get("maxUnavailable") or 1
        unavailable = int(unavailable) if str(unavailable).isdigit() else unavailable
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable}}
    selector = {names.DEPLOY + operand.label: "true"} | ({names.MPS_CAPABLE: "true"} if operand.name == MPS_DS else {})
    labels = {**(given.get("labels") or {}), "app": operand.name}
    owner = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": policy.name, "uid": policy.uid, "controller": True,
             "blockOwnerDeletion": True}
    pod = _pod(operand, policy)
    if site is not None:
        from orchlab.gpu_operator import real_kubelets

        pod = real_kubelets.fit(pod, site.image, site.environment, operand.name)
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": operand.name, "namespace": names.NAMESPACE, "labels": {"app": operand.name}, "ownerReferences": [owner]},
        "spec": {
            "selector": {"matchLabels": {"app": operand.name}}, "updateStrategy": strategy,
            "template": {
                "metadata": {"labels": labels, "annotations": {**(given.get("annotations") or {}), INIT: "0"}},
                "spec": pod | {"nodeSelector": selector},
            },
        },
    }


def _pod(operand: Operand, policy: Policy) -> dict:
    given, section = policy.part("daemonsets"), policy.part(operand.section)
    image = operand.image + (f":{section['version']}" if section.get("version") else "")
    config_map, default = policy.plugin_config
    inits = [name for name in operand.inits if name != PLUGIN or policy.enabled("devicePlugin")]
    containers = [_container(operand.container, image)]
    volumes = []
    if operand.configured:
        containers[0]["env"] = [{"name": "MIG_STRATEGY", "value": policy.mig_strategy}]
        if config_map:
            env = [{"name": "NODE_LABEL", "value": names.PLUGIN_CONFIG}, {"name": "DEFAULT_CONFIG", "value": default}]
            inits.append(CONFIG_INIT)
            containers.append(_container("config-manager", image) | {"env": env})
            volumes = [{"name": "nvidia-device-plugin-config", "configMap": {"name": config_map, "optional": True}}]
    return {
        "priorityClassName": given.get("priorityClassName") or "system-node-critical", "automountServiceAccountToken": False,
        "tolerations": given.get("tolerations") or TOLERATION,
        "initContainers": [_container(name, "nvcr.io/nvidia/gpu-operator") for name in inits],
        "containers": containers,
    } | ({"volumes": volumes} if volumes else {})


def _container(name: str, image: str) -> dict:
    return {"name": name, "image": image, "imagePullPolicy": "IfNotPresent"}


def states(policy: Policy, found: Callable[[str], dict | None], site: Site | None = None) -> list[str]:
    """The states of this policy that are not ready, in the order of the operator; `found` gives a DaemonSet by its name."""
    manifests, missing = wanted(policy, site), []
    for operand in OPERANDS:
        if operand.name in manifests and not _is_ready(found(operand.name), manifests[operand.name]):
            missing.append(operand.state)
    return missing


def _is_ready(found: dict | None, wanted: dict) -> bool:
    if found is None or (found["metadata"].get("annotations") or {}).get(names.HASH) != wanted["metadata"]["annotations"][names.HASH]:
        return False
    status = found.get("status") or {}
    if status.get("observedGeneration", 0) < found["metadata"].get("generation", 0):
        return False
    number = status.get("desiredNumberScheduled", 0)
    return not status.get("numberUnavailable") and (wanted["spec"]["updateStrategy"]["type"] == "OnDelete"
                                                    or status.get("updatedNumberScheduled", 0) == number)
