"""The kind backend: the fleet with real kubelets among its nodes, a real device plugin, faults, and nothing left afterwards."""

from __future__ import annotations

import json
import re
import time

import pytest
from kind_support import pod, until

from orchlab import environment, faults
from orchlab.errors import BadInput
from orchlab.fleet_nodes import with_real_kubelet
from orchlab.kube import kind_cluster, kind_nodes
from orchlab.simulator import pods

PODS = "/api/v1/namespaces/default/pods"
REAL = ["h100-0", "a100-0", "t4-0"]
# The first test waits for the engine, the images and the cluster as well.
pytestmark = pytest.mark.timeout(3000)


@pytest.fixture
def client(cluster):
    client = cluster.client()
    yield client
    for found in client.list(PODS)[0]:
        client.delete(f"{PODS}/{found['metadata']['name']}", {"gracePeriodSeconds": 1})
    until(lambda: not client.list(PODS)[0])


def phase(client, name: str) -> str:
    return client.get(f"{PODS}/{name}")["status"].get("phase", "")


def started(client, name: str) -> dict:
    until(lambda: phase(client, name) == "Running")
    return client.get(f"{PODS}/{name}")


def allocatable(client, node: str, resource: str = "nvidia.com/gpu") -> str:
    return client.get(f"/api/v1/nodes/{node}")["status"]["allocatable"].get(resource, "0")


def test_the_nodes_are_the_fleets_and_say_which_have_a_kubelet(cluster):
    nodes = {node["metadata"]["name"]: node for node in cluster.client().list("/api/v1/nodes")[0]}
    wanted = {node.name: node for node in cluster.nodes()}
    assert wanted.keys() == {name for name in nodes if not name.endswith("control-plane")}
    assert [node.name for node in with_real_kubelet(cluster.fleet.nodes())] == REAL
    for name, node in wanted.items():
        found = nodes[name]
        assert node.labels.items() <= found["metadata"]["labels"].items()
        assert found["metadata"]["labels"]["orchlab/kubelet"] == ("real" if name in REAL else "simulated")
        assert [taint["key"] for taint in found["spec"].get("taints", [])] == [taint.key for taint in node.taints]
        assert found["status"]["allocatable"].get("nvidia.com/gpu", "0") == str(node.gpus)
        assert found["status"]["capacity"]["cpu"] == str(node.cpu)
        assert pods.milli(found["status"]["capacity"]["memory"]) // 1000 == node.memory_bytes, "a kubelet's machine is the fleet's"


def test_gates_are_as_on_local(cluster, kubectl):
    assert "podgroups" in kubectl("api-resources", "--api-group=scheduling.k8s.io")
    assert {state.name: state.healthy for state in cluster.health()}["gpu-operator"]
    assert all(state.healthy for state in cluster.health())


def test_operands_run_on_real_kubelets_and_came_up_in_their_order(cluster):
    found, _ = cluster.client().list("/api/v1/namespaces/gpu-operator/pods", fieldSelector="spec.nodeName=a100-0")
    began = {one["metadata"]["ownerReferences"][0]["name"]: min(s["state"]["running"]["startedAt"] for s in one["status"]["containerStatuses"]) for one in found}
    assert began["nvidia-driver-daemonset"] <= began["nvidia-container-toolkit-daemonset"] <= began["nvidia-device-plugin-daemonset"] <= began["nvidia-operator-validator"]


def test_a_pod_on_a_real_kubelet_gets_its_devices_and_an_nvidia_smi(cluster, client, kubectl):
    client.create(PODS, pod("real", gpus=2, node="a100-0", run_for="10h"))
    found = started(client, "real")
    devices = kubectl("exec", "real", "--", "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES").strip().split(",")
    assert len(devices) == 2 and all(device.startswith("GPU-") for device in devices)
    listed = kubectl("exec", "real", "--", "nvidia-smi", "-L")
    assert all(device in listed for device in devices) and "A100" in listed
    held = until(lambda: client.get(f"{PODS}/real")["metadata"].get("annotations", {}).get("orchlab/devices"))
    assert {container: sorted(ids) for container, ids in json.loads(held).items()} == {"main": sorted(devices)}
    assert "STAND-IN by orchlab" in kubectl("logs", "real")
    assert found["spec"]["nodeName"] == "a100-0"


def test_a_pod_on_a_simulated_node_runs_and_has_a_log(client, kubectl):
    client.create(PODS, pod("made-up", gpus=1, node="a100-1", run_for="10h"))
    started(client, "made-up")
    assert "SIMULATED by orchlab" in until(lambda: kubectl("logs", "made-up", check=False).stdout)


def test_a_pod_ends_as_its_annotations_say(client):
    client.create(PODS, pod("short", node="t4-0", run_for="30s"))
    client.create(PODS, pod("bad", node="t4-0", run_for="30s", exit_code="3"))
    until(lambda: phase(client, "short") == "Succeeded" and phase(client, "bad") == "Failed")
    ended = client.get(f"{PODS}/bad")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == 3


def test_a_real_oom_kill(client):
    client.create(PODS, pod("greedy", node="t4-0", limits={"memory": "64Mi"}, run_for="1s", exit="oom"))
    until(lambda: phase(client, "greedy") == "Failed")
    ended = client.get(f"{PODS}/greedy")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


def test_gpus_are_gone_while_the_plugin_is_and_come_back(client):
    client.patch("/api/v1/nodes/t4-0", {"metadata": {"labels": {"nvidia.com/gpu.deploy.device-plugin": "false"}}})
    until(lambda: allocatable(client, "t4-0") == "0")
    assert client.get("/api/v1/nodes/t4-0")["status"]["capacity"]["nvidia.com/gpu"] == "2", "capacity stays for the kubelet's grace"
    client.patch("/api/v1/nodes/t4-0", {"metadata": {"labels": {"nvidia.com/gpu.deploy.device-plugin": None}}})
    until(lambda: allocatable(client, "t4-0") == "2", 90)


def test_a_plugin_that_dies_while_it_allocates_fails_the_pod_and_comes_back(engine, cluster, client):
    """Stopped, it does not answer the kubelet, which asks for its preference and then to allocate; killed, it never will."""
    worker, plugin = kind_nodes.of(cluster).workers["t4-0"], "orchlab.device_plugin"
    engine.run("exec", worker, "pkill", "-STOP", "-f", plugin)
    try:
        client.create(PODS, pod("caught", gpus=2, node="t4-0", run_for="10h"))
        until(lambda: client.get(f"{PODS}/caught")["spec"].get("nodeName"))
        time.sleep(2)
        assert phase(client, "caught") == "Pending", "the kubelet waits for the plugin's answer"
    finally:
        engine.run("exec", worker, "pkill", "-KILL", "-f", plugin)
    until(lambda: phase(client, "caught") == "Failed")
    status = client.get(f"{PODS}/caught")["status"]
    assert status["reason"] == "UnexpectedAdmissionError", status
    assert re.fullmatch(r"Pod was rejected: Allocate failed due to .*rpc error: code = Unavailable .*", status["message"]), status
    until(lambda: allocatable(client, "t4-0") == "2", 90)
    client.create(PODS, pod("next", gpus=2, node="t4-0", run_for="10h"))
    started(client, "next")


def test_a_kubelet_that_restarts_finds_its_plugin_again(cluster, client):
    kind_nodes.of(cluster).cluster.restart_kubelet(REAL.index("t4-0"))
    client.create(PODS, pod("after", gpus=2, node="t4-0", run_for="10h"))
    until(lambda: phase(client, "after") in ("Running", "Failed"), 120)
    until(lambda: allocatable(client, "t4-0") == "2", 60)


def test_an_xid_makes_a_device_unhealthy_for_the_kubelet_too(cluster, client):
    faults.cause(cluster, "xid", "t4-0/1")
    until(lambda: allocatable(client, "t4-0") == "1")
    plugin = client.list("/api/v1/namespaces/gpu-operator/pods", labelSelector="app=nvidia-device-plugin-daemonset", fieldSelector="spec.nodeName=t4-0")[0][0]
    client.delete(f"/api/v1/namespaces/gpu-operator/pods/{plugin['metadata']['name']}")
    until(lambda: allocatable(client, "t4-0") == "2", 90)


def test_a_node_that_is_down_and_comes_back(cluster, client):
    faults.cause(cluster, "node-down", "t4-0")
    ready = lambda: next(c["status"] for c in client.get("/api/v1/nodes/t4-0")["status"]["conditions"] if c["type"] == "Ready")  # noqa: E731
    until(lambda: ready() == "Unknown", 90)
    faults.clear(cluster, "node-down", "t4-0")
    until(lambda: ready() == "True", 90)


def test_a_fleet_with_other_nodes_that_have_a_kubelet_is_refused_and_nothing_changes(cluster):
    other = {"pools": [{"name": "l40s", "count": 1, "gpus": {"model": "T4", "count": 1}, "cpu": 4, "memory": "8Gi"}]}
    with pytest.raises(BadInput, match=r"--fleet: 'l40s-0'.* made with h100-0, a100-0, t4-0") as refused:
        environment.up("default", fleet=other)
    assert "orchlab down --name default" in refused.value.remedy
    assert environment.Environment.load("default").record.fleet == cluster.record.fleet


def test_faults_that_cannot_be_here_are_refused(cluster):
    with pytest.raises(BadInput, match="--kubernetes local"):
        faults.cause(cluster, "store-full")


def test_up_again_heals_a_stopped_node(engine, cluster, client):
    worker = kind_nodes.of(cluster).workers["t4-0"]
    engine.run("stop", "--time", "1", worker, seconds=60)
    assert not all(state.healthy for state in cluster.health())
    environment.up("default")
    assert all(state.healthy for state in cluster.health())
    until(lambda: allocatable(client, "t4-0") == "2", 120)


def test_other_clusters_are_left_alone(engine, cluster):
    """A container that is not ours, with kind's label."""
    image = engine.run("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "orchlab/standin").stdout.split()[0]
    engine.run("run", "--detach", "--name", "stranger", "--label", f"{kind_cluster.CLUSTER_LABEL}=mine", "--entrypoint", "sleep", image, "1000")
    try:
        kind_cluster.of(cluster.folder / "kind").containers()
        assert "stranger" not in [one.service for one in kind_cluster.of(cluster.folder / "kind").containers()]
    finally:
        engine.run("rm", "--force", "stranger")
