"""The operands' pods where kubelets are real: the same DaemonSets, with an image that is there and programs that do as they are told.

On simulated nodes nothing of this is run.
"""

from __future__ import annotations

from orchlab.gpu_operator import names, operands
from orchlab.simulator.rbac import cluster_object, rule

ACCOUNT = "operands"
MODULE = ["python3", "-m", "orchlab.standin.operand"]
PLUGIN_MODULE = ["python3", "-m", "orchlab.device_plugin"]
# Folders of the node that the device plugin works in: kubelet's sockets, and what it puts into containers.
PLUGIN_FOLDERS = {"device-plugins": "/var/lib/kubelet/device-plugins", "pod-resources": "/var/lib/kubelet/pod-resources", "smi": "/var/lib/orchlab/smi",
                  "dev": "/dev"}
VALIDATIONS = {"validations": "/run/nvidia/validations"}


def accounts() -> list[dict]:
    """The operands' service account and what it may: read its own pod and its node, and say which devices a pod was given."""
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": names.NAMESPACE}
    role = "orchlab:operands"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": names.NAMESPACE}},
        cluster_object("ClusterRole", role, rules=[rule(["nodes"], ["get", "list", "watch"]), rule(["pods"], ["get", "list", "watch", "patch"])]),
        cluster_object("ClusterRoleBinding", role, roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}, subjects=[subject]),
    ]


def fit(pod: dict, image: str, environment: str, operand: str) -> dict:
    """A pod's spec from operands.py with commands and folders. `image` is what the kubelets have, `environment` the id of the environment,
    `operand` the DaemonSet's name."""
    volumes = dict(VALIDATIONS) if operand in (operands.VALIDATOR_DS, operands.DRIVER_DS) else {}
    if operand == operands.PLUGIN_DS:
        volumes |= PLUGIN_FOLDERS
    inits = [_container(one, image, [*MODULE, one["name"], "--init", str(number), *(["--leave"] if volumes else [])], volumes)
             for number, one in enumerate(pod.get("initContainers") or [])]
    first, *others = pod["containers"]
    command = [*MODULE, first["name"]]
    if operand == operands.PLUGIN_DS:
        command = [*PLUGIN_MODULE, "--environment", environment]
    main = [_container(first, image, command, volumes), *(_container(one, image, [*MODULE, one["name"]], {}) for one in others)]
    if operand == operands.PLUGIN_DS:
        # It makes sockets and device nodes on the node, as the real one may.
        main[0]["securityContext"] = {"privileged": True}
    more = [{"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for name, path in volumes.items()]
    return pod | {"serviceAccountName": ACCOUNT, "automountServiceAccountToken": True, "terminationGracePeriodSeconds": 2,
                  "containers": main, "volumes": [*(pod.get("volumes") or []), *more]} | ({"initContainers": inits} if inits else {})


def _container(one: dict, image: str, command: list[str], volumes: dict[str, str]) -> dict:
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
           for name, path in (("POD_NAME", "metadata.name"), ("POD_NAMESPACE", "metadata.namespace"), ("NODE_NAME", "spec.nodeName"))]
    mounts = [{"name": name, "mountPath": path} for name, path in volumes.items()]
    return one | {"image": image, "imagePullPolicy": "IfNotPresent", "command": command, "env": [*(one.get("env") or []), *env]} | (
        {"volumeMounts": mounts} if mounts else {})
