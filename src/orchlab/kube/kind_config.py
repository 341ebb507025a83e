"""kind's configuration for a fleet: which of its nodes have a real kubelet, and the cluster as kind is told to make it.

The first node of each GPU pool is a kind worker with a real kubelet; all others are KWOK's, as on `local`. Names, labels, taints, zones and
GPUs are the fleet's on both, so the course is the same. Each node says which it is: the label orchlab/kubelet is `real` or `simulated`.
"""

from __future__ import annotations

import yaml

from orchlab.fleet_nodes import FleetNode, with_real_kubelet
from orchlab.kube import kind_machines
from orchlab.simulator.stages import KUBELET_LABEL

# Inside the control plane's container: the environment's folder, read-only.
FOLDER = "/orchlab"
# In it: the kubeconfigs of what runs in the cluster.
IN_CLUSTER = "in-cluster"
REAL = "real"
SCHEDULER_CONFIG = "kube-scheduler.yaml"
HEADER = "# The default fleet as a kind cluster: `orchlab up --kubernetes kind` renders its own copy with ports and folders of the environment.\n"
# Kubelets register with few labels of these domains; the others are set once the node is there.
_ALLOWED = ("topology.kubernetes.io/", "node.kubernetes.io/instance-type")


def labels(node: FleetNode) -> dict[str, str]:
    """What a real node carries besides what its kubelet finds out for itself."""
    own = ("kubernetes.io/arch", "kubernetes.io/os", "orchlab/simulated")
    return {key: value for key, value in node.labels.items() if key not in own} | {KUBELET_LABEL[0]: REAL, "orchlab/simulated": "gpus"}


def cluster(nodes: list[FleetNode], name: str = "orchlab", port: int = 0, folder: str = "", image: str = "", cgroup_v1: bool = True) -> dict:
    """A Cluster of kind.x-k8s.io/v1alpha4. `port`: the API server's on loopback, 0 lets kind choose; `folder`: the environment's, mounted
    read-only into the control plane, and from it the workers' made-up machines ("": none, so that kubelets report this computer); `image`: "" is kind's own default, which it pins by digest."""
    more = {"image": image} if image else {}
    control = {"role": "control-plane", **more}
    if folder:
        control["extraMounts"] = [{"hostPath": folder, "containerPath": FOLDER, "readOnly": True}]
    workers = [{"role": "worker", **more, "labels": _registered(node), "kubeadmConfigPatches": [yaml.safe_dump(_join(node), sort_keys=False)],
                **({"extraMounts": kind_machines.mounts(f"{folder}/{kind_machines.KIND}", node)} if folder else {})} for node in with_real_kubelet(nodes)]
    networking = {"apiServerAddress": "127.0.0.1"} | ({"apiServerPort": port} if port else {})
    patches = [_control_plane(bool(folder)), _kubelet(cgroup_v1)]
    return {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "name": name, "networking": networking,
            "featureGates": {"GenericWorkload": True}, "runtimeConfig": {"scheduling.k8s.io/v1beta1": "true"},
            "kubeadmConfigPatches": [yaml.safe_dump(patch, sort_keys=False) for patch in patches], "nodes": [control, *workers]}


def render(content: dict) -> str:
    """YAML text, patches as blocks."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=10_000)


def _registered(node: FleetNode) -> dict[str, str]:
    return {key: value for key, value in labels(node).items() if "kubernetes.io/" not in key or key.startswith(_ALLOWED)}


def _join(node: FleetNode) -> dict:
    taints = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in node.taints]
    return {"kind": "JoinConfiguration", "nodeRegistration": {"name": node.name, "taints": taints}}


def _kubelet(cgroup_v1: bool) -> dict:
    # A plugin's change is on the node after 2 s instead of the default 10.
    patch = {"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1", "nodeStatusUpdateFrequency": "2s"}
    # Kubelets from 1.35 on refuse a machine with cgroup v1 unless they are told not to.
    return patch | ({"failCgroupV1": False} if cgroup_v1 else {})


def _control_plane(mounted: bool) -> dict:
    """The settings of `local` that labs rely on."""
    manager = [("node-monitor-grace-period", "40s"), ("kube-api-qps", "500"), ("kube-api-burst", "1000")]
    patch = {"kind": "ClusterConfiguration", "controllerManager": {"extraArgs": [{"name": name, "value": value} for name, value in manager]}}
    if mounted:
        path = f"{FOLDER}/{SCHEDULER_CONFIG}"
        patch["scheduler"] = {"extraArgs": [{"name": "config", "value": path}],
                              "extraVolumes": [{"name": "orchlab", "hostPath": path, "mountPath": path, "readOnly": True, "pathType": "File"}]}
    return patch


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
