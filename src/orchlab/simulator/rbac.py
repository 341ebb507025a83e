"""What KWOK and the simulator may do in the cluster: each its own user (by client certificate), least privilege."""

from __future__ import annotations

SIMULATOR = "orchlab:simulator"
KWOK = "orchlab:kwok"


def manifests() -> list[dict]:
    """ClusterRoles, Roles and bindings for both users, in the order in which they are to be applied."""
    return [
        # The API server makes this namespace itself, a moment after it is ready; the Role below may be earlier.
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-node-lease"}},
        *cluster_wide(SIMULATOR, [
            # Publishes and removes the fleet's nodes.
            rule(["nodes"], ["get", "list", "watch", "create", "patch", "delete"]),
            rule(["nodes/status"], ["patch"]),
            # Admits pods: annotations on the pod, and its status when it is refused. Removes those that have ended after a deletion.
            rule(["pods"], ["get", "list", "watch", "patch", "delete"]),
            rule(["pods/status"], ["patch"]),
            rule(["events"], ["create"]),
        ]),
        *cluster_wide(KWOK, [
            rule(["nodes"], ["get", "list", "watch"]),
            rule(["nodes/status"], ["patch"]),
            rule(["pods"], ["get", "list", "watch"]),
            rule(["pods/status"], ["patch"]),
        ]),
        *in_namespace(KWOK, "kube-node-lease", [
            # deletecollection: a new KWOK clears the leases of the one that it replaces.
            rule(["leases"], ["get", "list", "watch", "create", "update", "delete", "deletecollection"], "coordination.k8s.io"),
        ]),
    ]


def rule(resources: list[str], verbs: list[str], group: str = "") -> dict:
    """One rule of a role."""
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def cluster_object(kind: str, name: str, namespace: str | None = None, **content: object) -> dict:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, **content}


def _binding(role: str, user: str) -> dict:
    return {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": user},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]}


def cluster_wide(user: str, rules: list[dict]) -> list[dict]:
    """A ClusterRole with the user's name and its binding."""
    return [cluster_object("ClusterRole", user, rules=rules), cluster_object("ClusterRoleBinding", user, **_binding("ClusterRole", user))]


def in_namespace(user: str, namespace: str, rules: list[dict]) -> list[dict]:
    """The same within one namespace."""
    return [cluster_object("Role", user, namespace, rules=rules), cluster_object("RoleBinding", user, namespace, **_binding("Role", user))]
