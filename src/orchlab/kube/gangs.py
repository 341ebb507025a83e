"""Native gang scheduling: which form of it a server speaks, by discovery, and the manifests in that form.

Its API changed with each release: 1.35 has a Workload whose pod groups are part of it (v1alpha1), 1.36 a PodGroup of its own (v1alpha2), 1.37 the
same in v1beta1. The forms of 1.35 and 1.36 follow the types that those releases publish and were not tried on a server.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from orchlab.errors import ApiError, BadInput, EnvironmentBroken
from orchlab.kube.client import Client

GROUP = "scheduling.k8s.io"
# Newest first, with the kind that holds a gang.
FORMS = (("v1beta1", "PodGroup"), ("v1alpha2", "PodGroup"), ("v1alpha1", "Workload"))
FIRST_MINOR = 35
# 1.37 has this gate alone. Earlier releases were not tried: their scheduler may want one more.
GATES = "the feature gate GenericWorkload on kube-apiserver and kube-scheduler"
EARLIER_GATES = f"{GATES}; the list of gates of 1.{{minor}} says whether its scheduler wants GangScheduling too"
POD_GROUP = "gang"  # the one pod group inside a v1alpha1 Workload


@dataclass(frozen=True)
class Native:
    """What a server serves: `version` of scheduling.k8s.io and the `kind` that holds a gang. Whether its scheduler has the gate too, discovery doesn't say."""

    version: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{GROUP}/{self.version}"


def native(client: Client) -> Native:
    """The newest form that the server serves. Raises EnvironmentBroken, saying what is missing, when it serves none."""
    served = {entry["version"] for entry in (client.find(f"/apis/{GROUP}") or {}).get("versions", [])}
    for version, kind in FORMS:
        if version in served and kind in _kinds(client, version):
            return Native(version, kind)
    release = client.get("/version")
    minor = int("".join(filter(str.isdigit, release.get("minor", ""))) or 0)
    name = release.get("gitVersion", "this server")
    if minor < FIRST_MINOR:
        raise EnvironmentBroken(f"Kubernetes {name} knows no native gang scheduling: it began with 1.{FIRST_MINOR}", "use an environment of 1.37, or another gang engine")
    wanted = {35: "v1alpha1", 36: "v1alpha2"}.get(minor, "v1beta1")
    gates = EARLIER_GATES.format(minor=minor) if minor < 37 else GATES
    raise EnvironmentBroken(f"Kubernetes {name} serves neither PodGroup nor Workload in {GROUP}: native gang scheduling is off by default",
                            f"start it with --runtime-config={GROUP}/{wanted}=true and {gates}")


def manifest(form: Native, name: str, count: int, namespace: str | None = None) -> dict:
    """The object that makes a gang: none of its pods is placed until `count` of them can be at once. Raises BadInput for a count below 1."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise BadInput("count", count, "a gang has at least one pod", "give the number of pods that must start together")
    policy = {"gang": {"minCount": count}}
    spec = {"podGroups": [{"name": POD_GROUP, "policy": policy}]} if form.kind == "Workload" else {"schedulingPolicy": policy}
    return {"apiVersion": form.api_version, "kind": form.kind, "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}), "spec": spec}


def member(form: Native, name: str, spec: dict) -> dict:
    """A copy of a pod's spec (or of a template's) that belongs to the gang `name` of its namespace."""
    own = copy.deepcopy(spec)
    if form.kind == "Workload":
        own["workloadRef"] = {"name": name, "podGroup": POD_GROUP}
    else:
        own["schedulingGroup"] = {"podGroupName": name}
    return own


def _kinds(client: Client, version: str) -> set[str]:
    try:
        return {resource["kind"] for resource in client.get(f"/apis/{GROUP}/{version}")["resources"]}
    except ApiError as error:
        if error.status != 404:
            raise
        return set()
