"""What the tests of the kind backend share."""

from __future__ import annotations

import subprocess
import time

from orchlab.environment import Environment
from orchlab.kube import kind_cluster
from orchlab.paths import repository
from orchlab.slurm.containers import Docker

BUILD_SECONDS = 2400


def node_image(engine: Docker) -> str:
    """The node image: one that is here, kind's own where it can be pulled, else made from packages."""
    if found := kind_cluster.node_image(engine):
        return found
    subprocess.run([str(repository() / "scripts" / "build-node-image")], check=True, timeout=BUILD_SECONDS, capture_output=True, text=True)
    return kind_cluster.node_image(engine)


def traces(engine: Docker, env: Environment) -> list[str]:
    """Everything of an environment's cluster that Docker still has."""
    name = kind_cluster.name(env)
    asked = (["ps", "--all", "--format", "{{.Names}}", "--filter", f"label={kind_cluster.CLUSTER_LABEL}={name}"],
             ["network", "ls", "--format", "{{.Name}}", "--filter", f"name={name}"])
    return [line for words in asked for line in engine.run(*words).stdout.split()]


def until(condition, seconds: float = 60, every: float = 0.5):
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(every)


def pod(name: str, gpus: int = 0, node: str = "", resource: str = "nvidia.com/gpu", image: str = "registry.example/train:1", limits: dict | None = None,
        **notes: str) -> dict:
    """A pod that tolerates everything, on `node` if one is named."""
    wanted = ({resource: gpus} if gpus else {}) | (limits or {})
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": image, "resources": {"limits": wanted}}]}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": {f"orchlab/{key.replace('_', '-')}": value for key, value in notes.items()}}, "spec": spec}
