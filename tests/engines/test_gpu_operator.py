"""The GPU Operator on a real control plane. Each test leaves the cluster as the operator's installation does."""

from __future__ import annotations

import json
import time

import pytest
from gpu_operator_support import (
    CONFIG_MAPS,
    PODS,
    POLICY,
    advertises,
    became_ready,
    config_map,
    gpus,
    is_ready,
    label,
    labels,
    log,
    mig,
    operand,
    policy,
    restart,
    tenant,
)
from simulator_support import create, kill, namespace, phase_is, until

from orchlab import faults
from orchlab.errors import ApiError
from orchlab.gpu_operator import exporter, operands, smi
from orchlab.gpu_operator.restore import restore

SLICED = "version: v1\nsharing: {timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
RENAMED = "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
BROKEN = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}\n"
MPS = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 8}]}}\n"


@pytest.fixture(scope="module")
def client(environment):
    found = environment.client()
    back(environment, found)
    yield found
    back(environment, found)


def back(environment, client) -> list[str]:
    return restore(client, {node.name: node.gpus for node in environment.fleet.nodes() if node.gpus}, time.monotonic() + 60)


@pytest.fixture
def where(client):
    with namespace(client) as name:
        yield name


def ready(client) -> bool:
    return client.get(POLICY)["status"]["state"] == "ready"


def test_operands_came_up_in_their_order(client):
    """By the moments at which they became Ready, whole seconds."""
    pods = {app: operand(client, "h100-0", app) for app in operands.BY_NAME}
    assert {app for app, pod in pods.items() if pod is None} == {operands.MPS_DS, operands.DCGM_DS, "nvidia-node-status-exporter"}
    moments = [became_ready(pods[app]) for app in (operands.DRIVER_DS, operands.TOOLKIT_DS, operands.PLUGIN_DS, operands.VALIDATOR_DS)]
    assert moments == sorted(moments)
    assert operand(client, "t4-0", operands.MIG_DS) is None and operand(client, "cpu-0", operands.DRIVER_DS) is None
    found = labels(client, "h100-0")
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3" and found["nvidia.com/mig.config.state"] == "success"
    assert "nvidia.com/mig.config" not in labels(client, "t4-0") and not any("nvidia" in key for key in labels(client, "cpu-0"))
    status = client.get(POLICY)["status"]
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"Ready": "True", "Error": "False"}


def test_a_policy_that_says_nonsense_is_refused(client):
    for section, field in (({"mig": {"strategy": "triple"}}, "spec.mig.strategy"), ({"driver": {"enabled": "yes"}}, "spec.driver.enabled")):
        with pytest.raises(ApiError, match=field):
            client.patch(POLICY, {"spec": section})


def test_without_the_plugin_nothing_is_allocatable_and_capacity_follows(client):
    label(client, "a100-0", **{"gpu.deploy.device-plugin": "false"})
    until(lambda: gpus(client, "a100-0") == {"gpu": "0"}, 10)
    assert gpus(client, "a100-0", "capacity") == {"gpu": "4"}
    # Five minutes by the environment's clock. The key stays.
    until(lambda: gpus(client, "a100-0", "capacity") == {"gpu": "0"}, 15)
    label(client, "a100-0", **{"gpu.deploy.device-plugin": None})
    advertises(client, "a100-0", gpu="4")


def test_a_driver_that_does_not_load_holds_up_the_others(environment, client):
    faults.cause(environment, "driver-broken", "a100-1")
    try:
        advertises(client, "a100-1")
        until(lambda: waiting(operand(client, "a100-1", operands.DRIVER_DS)) == "CrashLoopBackOff")
        for app in (operands.TOOLKIT_DS, operands.PLUGIN_DS, operands.VALIDATOR_DS):
            found = until(lambda app=app: (p := operand(client, "a100-1", app)) and p["status"].get("initContainerStatuses") and p)
            assert found["status"]["phase"] == "Pending" and "running" in found["status"]["initContainerStatuses"][0]["state"]
        assert "NVIDIA-SMI has failed" in smi.text(environment, "a100-1")
        until(lambda: client.get(POLICY)["status"]["state"] == "notReady")
        assert "state-driver" in client.get(POLICY)["status"]["conditions"][1]["message"]
    finally:
        faults.clear(environment, "driver-broken")
    advertises(client, "a100-1", gpu="4")


def waiting(pod: dict | None, index: int = 0) -> str:
    statuses = ((pod or {}).get("status") or {}).get("containerStatuses") or [{}]
    return (statuses[index].get("state", {}).get("waiting") or {}).get("reason", "")


def test_an_xid_takes_one_device_until_the_plugin_restarts(environment, client):
    faults.cause(environment, "xid", "t4-0/1:31")
    faults.cause(environment, "xid", "t4-0/0")
    advertises(client, "t4-0", gpu="1")
    assert gpus(client, "t4-0", "capacity") == {"gpu": "2"}
    restart(client, "t4-0", operands.PLUGIN_DS)
    advertises(client, "t4-0", gpu="2")


def test_a_label_by_hand_is_put_back(client):
    label(client, "t4-0", **{"gpu.product": "GeForce", "gpu.memory": None, "team": "mine"})
    until(lambda: labels(client, "t4-0")["nvidia.com/gpu.product"] == "Tesla-T4" and "nvidia.com/gpu.memory" in labels(client, "t4-0"), 10)
    assert labels(client, "t4-0")["nvidia.com/team"] == "mine"
    label(client, "t4-0", team=None)


@pytest.fixture(scope="module")
def configured(client, environment):
    """A ConfigMap with configurations, none of them the default."""
    config_map(client, "configs", sliced=SLICED, renamed=RENAMED, broken=BROKEN, mps=MPS, mine=SLICED)
    policy(client, devicePlugin={"config": {"name": "configs", "default": ""}}, daemonsets={"rollingUpdate": {"maxUnavailable": "100%"}})
    until(lambda: not ready(client), what="the plugins restart")
    until(lambda: ready(client), 60, "ready again")
    return client


def test_a_label_chooses_a_configuration_and_acts_at_once(configured, where):
    label(configured, "t4-0", **{"device-plugin.config": "sliced"})
    advertises(configured, "t4-0", 10, gpu="8")
    until(lambda: labels(configured, "t4-0")["nvidia.com/gpu.product"] == "Tesla-T4-SHARED", 10)
    create(configured, where, *(tenant(f"one-{n}", "t4-0") for n in range(4)))
    held = [phase_is(configured, where, f"one-{n}", "Running")["metadata"]["annotations"]["orchlab/devices"] for n in range(4)]
    devices = [json.loads(one)["main"][0].partition("::")[0] for one in held]
    # The plugin spreads replicas over its GPUs.
    assert sorted(devices.count(device) for device in set(devices)) == [2, 2]
    create(configured, where, tenant("two", "t4-0", count=2))
    refused = phase_is(configured, where, "two", "Failed")["status"]
    assert refused["reason"] == "UnexpectedAdmissionError"
    assert "maximum request size for shared resources is 1; found 2" in refused["message"]
    label(configured, "t4-0", **{"device-plugin.config": "renamed"})
    advertises(configured, "t4-0", 10, **{"gpu.shared": "4"})
    label(configured, "t4-0", **{"device-plugin.config": None})
    advertises(configured, "t4-0", 10, gpu="2")


def test_an_edited_config_map_waits_for_the_plugin_to_restart(configured):
    label(configured, "a100-1", **{"device-plugin.config": "mine"})
    advertises(configured, "a100-1", 10, gpu="16")
    configured.patch(f"{CONFIG_MAPS}/configs", {"data": {"mine": SLICED.replace("4", "3")}})
    time.sleep(2)
    assert gpus(configured, "a100-1") == {"gpu": "16"}
    restart(configured, "a100-1", operands.PLUGIN_DS)
    advertises(configured, "a100-1", 10, gpu="12")
    label(configured, "a100-1", **{"device-plugin.config": None})
    advertises(configured, "a100-1", 10, gpu="4")


def test_a_bad_configuration_crash_loops_with_the_plugins_own_error(configured):
    label(configured, "a100-0", **{"device-plugin.config": "broken"})
    until(lambda: waiting(operand(configured, "a100-0", operands.PLUGIN_DS)) == "CrashLoopBackOff", 15)
    advertises(configured, "a100-0")
    found = operand(configured, "a100-0", operands.PLUGIN_DS)
    said = log(configured, found, "nvidia-device-plugin")
    assert "error starting plugins: unable to load config" in said and "number of replicas must be >= 2" in said
    label(configured, "a100-0", **{"device-plugin.config": "absent"})
    configured.delete(f"{PODS}/{found['metadata']['name']}")
    new = until(lambda: (p := operand(configured, "a100-0", operands.PLUGIN_DS)) and init_waits(p) and p, 15)
    assert log(configured, new, "config-manager-init").count("specified config absent does not exist") == 1
    label(configured, "a100-0", **{"device-plugin.config": None})
    advertises(configured, "a100-0", 20, gpu="4")


def init_waits(pod: dict) -> bool:
    statuses = pod["status"].get("initContainerStatuses") or []
    return any("CrashLoopBackOff" == (status["state"].get("waiting") or {}).get("reason") for status in statuses)


def test_mps_brings_its_control_daemon(configured):
    label(configured, "t4-0", **{"device-plugin.config": "mps"})
    advertises(configured, "t4-0", 20, gpu="16")
    assert is_ready(operand(configured, "t4-0", operands.MPS_DS)) and labels(configured, "t4-0")["nvidia.com/mps.capable"] == "true"
    label(configured, "t4-0", **{"device-plugin.config": None})
    advertises(configured, "t4-0", 20, gpu="2")


def test_mig_on_an_idle_node_under_single_and_mixed(environment, configured, where):
    states = []

    def settled() -> bool:
        found = labels(configured, "a100-0")
        states.append((found.get("nvidia.com/mig.config.state"), found["nvidia.com/gpu.deploy.device-plugin"]))
        return states[-1] == ("success", "true") and len(states) > 1

    label(configured, "a100-0", **{"mig.config": "all-1g.5gb"})
    until(lambda: settled() and gpus(configured, "a100-0")["gpu"] == "28", what="28 slices")
    assert ("pending", "paused-for-mig-change") in states
    until(lambda: labels(configured, "a100-0")["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")
    assert "MIG 1g.5gb" in smi.text(environment, "a100-0", listing=True)
    policy(configured, mig={"strategy": "mixed"})
    advertises(configured, "a100-0", **{"mig-1g.5gb": "28"})
    create(configured, where, tenant("slice", "a100-0", "mig-1g.5gb"))
    held = phase_is(configured, where, "slice", "Running")
    assert json.loads(held["metadata"]["annotations"]["orchlab/devices"])["main"][0].startswith("MIG-")
    # A GPU in use does not change, and nobody is evicted.
    mig(configured, "a100-0", "all-disabled", "failed")
    said = log(configured, operand(configured, "a100-0", operands.MIG_DS), "nvidia-mig-manager")
    assert "In use by another client" in said and phase_is(configured, where, "slice", "Running")
    advertises(configured, "a100-0", **{"mig-1g.5gb": "28"})


def test_mig_configurations_that_there_are_not(configured):
    mig(configured, "a100-1", "all-1g.6gb", "failed")
    said = log(configured, operand(configured, "a100-1", operands.MIG_DS), "nvidia-mig-manager")
    assert "selected mig-config not present: all-1g.6gb" in said
    path = f"{CONFIG_MAPS}/a100-1-mig-config"
    before = configured.get(path)["data"]
    configured.patch(path, {"data": {"config.yaml": "version: v1\nmig-configs: {}\n"}})
    until(lambda: configured.get(path)["data"] == before, 10, "the operator's own configuration")


def test_restore_puts_everything_back(environment, configured):
    done = back(environment, configured)
    assert any("ClusterPolicy" in line for line in done) and "ConfigMap configs: removed" in done
    assert gpus(configured, "a100-0") == {"gpu": "4", "mig-1g.5gb": "0"} and back(environment, configured) == []


def test_metrics_name_the_pod(environment, client, where):
    create(client, where, tenant("worker", "h100-3", count=2))
    phase_is(client, where, "worker", "Running")
    text = exporter.metrics(client, environment.record.id, "h100-3")
    mine = [line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_GPU_UTIL{") and 'pod="worker"' in line]
    assert len(mine) == 2 and all(f'namespace="{where}"' in line and float(line.split()[-1]) > 50 for line in mine)
    assert smi.text(environment, f"{where}/worker", listing=True).count("UUID: GPU-") == 2


def test_a_killed_operator_goes_on_where_it_was(environment, client):
    before = gpus(client, "h100-0")
    kill(environment, "gpu-operator")
    label(client, "t4-0", **{"gpu.deploy.device-plugin": "false"})
    advertises(client, "t4-0", 20)
    assert gpus(client, "h100-0") == before
    label(client, "t4-0", **{"gpu.deploy.device-plugin": None})
    advertises(client, "t4-0", gpu="2")


def test_without_a_policy_the_nodes_are_bare_again(environment, client):
    client.delete(POLICY)
    until(lambda: not any(key.startswith("nvidia.com/") for key in labels(client, "h100-0")), 20)
    advertises(client, "h100-0")
    until(lambda: operand(client, "h100-0", operands.DRIVER_DS) is None)
    assert labels(client, "h100-0")["feature.node.kubernetes.io/pci-10de.present"] == "true"
    assert any("ClusterPolicy" in line for line in back(environment, client))
