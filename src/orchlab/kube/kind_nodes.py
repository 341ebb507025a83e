"""The nodes of a kind cluster that have a real kubelet, by the names that Kubernetes knows, and what faults do to them."""

from __future__ import annotations

from dataclasses import dataclass

from orchlab.environment import Environment
from orchlab.errors import BadInput
from orchlab.fleet_nodes import with_real_kubelet
from orchlab.kube import kind_cluster
from orchlab.kube.kind_cluster import Kind


@dataclass(frozen=True)
class RealNodes:
    """`workers`: the container of each node."""

    cluster: Kind
    workers: dict[str, str]

    def pause(self, node: str) -> None:
        """Freezes the node with everything on it. Safe to repeat."""
        if self._state(node) != "paused":
            self.cluster.docker.run("pause", self.workers[node])

    def resume(self, node: str) -> None:
        """Safe to repeat."""
        if self._state(node) == "paused":
            self.cluster.docker.run("unpause", self.workers[node])

    def kill(self, node: str, namespace: str, pod: str) -> None:
        """SIGKILL to the first process of the pod's first container. Raises BadInput when none runs."""
        crictl = ("exec", self.workers[node], "crictl")
        labels = ("--label", f"io.kubernetes.pod.namespace={namespace}", "--label", f"io.kubernetes.pod.name={pod}")
        found = self.cluster.docker.run(*crictl, "ps", "--quiet", *labels).stdout.split()
        if not found:
            raise BadInput("target", f"{namespace}/{pod}", "no container of it runs", "kubectl describe pod")
        pid = self.cluster.docker.run(*crictl, "inspect", "--output", "go-template", "--template", "{{.info.pid}}", found[0]).stdout.strip()
        self.cluster.docker.run("exec", self.workers[node], "kill", "-9", pid)

    def _state(self, node: str) -> str:
        return self.cluster.docker.run("inspect", "--format", "{{.State.Status}}", self.workers[node]).stdout.strip()


def of(env: Environment) -> RealNodes:
    """Raises EnvironmentBroken before the first `up`."""
    cluster = kind_cluster.of(env.folder / kind_cluster.FOLDER)
    names = [node.name for node in with_real_kubelet(env.fleet.nodes())]
    return RealNodes(cluster, {name: cluster.worker(number) for number, name in enumerate(names)})
