"""Back to what the operator was like after its installation, whatever was done to it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from orchlab.errors import ApiError, TimeLimitReached
from orchlab.gpu_operator import install, migration, names, operands
from orchlab.gpu_operator.devices import State
from orchlab.gpu_operator.names import CONFIG_MAPS, DAEMONSETS, PODS
from orchlab.kube.client import Client

EVERY = 0.1
OURS = {"gpu-operator", "kube-controller-manager"}


def restore(client: Client, gpus: Mapping[str, int], deadline: float, remedy: str = "") -> list[str]:
    """Default ClusterPolicy, the DaemonSets as the operator makes them, no configurations of anybody's, whole and healthy GPUs. `gpus`:
    GPUs by node. Returns what was done, one line each. Raises TimeLimitReached at `deadline` (monotonic s)."""
    done = []
    if install.restore_policy(client, at_once=True):
        done.append("ClusterPolicy: the default one again")
    done += _objects(client)
    changed = [name for node in client.list("/api/v1/nodes")[0] if (name := node["metadata"]["name"]) in gpus and _node(client, node)]
    if changed:
        done.append(f"GPU configuration of {len(changed)} nodes: the default one again")
    while (missing := _missing(client, gpus)) or install.restore_policy(client):
        if time.monotonic() > deadline:
            raise TimeLimitReached(f"the GPU Operator is not back: {missing}", remedy)
        time.sleep(EVERY)
    return done


def _objects(client: Client) -> list[str]:
    done = []
    for found in client.list(CONFIG_MAPS)[0]:
        name = found["metadata"]["name"]
        if name != "kube-root-ca.crt" and not name.endswith(migration.generated_name("")):
            _delete(client, f"{CONFIG_MAPS}/{name}")
            done.append(f"ConfigMap {name}: removed")
    there = {found["metadata"]["name"]: found for found in client.list(DAEMONSETS)[0]}
    for name in operands.BY_NAME.keys() & there.keys():
        if {entry.get("manager") for entry in there[name]["metadata"].get("managedFields") or []} - OURS:
            _delete(client, f"{DAEMONSETS}/{name}")
            done.append(f"DaemonSet {name}: made anew")
    nfd = there.get(names.NFD_WORKER)
    managers = {entry.get("manager") for entry in ((nfd or {}).get("metadata") or {}).get("managedFields") or []}
    if managers - {"orchlab", "kube-controller-manager"} or nfd is None:
        _delete(client, install.NFD_PATH)
        install.before_start(client)
        done.append("Node Feature Discovery: made anew")
    return done


def _node(client: Client, node: dict) -> bool:
    """Takes back what people decide by labels, and restarts the plugin of GPUs that fell ill. Returns whether there was anything."""
    metadata = node["metadata"]
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    state = State.of(notes.get(names.STATE, ""))
    change = {label: None for label, value in labels.items()
              if label == names.PLUGIN_CONFIG or (label.startswith(names.DEPLOY) and value not in ("true", names.PAUSED))}
    if names.MIG_CONFIG in labels and (labels[names.MIG_CONFIG] != "all-disabled" or state.mig or labels.get(names.MIG_STATE) == "failed"):
        change[names.MIG_CONFIG] = None
    if change:
        client.patch(f"/api/v1/nodes/{metadata['name']}", {"metadata": {"labels": change}})
    if state.ill:
        for pod in client.list(PODS, labelSelector=f"app={operands.PLUGIN_DS}", fieldSelector=f"spec.nodeName={metadata['name']}")[0]:
            _delete(client, f"{PODS}/{pod['metadata']['name']}")
    return bool(change or state.ill)


def _missing(client: Client, gpus: Mapping[str, int]) -> str:
    """What is not yet as it should be; "" for nothing."""
    there = {node["metadata"]["name"]: node for node in client.list("/api/v1/nodes")[0]}
    for name, count in gpus.items():
        if name not in there:
            return f"node {name} is missing"
        metadata, allocatable = there[name]["metadata"], (there[name].get("status") or {}).get("allocatable") or {}
        labels = metadata.get("labels") or {}
        asked, answer = labels.get(names.MIG_CONFIG), labels.get(names.MIG_STATE)
        if labels.get(names.MIG_CAPABLE) == "true" and (asked, answer) != ("all-disabled", "success"):
            return f"the MIG manager of {name} says {answer} to {asked}"
        if labels.get("nvidia.com/gpu.sharing-strategy") != "none" or labels.get("nvidia.com/gpu.count") != str(count):
            return f"{name} is not labelled as it should be"
        offered = {key: value for key, value in allocatable.items() if key.startswith(names.PREFIX) and value != "0"}
        if offered != {"nvidia.com/gpu": str(count)}:
            return f"{name} does not advertise its {count} GPUs"
    state = (client.get(install.POLICY_PATH).get("status") or {}).get("state")
    return "" if state == "ready" else f"ClusterPolicy is {state}"


def _delete(client: Client, path: str) -> None:
    try:
        client.delete(path, {"propagationPolicy": "Background"})
    except ApiError as error:
        if error.status != 404:
            raise
