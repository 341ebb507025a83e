"""Faults on the real control plane: each shows what it says, healing respects it, clearing mends it."""

from __future__ import annotations

import time

import pytest
from waiting import until

from orchlab import environment as environments
from orchlab import faults
from orchlab.environment import Environment
from orchlab.errors import ApiError, BadInput, EnvironmentBroken

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def env(environment):
    """The session's environment; whatever a test broke is mended after it."""
    yield Environment.load(environment.name)
    faults.clear(Environment.load(environment.name))
    client = environment.client()
    client.delete(PODS, gracePeriodSeconds=0)
    until(lambda: not client.list(PODS)[0])


def pod(env, name: str, policy: str = "Never", node: str | None = None, run_for: str = "24h") -> None:
    spec = {"restartPolicy": policy, "tolerations": [{"operator": "Exists"}], "containers": [{"name": "main", "image": "none"}]}
    annotations = {} if policy == "Always" else {"orchlab/run-for": run_for}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    env.client().create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec})


def get(env, name: str) -> dict:
    return env.client().get(f"{PODS}/{name}")


def running(env, name: str) -> dict:
    return until(lambda: found if (found := get(env, name))["status"].get("phase") == "Running" else None)


def ready(env, node: str) -> str:
    conditions = env.client().get(f"/api/v1/nodes/{node}")["status"]["conditions"]
    return next(condition["status"] for condition in conditions if condition["type"] == "Ready")


def test_a_daemon_that_is_down_stays_down_through_up_and_its_work_is_left_undone(env):
    faults.cause(env, "daemon-down", "kube-scheduler")
    environments.up(env.name)
    state = next(state for state in env.health() if state.name == "kube-scheduler")
    assert not state.healthy
    held = next(state for state in Environment.load(env.name).health() if state.name == "kube-scheduler")
    assert "orchlab fault clear daemon-down kube-scheduler" in held.detail
    pod(env, "waits")
    time.sleep(2)
    assert "nodeName" not in get(env, "waits")["spec"] and "conditions" not in get(env, "waits")["status"]
    assert [str(fault) for fault in faults.clear(env, "daemon-down")] == ["daemon-down kube-scheduler"]
    running(env, "waits")


def test_a_full_store_refuses_writes_and_answers_reads(env):
    faults.cause(env, "store-full")
    with pytest.raises(ApiError, match="database space exceeded"):
        pod(env, "refused")
    assert env.client().list("/api/v1/nodes")[0]
    faults.clear(env)
    pod(env, "accepted")
    running(env, "accepted")


def test_a_slow_store_slows_every_write_and_is_quick_again_afterwards(env):
    """No limit in seconds: three writes take longer than the pauses that they must meet, and the pauser is gone afterwards."""
    faults.cause(env, "api-slow")
    until(lambda: any(state.name == "pause-etcd" and state.healthy for state in Environment.load(env.name).health()))
    assert "pause-etcd" in [state.name for state in environments.up(env.name).health()]
    pod(env, "slow")
    running(env, "slow")
    faults.clear(env)
    assert "pause-etcd" not in [state.name for state in Environment.load(env.name).health()]
    import psutil

    etcd = next(state.pid for state in env.health() if state.name == "etcd")
    until(lambda: psutil.Process(etcd).status() != psutil.STATUS_STOPPED)


def condition(env, name: str, kind: str) -> str:
    return next(found["status"] for found in get(env, name)["status"]["conditions"] if found["type"] == kind)


def test_a_node_that_is_down_gets_not_ready_and_comes_back(env):
    node = env.fleet.nodes()[0].name
    pod(env, "on-it", node=node)
    running(env, "on-it")
    faults.cause(env, "node-down", node)
    until(lambda: ready(env, node) == "Unknown", 90)
    taints = env.client().get(f"/api/v1/nodes/{node}")["spec"].get("taints", [])
    assert "node.kubernetes.io/unreachable" in {taint["key"] for taint in taints}
    with pytest.raises(ApiError):
        env.client().request("GET", f"{PODS}/on-it/log")
    environments.up(env.name)
    time.sleep(2)
    assert ready(env, node) == "Unknown"
    assert condition(env, "on-it", "Ready") == "False"  # the node controller's word
    faults.clear(env, "node-down", node)
    until(lambda: ready(env, node) == "True" and condition(env, "on-it", "Ready") == "True")
    assert get(env, "on-it")["status"]["phase"] == "Running"


def test_a_pod_on_a_silent_node_does_not_start(env):
    node = env.fleet.nodes()[0].name
    faults.cause(env, "node-down", node)
    until(lambda: "orchlab/kubelet" not in env.client().get(f"/api/v1/nodes/{node}")["metadata"]["labels"])
    pod(env, "too-late", node=node)
    until(lambda: get(env, "too-late")["spec"].get("nodeName") == node)
    time.sleep(2)
    assert get(env, "too-late")["status"]["phase"] == "Pending"
    faults.clear(env)
    running(env, "too-late")


def test_a_killed_pod_fails_or_restarts_by_its_policy(env):
    pod(env, "once")
    pod(env, "again", policy="Always")
    for name in ("once", "again"):
        running(env, name)
        faults.cause(env, "pod-killed", f"default/{name}")
    once = until(lambda: found if (found := get(env, "once"))["status"]["phase"] == "Failed" else None)
    assert once["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    again = until(lambda: found if (found := get(env, "again"))["status"]["containerStatuses"][0]["restartCount"] == 1 else None)
    assert again["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137
    time.sleep(2)
    assert get(env, "again")["status"]["containerStatuses"][0]["restartCount"] == 1 and get(env, "again")["status"]["phase"] == "Running"
    assert faults.held(Environment.load(env.name)) == []


@pytest.mark.parametrize(("kind", "target", "words"), [
    ("meteor", "", "kind: 'meteor': is no fault"), ("daemon-down", "", "needs a process"), ("store-full", "etcd", "takes no target"),
    ("daemon-down", "kubelet", "is no process of this environment"), ("node-down", "h100-99", "is no simulated node"),
    ("pod-killed", "trainer", "is not namespace/pod"), ("pod-killed", "default/nobody", "there is no such pod")])
def test_bad_input_is_named_and_nothing_is_broken(env, kind, target, words):
    with pytest.raises(BadInput, match=words):
        faults.cause(env, kind, target)
    assert faults.held(Environment.load(env.name)) == []


def test_down_clears_all_faults(own, small_fleet):
    env = own(fleet=small_fleet)
    faults.cause(env, "daemon-down", "etcd")
    faults.cause(env, "node-down", "gpu-0")
    environments.up("own")  # does not wait for what is held down
    environments.down("own")
    assert faults.held(Environment.load("own")) == []
    with pytest.raises(EnvironmentBroken, match="is not running"):
        faults.cause(Environment.load("own"), "store-full")
    assert all(state.healthy for state in environments.up("own").health())
