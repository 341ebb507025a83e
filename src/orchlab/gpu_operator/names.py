"""Names that the operator, its operands and their users share: labels and annotations of nodes, namespace, ConfigMap keys."""

from __future__ import annotations

import re

NAMESPACE = "gpu-operator"
USER = "orchlab:gpu-operator"
POLICY = "cluster-policy"
GROUP, VERSION, PLURAL = "nvidia.com", "v1", "clusterpolicies"
POLICIES = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
PODS, CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/pods", f"/api/v1/namespaces/{NAMESPACE}/configmaps"
DAEMONSETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"

PREFIX = "nvidia.com/"
PRESENT = "nvidia.com/gpu.present"
DEPLOY = "nvidia.com/gpu.deploy."
OPERANDS_OFF = "nvidia.com/gpu.deploy.operands"
PLUGIN_CONFIG = "nvidia.com/device-plugin.config"
MIG_CONFIG, MIG_STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
MIG_CAPABLE, MPS_CAPABLE = "nvidia.com/mig.capable", "nvidia.com/mps.capable"
# Node Feature Discovery's labels of a machine with an NVIDIA device, the first of them as it is configured beside the operator.
NFD = ("feature.node.kubernetes.io/pci-10de.present", "feature.node.kubernetes.io/pci-0302_10de.present",
       "feature.node.kubernetes.io/pci-0300_10de.present")

# Annotations of a node: what the operator remembers of it, and XID errors that the fault has caused ({index: number}).
STATE, XID = "orchlab/gpu-state", "orchlab/gpu-xid"

PAUSED = "paused-for-mig-change"
NFD_WORKER = "gpu-operator-node-feature-discovery-worker"
# An annotation of a DaemonSet: the digest of what the operator applied last.
HASH = "nvidia.com/last-applied-hash"
_DISCOVERED = re.compile(r"nvidia\.com/(cuda\..+|gfd\..+|mig\.(capable|strategy)|mps\.capable|mig-[0-9].+"
                         r"|gpu\.(product|count|replicas|memory|family|machine|mode|sharing-strategy|multiprocessors"
                         r"|compute\.(major|minor)|slices\.(gi|ci)|engines\.[a-z]+))")


def is_discovered(label: str) -> bool:
    """Whether GPU Feature Discovery writes this label."""
    return bool(_DISCOVERED.fullmatch(label))


def is_owned(label: str) -> bool:
    """Whether this label of a node is the operator's, its operands' or Node Feature Discovery's business; see restore.py."""
    return label in NFD or label in (PRESENT, PLUGIN_CONFIG, MIG_CONFIG, MIG_STATE) or label.startswith(DEPLOY) or is_discovered(label)
