import json

import pytest
from simulator_fakes import Api, Direct

from orchlab import fleet
from orchlab.errors import ApiError
from orchlab.fleet_nodes import quantity
from orchlab.simulator import nodes
from orchlab.simulator.nodes import DIGEST, Publisher


def manifest(index=0, port=1234):
    return nodes.manifest(fleet.load().nodes()[index], "e", port, "v1.37.2")


def existing(content, digest=None, cidr="10.128.0.0/24"):
    annotations = {key: value for key, value in content["metadata"]["annotations"].items() if value} | {DIGEST: digest or nodes.digest(content)}
    return {"metadata": {"name": content["metadata"]["name"], "annotations": annotations}, "spec": {"podCIDR": cidr}}


def publish(answers, *wanted):
    api = Api(({"items": []}, "1"))
    api.answers = answers
    Publisher(api, Direct()).publish(list(wanted))
    return api.asked[1:]


def test_a_node_says_what_it_has_and_that_it_is_simulated():
    made = manifest()
    capacity, allocatable, info = made["status"]["capacity"], made["status"]["allocatable"], made["status"]["nodeInfo"]
    assert (capacity["cpu"], capacity["pods"]) == ("192", "110")
    assert quantity(capacity["memory"]) - quantity(allocatable["memory"]) == 100 * 2**20
    assert quantity(allocatable["ephemeral-storage"]) == pytest.approx(0.9 * quantity(capacity["ephemeral-storage"]))
    assert info["kubeletVersion"] == "v1.37.2-orchlab"
    assert all("simulated" in info[part] for part in ("osImage", "containerRuntimeVersion", "kernelVersion"))
    assert made["metadata"]["labels"]["orchlab/kubelet"] == "simulated"


def test_the_label_of_a_silent_kubelet_is_taken_away():
    node = fleet.load().nodes()[0]
    made = nodes.manifest(node, "e", 1, "v1", down=True)
    asked = publish([([existing(manifest())], "1")], made)
    assert asked[1][2]["metadata"]["labels"]["orchlab/kubelet"] is None
    assert "orchlab/kubelet" not in publish([([], "1")], made)[0][2]["metadata"]["labels"]


def test_gpus_are_built_in_but_nobody_has_discovered_them():
    made = manifest()
    built_in = json.loads(made["metadata"]["annotations"][nodes.HARDWARE])
    assert built_in == {"model": "H100-80", "count": 8}
    assert not any("nvidia" in key for key in (*made["status"]["capacity"], *made["metadata"]["labels"]))
    assert manifest(-1)["metadata"]["annotations"] == {nodes.HARDWARE: None, nodes.TAINTS: "[]"}


def test_a_missing_node_is_registered_ready_with_a_range_of_its_own():
    other = existing(manifest(1))
    asked = publish([([other], "1")], manifest(0), manifest(1))
    assert [(method, path) for method, path, _ in asked] == [("POST", nodes.NODES)]
    body = asked[0][2]
    conditions = {c["type"]: c["status"] for c in body["status"]["conditions"]}
    assert conditions == {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}
    assert body["spec"]["podCIDR"] == "10.128.1.0/24" and body["spec"]["taints"][0]["key"] == "nvidia.com/gpu"


def test_what_is_as_published_is_left_alone():
    assert publish([([existing(manifest())], "1")], manifest()) == []


def test_a_changed_node_is_told_so_and_keeps_the_rest():
    asked = publish([([existing(manifest())], "1")], manifest(port=4321))
    assert [(method, path) for method, path, _ in asked] == [("PATCH", f"{nodes.NODES}/h100-0/status"), ("PATCH", f"{nodes.NODES}/h100-0")]
    assert asked[0][2]["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 4321
    # Only our own labels and marks are named, and no taint: the rest is whoever's it is.
    assert set(asked[1][2]) == {"metadata"} and "spec" not in asked[0][2]


def test_another_fleets_taints_replace_the_published_ones_and_leave_somebodys_alone():
    own, cordon = {"key": "mine", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    found, changed = existing(manifest()), manifest()
    found["spec"]["taints"] = [*manifest()["spec"]["taints"], own, cordon]
    changed["metadata"]["annotations"] = changed["metadata"]["annotations"] | {nodes.TAINTS: "[]"}
    changed["spec"] = {}
    assert publish([([found], "1")], changed)[1][2]["spec"] == {"taints": [own, cordon]}
    assert nodes.taints_after(found, manifest()["spec"]["taints"]) is None
    old = {"metadata": {"annotations": {}}, "spec": {"taints": [own]}}
    assert nodes.taints_after(old, []) is None, "published by an older orchlab, which did not note its taints"


def test_only_published_nodes_are_removed():
    foreign = {"metadata": {"name": "theirs"}}
    asked = publish([([existing(manifest(5)), foreign, existing(manifest())], "1")], manifest())
    assert asked == [("DELETE", f"{nodes.NODES}/a100-1", None)]


def test_somebody_else_registered_or_deleted_it_meanwhile():
    assert len(publish([([], "1"), ApiError(409, "", "there")], manifest())) == 1
    assert len(publish([([existing(manifest())], "1"), ApiError(404, "", "gone")])) == 1
    with pytest.raises(ApiError):
        publish([([], "1"), ApiError(403, "", "no")], manifest())
