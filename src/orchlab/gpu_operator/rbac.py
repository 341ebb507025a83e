"""What the GPU Operator's process may do in the cluster: its own user (by client certificate), least privilege."""

from __future__ import annotations

from orchlab.gpu_operator import names
from orchlab.simulator.rbac import cluster_wide, in_namespace, rule


def manifests() -> list[dict]:
    """Roles and bindings, in the order in which they are to be applied; the namespace has to be there."""
    return [
        *cluster_wide(names.USER, [
            # Labels, and what it knows of each node; the status stays the kubelet's.
            rule(["nodes"], ["get", "list", "watch", "patch"]),
            # The MIG manager asks who holds a GPU, the exporter to whom its figures belong.
            rule(["pods"], ["list"]),
            rule([names.PLURAL], ["get", "list", "watch"], names.GROUP),
            rule([f"{names.PLURAL}/status"], ["patch"], names.GROUP),
        ]),
        *in_namespace(names.USER, names.NAMESPACE, [
            rule(["pods"], ["get", "list", "watch", "patch", "delete"]),
            rule(["configmaps"], ["get", "list", "watch", "create", "patch"]),
            rule(["daemonsets"], ["get", "list", "watch", "create", "patch", "delete"], "apps"),
        ]),
    ]
