"""What orchlab brings into a kind cluster: KWOK and the simulator, for the nodes that have no kubelet, and the admission policy that lets
the labs' pods run on real kubelets.
"""

from __future__ import annotations

from orchlab.kube.kind_config import FOLDER, IN_CLUSTER
from orchlab.simulator import pods
from orchlab.standin import workload

NAMESPACE = "kube-system"
SIMULATOR = "orchlab-simulator"
POLICY = "orchlab-standin"
# Images of this registry, which nobody serves, are the labs' own.
REGISTRY = "registry.example/"
MODULE = ["python3", "-m"]
RUN_FOR = workload.VARIABLES[pods.RUN_FOR]


def simulator(image: str, kwok: list[str], digest: str) -> dict:
    """One pod on the control plane, where the API server finds its kubelet API on loopback. `kwok`: its arguments; `digest` changes when
    what it has read at its start has changed."""
    # The environment's own kubeconfigs name the address that the API server has outside.
    mounts = [{"name": "environment", "mountPath": FOLDER, "readOnly": True}, {"name": "kubeconfigs", "mountPath": f"{FOLDER}/kubeconfigs", "readOnly": True}]

    def container(name: str, command: list[str]) -> dict:
        return {"name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": command,
                "volumeMounts": mounts}

    before_kwok = [*MODULE, "orchlab.simulator.start_kwok", "--kubeconfig", f"{FOLDER}/kubeconfigs/kwok.kubeconfig", "--", "/usr/local/bin/kwok"]
    labels = {"app": SIMULATOR}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": SIMULATOR, "namespace": NAMESPACE},
            "spec": {"replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels},
                     "template": {"metadata": {"labels": labels, "annotations": {"orchlab/digest": digest}},
                                  "spec": {"hostNetwork": True, "automountServiceAccountToken": False, "priorityClassName": "system-cluster-critical",
                                           "nodeSelector": {"node-role.kubernetes.io/control-plane": ""}, "terminationGracePeriodSeconds": 2,
                                           "tolerations": [{"operator": "Exists"}],
                                           "containers": [container("kwok", [*before_kwok, *kwok]),
                                                          container("simulator", [*MODULE, "orchlab.simulator", "--folder", FOLDER])],
                                           "volumes": [{"name": name, "hostPath": {"path": path, "type": "Directory"}}
                                                       for name, path in (("environment", FOLDER), ("kubeconfigs", f"{FOLDER}/{IN_CLUSTER}"))]}}}}


def policies(image: str, clock: float) -> list[dict]:
    """A MutatingAdmissionPolicy and its binding: a container whose image is of REGISTRY gets the stand-in, and what the pod's annotations
    say about its run as environment variables. `clock` is simulated seconds per real second."""
    # Values, not references to the annotations: an apply configuration may not set those.
    noted = {name: f'has(object.metadata.annotations) && "{note}" in object.metadata.annotations ? object.metadata.annotations["{note}"] : ""'
             for note, name in workload.VARIABLES.items()}
    factor = {workload.FACTOR: f'"{clock:g}"'}
    main = _container("containers", image, noted | factor | {workload.RESTART: 'has(object.spec.restartPolicy) ? object.spec.restartPolicy : "Always"'})
    # As on simulated nodes: an init container is done at once, a sidecar runs beside the others.
    sidecar = 'has(c.restartPolicy) && c.restartPolicy == "Always"'
    init = _container("initContainers", image, factor | {workload.RESTART: f'{sidecar} ? "Always" : "Never"', RUN_FOR: f'{sidecar} ? "" : "1s"'})
    ours, inits = f'c.image.startsWith("{REGISTRY}")', "has(object.spec.initContainers)"
    expression = (f"Object{{spec: Object.spec{{containers: object.spec.containers.filter(c, {ours}).map(c, {main}), "
                  f"initContainers: {inits} ? object.spec.initContainers.filter(c, {ours}).map(c, {init}) : []}}}}")
    condition = f"object.spec.containers.exists(c, {ours}) || ({inits} && object.spec.initContainers.exists(c, {ours}))"
    kind = "admissionregistration.k8s.io/v1"
    return [
        {"apiVersion": kind, "kind": "MutatingAdmissionPolicy", "metadata": {"name": POLICY},
         "spec": {"failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded",
                  "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
                  "matchConditions": [{"name": "labs-image", "expression": condition}],
                  "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]}},
        {"apiVersion": kind, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": POLICY}, "spec": {"policyName": POLICY}},
    ]


def _container(part: str, image: str, variables: dict[str, str]) -> str:
    """CEL: the container `c` of pod.spec.PART as the stand-in; `variables` has an expression by name."""
    made = ", ".join(f'Object.spec.{part}.env{{name: "{name}", value: {value}}}' for name, value in variables.items())
    return f'Object.spec.{part}{{name: c.name, image: "{image}", imagePullPolicy: "IfNotPresent", env: [{made}]}}'
