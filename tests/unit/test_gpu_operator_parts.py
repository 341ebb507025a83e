"""The operator's parts: DaemonSets of a policy, its status, the queue, the cache, the CRD, rights, what is seen from inside a node."""

import json
import threading
import time

import pytest
import yaml
from gpu_operator_fakes import Node, default

from orchlab.gpu_operator import exporter, gates, install, names, operands, policy, rbac, readings, status
from orchlab.gpu_operator.cache import Cache
from orchlab.gpu_operator.policy import Policy
from orchlab.gpu_operator.queue import WorkQueue
from orchlab.gpus import smi


def test_the_default_policys_daemonsets():
    made = operands.wanted(default())
    assert set(made) == operands.BY_NAME.keys() - {operands.DCGM_DS, "nvidia-node-status-exporter"}
    for name, manifest in made.items():
        spec = manifest["spec"]["template"]["spec"]
        assert spec["nodeSelector"]["nvidia.com/gpu.deploy." + operands.BY_NAME[name].label] == "true"
        assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        assert manifest["metadata"]["ownerReferences"][0]["kind"] == "ClusterPolicy" and manifest["metadata"]["annotations"][names.HASH]
    assert made[operands.DRIVER_DS]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert made[operands.MPS_DS]["spec"]["template"]["spec"]["nodeSelector"][names.MPS_CAPABLE] == "true"


def test_a_configuration_brings_its_manager_and_another_digest():
    plain, made = operands.wanted(default()), operands.wanted(default(devicePlugin={"config": {"name": "c", "default": "d"}}))
    spec = made[operands.PLUGIN_DS]["spec"]["template"]["spec"]
    assert [container["name"] for container in spec["containers"]] == ["nvidia-device-plugin", "config-manager"]
    assert [container["name"] for container in spec["initContainers"]] == ["toolkit-validation", "config-manager-init"]
    changed = {name for name in made if made[name]["metadata"]["annotations"] != plain[name]["metadata"]["annotations"]}
    assert changed == {operands.PLUGIN_DS, operands.GFD_DS, operands.MPS_DS}


def test_sections_that_are_left_out():
    empty = Policy("cluster-policy", "u", {})
    assert empty.enabled("driver") and empty.enabled("dcgm") and not empty.enabled("nodeStatusExporter")
    assert empty.mig_strategy == "none" and empty.plugin_config == ("", "") and empty.mig_config == ("", "all-disabled")
    assert operands.DCGM_DS in operands.wanted(empty)


def daemonset(manifest: dict, unavailable: int = 0, updated: int = 2) -> dict:
    return {"metadata": {"generation": 1, "annotations": manifest["metadata"]["annotations"]},
            "status": {"observedGeneration": 1, "desiredNumberScheduled": 2, "numberUnavailable": unavailable,
                       "updatedNumberScheduled": updated}}


def test_states_that_are_not_ready_are_named_in_the_operators_order():
    wanted = operands.wanted(default())
    found = {name: daemonset(manifest) for name, manifest in wanted.items()}
    assert operands.states(default(), found.get) == []
    found[operands.PLUGIN_DS] = daemonset(wanted[operands.PLUGIN_DS], unavailable=1)
    found[operands.GFD_DS] = daemonset(wanted[operands.GFD_DS], updated=1)
    del found[operands.DRIVER_DS]
    missing = operands.states(default(), found.get)
    assert missing == ["state-driver", "state-device-plugin", "gpu-feature-discovery"]
    new = status.of({}, missing, True, True, "gpu-operator")
    assert new["state"] == "notReady"
    assert new["conditions"][1]["message"] == ("ClusterPolicy is not ready, states not ready: "
                                               "[state-driver state-device-plugin gpu-feature-discovery]")


def test_a_status_says_what_is_missing_though_it_is_ready():
    assert [status.of({}, [], *has, "n")["conditions"][0]["reason"] for has in ((False, False), (True, False), (True, True))] == [
        "NFDLabelsMissing", "NoGPUNodes", "Reconciled"]
    first = status.of({}, [], True, True, "n")
    first["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    assert status.of(first, [], True, True, "n")["conditions"][0] == first["conditions"][0]


def test_a_key_is_worked_on_once_at_a_time_and_again_if_it_was_added_meanwhile():
    queue = WorkQueue()
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert queue.get(0) == "a" and queue.get(0) == "b" and queue.get(0) is None
    queue.add("a")
    assert queue.get(0) is None
    queue.done("a")
    assert queue.get(0) == "a"


def test_a_later_key_comes_when_it_is_due():
    queue = WorkQueue()
    queue.add("late", 0.2)
    queue.add("late", 0.05)
    queue.add("late", 9)
    began = time.monotonic()
    assert queue.get(2) == "late" and time.monotonic() - began < 0.19
    queue.done("late")
    assert queue.get(0) is None
    threading.Timer(0.05, queue.add, ("woken",)).start()
    assert queue.get(5) == "woken"


def node_object(version: int, **labels: str) -> dict:
    notes = {"orchlab/gpu-state": "{}", "x": "y"}
    return {"metadata": {"name": "n", "resourceVersion": str(version), "labels": labels, "annotations": notes},
            "status": {"allocatable": {"cpu": "1", "nvidia.com/gpu": "2"}}}


def test_the_cache_never_goes_back():
    cache = Cache()
    assert cache.put_node(node_object(5, a="1")) and not cache.put_node(node_object(6, a="1"))
    assert not cache.put_node(node_object(4, a="0")) and cache.node("n").labels == {"a": "1"}
    assert cache.node("n").notes == {"orchlab/gpu-state": "{}"} and cache.node("n").allocatable == {"nvidia.com/gpu": "2"}
    cache.only_nodes(set())
    assert cache.node("n") is None


def pod_object(uid: str, version: int, deleting: bool = False, phase: str = "Running", app: str = operands.PLUGIN_DS) -> dict:
    metadata = {"name": uid, "uid": uid, "resourceVersion": str(version), "creationTimestamp": f"2026-01-01T00:00:{version:02}Z",
                "ownerReferences": [{"kind": "DaemonSet", "name": app}], "annotations": {"orchlab/init": "1"}}
    if deleting:
        metadata["deletionTimestamp"] = "x"
    spec = {"nodeName": "n", "containers": [{"name": "c"}], "initContainers": [{"name": "toolkit-validation"}]}
    return {"metadata": metadata, "spec": spec,
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}]}}


def test_of_two_pods_the_one_that_stays_counts():
    cache = Cache()
    assert cache.put_pod(pod_object("old", 1)) == "n" and cache.put_pod(pod_object("new", 3)) == "n"
    assert cache.put_pod(pod_object("old", 2, deleting=True)) == "n" and cache.put_pod(pod_object("old", 1)) is None
    assert cache.pods("n")[operands.PLUGIN_DS].uid == "new"
    assert cache.put_pod(pod_object("other", 4, app="mine")) is None
    cache.put_pod(pod_object("new", 5, phase="Failed"))
    assert cache.pods("n")[operands.PLUGIN_DS].uid == "old" and cache.drop_pod("old") == "n" and cache.pods("n") == {}


def test_what_was_deleted_does_not_come_back_with_the_answer_to_a_write_before():
    cache = Cache()
    daemonset = {"metadata": {"name": "d", "resourceVersion": "3"}}
    assert not cache.put_node(node_object(3), own=True) and cache.put_pod(pod_object("p", 3), own=True) is None
    cache.put_object("daemonsets", dict(daemonset), own=True)
    assert cache.nodes() == [] and cache.pods("n") == {} and cache.objects("daemonsets") == {}
    assert cache.put_node(node_object(3)) and cache.put_node(node_object(4, a="1"), own=True)
    assert cache.put_pod(pod_object("p", 3)) == "n" and cache.put_pod(pod_object("p", 4), own=True) == "n"
    cache.put_object("daemonsets", dict(daemonset))
    cache.put_object("daemonsets", {"metadata": {"name": "d", "resourceVersion": "4"}}, own=True)
    assert cache.objects("daemonsets")["d"]["metadata"]["resourceVersion"] == "4"


def test_what_an_operands_pod_says():
    found = gates.of(pod_object("u", 1))
    assert (found.done, found.open, found.runs, found.instance) == (1, False, True, "u/0")


def test_the_default_policy_fits_its_schema():
    schema = yaml.safe_load(install.CRD.read_text(encoding="utf-8"))["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    def check(value: object, rule: dict, path: str) -> None:
        kinds = {"object": dict, "string": str, "boolean": bool, "array": list, "integer": int}
        assert isinstance(value, kinds[rule["type"]]), path
        assert value in rule.get("enum", [value]), path
        if isinstance(value, dict) and "properties" in rule:
            for key, item in value.items():
                check(item, rule["properties"][key], f"{path}.{key}")

    check(policy.default(), schema, "")


def test_the_operator_may_write_nodes_and_nothing_of_their_status():
    rules = [rule for role in rbac.manifests() if role["kind"].endswith("Role") for rule in role["rules"]]
    assert not any("*" in rule["verbs"] + rule["resources"] for rule in rules)
    assert not any(resource in ("nodes/status", "pods/status", "secrets") for rule in rules for resource in rule["resources"])


def holding(name: str, *ids: str) -> dict:
    return {"metadata": {"name": name, "namespace": "ns", "uid": name, "annotations": {"orchlab/devices": json.dumps({"main": list(ids)})}},
            "spec": {"nodeName": "n", "containers": [{"name": "main"}]}, "status": {"phase": "Running"}}


def test_nvidia_smi_follows_what_runs():
    node = Node("T4", 2).settle()
    found = {"metadata": {"name": "n", "annotations": node.notes, "labels": node.labels}}
    first = json.loads(node.notes["orchlab/gpu-inventory"])["resources"]["nvidia.com/gpu"]["devices"][0]
    seen = readings.of_node("env", found, [holding("p", first)])
    assert [holder.pod for holder in seen.holders] == ["p"] and seen.loads[first].busy > 0.8 and len(seen.loads) == 1
    inside = readings.of_pod(seen, "ns", "p")
    assert [gpu.uuid for gpu in inside.inventory.gpus] == [first] and first in smi.listing(inside.inventory)
    second = json.loads(node.notes["orchlab/gpu-inventory"])["resources"]["nvidia.com/gpu"]["devices"][1]
    other = readings.of_pod(readings.of_node("env", found, [holding("q", second)]), "ns", "q")
    assert f"GPU 0: Tesla T4 (UUID: {second})" in smi.listing(other.inventory), "a process counts what it may open, from 0"
    found["metadata"]["annotations"] = {key: value for key, value in node.notes.items() if key != names.STATE}
    assert "NVIDIA-SMI has failed" in smi.table(readings.of_node("env", found, []).inventory)


@pytest.mark.parametrize("replicas", [2, 4])
def test_sharers_share_the_memory(replicas):
    node = Node("T4", 1, devicePlugin={"config": {"name": "c", "default": "s"}})
    node.files["c"] = {"s": f"version: v1\nsharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: {replicas}}}]}}}}\n"}
    node.settle()
    device = json.loads(node.notes["orchlab/gpu-inventory"])["resources"]["nvidia.com/gpu"]["devices"][0]
    found = {"metadata": {"name": "n", "annotations": node.notes}}
    seen = readings.of_node("env", found, [holding(f"p{n}", f"{device}::{n}") for n in range(replicas)])
    assert len(seen.holders) == replicas and seen.loads[device].busy == 1.0
    assert 0.7 * 15360 < seen.loads[device].memory_mib <= 0.8 * 15360


def test_the_text_of_several_nodes_has_each_head_once():
    text = "# HELP a x\n# TYPE a gauge\na{n=\"1\"} 1\n# HELP b x\nb{n=\"1\"} 1\n# HELP a x\n# TYPE a gauge\na{n=\"2\"} 2\n"
    assert exporter._merged(text).splitlines() == ["# HELP a x", "# TYPE a gauge", 'a{n="1"} 1', 'a{n="2"} 2', "# HELP b x", 'b{n="1"} 1']
