"""Coscheduling as a process of a `local` environment: a second scheduler whose profile `cosched` has the plugin of that name.

It is its own user, with the rights of kube-scheduler and those that the project's chart gives it for PodGroups. The project's controller, which only keeps
count in a PodGroup's status, is not run: scheduling doesn't need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchlab.kube import crds
from orchlab.kube.local import SCHEDULER_CONFIG
from orchlab.paths import write_private
from orchlab.pki import Pair
from orchlab.processes import Probe, ProcessSpec
from orchlab.simulator.rbac import cluster_object, cluster_wide, rule

if TYPE_CHECKING:
    from orchlab.environment import Environment

NAME = "coscheduling"
BUILD_MINUTES = 1
PROFILE = "cosched"
GROUP = "scheduling.x-k8s.io"
PORTS = ("coscheduling",)
USER = "orchlab:coscheduling"
SERVERS = [Pair(NAME, NAME, names=("127.0.0.1", "localhost"))]
USERS = [Pair("coscheduling-client", USER)]
AUTHORITIES: tuple[str, ...] = ()

# Otherwise as the default scheduler is here, back-offs included, so that the two can be compared. permitWaitingTimeSeconds is the plugin's default.
CONFIG = SCHEDULER_CONFIG + """\
profiles:
- schedulerName: {profile}
  plugins:
    multiPoint: {{enabled: [{{name: Coscheduling}}]}}
    queueSort: {{enabled: [{{name: Coscheduling}}], disabled: [{{name: "*"}}]}}
  pluginConfig:
  - name: Coscheduling
    args: {{permitWaitingTimeSeconds: 60}}
"""


def write(env: Environment) -> None:
    """Writes the scheduler's configuration."""
    text = CONFIG.format(kubeconfig=env.folder / "kubeconfigs" / "coscheduling.kubeconfig", profile=PROFILE)
    write_private(env.folder / "coscheduling.yaml", text)


def objects(env: Environment) -> list[dict]:
    """Its CRD and its rights."""
    from orchlab.engines.manifests import manifests

    bound = [cluster_object("ClusterRoleBinding", f"{USER}:{role.removeprefix('system:')}", roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                            subjects=[{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}]) for role in ("system:kube-scheduler", "system:volume-scheduler")]
    own = cluster_wide(USER, [
        rule(["podgroups", "podgroups/status"], ["get", "list", "watch", "update", "patch"], GROUP),
        rule(["namespaces"], ["get", "list", "watch"]),
        rule(["pods"], ["get", "list", "watch", "update", "patch"]),
    ])
    return [*crds.read(manifests(NAME)), *bound, *own]


def processes(env: Environment, marker: str) -> list[ProcessSpec]:
    from orchlab import engines

    folder = env.folder
    argv = (env.record.engines[NAME], *engines.load(NAME).arguments(folder=folder, pki=folder / "pki", kubeconfigs=folder / "kubeconfigs", **env.record.ports))
    probe = Probe(f"https://127.0.0.1:{env.port('coscheduling')}/healthz", folder / "pki" / "ca.crt")
    files = (folder / "coscheduling.yaml", *(folder / "pki" / f"{file}.crt" for file in ("ca", NAME, "coscheduling-client")))
    return [ProcessSpec(NAME, argv, probe, ("kube-apiserver",), (marker,), folder=folder, files=files, ports=PORTS)]


def wait(env: Environment, seconds: float) -> None:
    """Its probe says all."""


def before_purge(env: Environment) -> None:
    """Nothing of its own outside what `orchlab.kube.addons` removes."""
