"""Native gang scheduling: the form that discovery finds, and the manifests in it."""

from __future__ import annotations

import pytest

from orchlab.errors import BadInput, EnvironmentBroken
from orchlab.kube import gangs


class Server:
    """Answers discovery as an API server with these kinds by version of scheduling.k8s.io."""

    def __init__(self, minor: str, **kinds: list[str]) -> None:
        self.answers: dict[str, dict] = {"/version": {"minor": minor, "gitVersion": f"v1.{minor}.2"}}
        self.answers["/apis/scheduling.k8s.io"] = {"versions": [{"version": version} for version in kinds]}
        for version, names in kinds.items():
            self.answers[f"/apis/scheduling.k8s.io/{version}"] = {"resources": [{"kind": name, "name": f"{name.lower()}s"} for name in names]}

    def get(self, path: str) -> dict:
        return self.answers[path]

    find = get


@pytest.mark.parametrize("server, expected", [
    (Server("37", v1=["PriorityClass"], v1beta1=["Workload", "PodGroup"]), gangs.Native("v1beta1", "PodGroup")),
    (Server("37", v1=["PriorityClass"], v1alpha3=["CompositePodGroup"], v1beta1=["Workload", "PodGroup"]), gangs.Native("v1beta1", "PodGroup")),
    (Server("36", v1=["PriorityClass"], v1alpha2=["Workload", "PodGroup"]), gangs.Native("v1alpha2", "PodGroup")),
    (Server("35", v1=["PriorityClass"], v1alpha1=["Workload"]), gangs.Native("v1alpha1", "Workload")),
])
def test_the_newest_form_that_is_served_is_found(server, expected):
    assert gangs.native(server) == expected


@pytest.mark.parametrize("server, told, remedy", [
    (Server("37", v1=["PriorityClass"]), "v1.37.2 serves neither PodGroup nor Workload", "scheduling.k8s.io/v1beta1=true"),
    (Server("37+", v1=["PriorityClass"], v1beta1=["PriorityClass"]), "off by default", "GenericWorkload"),
    (Server("36", v1=["PriorityClass"]), "off by default", "scheduling.k8s.io/v1alpha2=true"),
    (Server("35", v1=["PriorityClass"]), "off by default", "GangScheduling"),
    (Server("34", v1=["PriorityClass"]), "it began with 1.35", "another gang engine"),
])
def test_a_server_without_it_is_told_of_with_what_is_missing(server, told, remedy):
    with pytest.raises(EnvironmentBroken, match=told) as raised:
        gangs.native(server)
    assert remedy in raised.value.remedy


def test_a_pod_group_and_its_members():
    form = gangs.Native("v1beta1", "PodGroup")
    assert gangs.manifest(form, "train", 3, "lab-06") == {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "train", "namespace": "lab-06"},
                                                          "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}
    spec = {"containers": [{"name": "main"}]}
    assert gangs.member(form, "train", spec)["schedulingGroup"] == {"podGroupName": "train"}
    assert spec == {"containers": [{"name": "main"}]}


def test_the_first_form_keeps_its_group_inside_the_workload():
    form = gangs.Native("v1alpha1", "Workload")
    [group] = gangs.manifest(form, "train", 2)["spec"]["podGroups"]
    assert group == {"name": "gang", "policy": {"gang": {"minCount": 2}}}
    assert gangs.member(form, "train", {})["workloadRef"] == {"name": "train", "podGroup": group["name"]}


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "3"])
def test_a_gang_has_at_least_one_pod(count):
    with pytest.raises(BadInput, match="at least one pod"):
        gangs.manifest(gangs.Native("v1beta1", "PodGroup"), "train", count)
