"""The simulator and KWOK are killed, nodes go, the record changes: nothing is lost and no device is given twice."""

from __future__ import annotations

import json
import os
import signal
import time

from simulator_support import create, devices, exists, get, given_twice, kill, namespace, phase_is, pod, until

from orchlab import fleet
from orchlab.paths import write_private


def gpu_job(name: str, completions: int, run_for: str) -> dict:
    template = pod(name, 2, {"run-for": run_for})
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"completions": completions, "parallelism": completions, "backoffLimit": 0,
                     "template": {"metadata": {"annotations": template["metadata"]["annotations"]}, "spec": template["spec"]}}}


def succeeded(client, where: str, name: str) -> int:
    return client.get(f"/apis/batch/v1/namespaces/{where}/jobs/{name}")["status"].get("succeeded", 0)


def test_a_killed_simulator_loses_nothing(environment, client, where):
    create(client, where, *(pod(f"long-{n}", 4, {"run-for": "10h"}) for n in range(3)))
    before = {f"long-{n}": devices(phase_is(client, where, f"long-{n}", "Running")) for n in range(3)}
    # 24 pods of 2 GPUs on the 30 that are left: they come in waves, and the simulator dies in the midst of them, twice.
    client.create(f"/apis/batch/v1/namespaces/{where}/jobs", gpu_job("waves", 24, "2m"))
    for wave in (2, 8):
        until(lambda wave=wave: succeeded(client, where, "waves") >= wave, 60, f"{wave} completions")
        kill(environment, "simulator")
        assert given_twice(client) == []

    def done() -> bool:
        assert given_twice(client) == []
        return succeeded(client, where, "waves") == 24

    until(done, 90, "the job's completion")
    assert {name: devices(get(client, where, name)) for name in before} == before


def test_a_pod_bound_while_the_simulator_is_away_is_admitted_afterwards(environment, client, where):
    pid = next(state.pid for state in environment.health(probe=False) if state.name == "simulator")
    os.kill(pid, signal.SIGSTOP)
    try:
        create(client, where, pod("p", 1, {"run-for": "1m"}))
        until(lambda: get(client, where, "p")["spec"].get("nodeName"))
        time.sleep(1)
        # Nobody else lets it start.
        assert get(client, where, "p")["status"]["phase"] == "Pending"
    finally:
        os.kill(pid, signal.SIGKILL)
    phase_is(client, where, "p", "Succeeded", seconds=30)


def test_a_killed_kwok_is_followed_at_once(environment, client, where):
    create(client, where, pod("before", notes={"run-for": "3m"}))
    phase_is(client, where, "before", "Running")
    began = time.monotonic()
    kill(environment, "kwok")
    create(client, where, pod("after", notes={"run-for": "1m"}))
    phase_is(client, where, "after", "Succeeded")
    phase_is(client, where, "before", "Succeeded")
    # The leases of the dead one last 40 s: whoever waits for them is slower than that.
    assert time.monotonic() - began < 30


def test_addresses_stay_apart_when_kwok_forgets_them(environment, client, where):
    create(client, where, *(pod(f"a{n}", policy="Always", nodeName="cpu-1") for n in range(5)))
    first = {phase_is(client, where, f"a{n}", "Running")["status"]["podIP"] for n in range(5)}
    kill(environment, "kwok")
    create(client, where, *(pod(f"b{n}", policy="Always", nodeName="cpu-1") for n in range(5)))
    second = {phase_is(client, where, f"b{n}", "Running")["status"]["podIP"] for n in range(5)}
    assert len(first | second) == 10


def test_sigterm_ends_within_a_second(environment):
    pid = next(state.pid for state in environment.health(probe=False) if state.name == "simulator")
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    until(lambda: not os.path.exists(f"/proc/{pid}") or open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z", 5)
    assert time.monotonic() - began < 2
    until(lambda: all(state.healthy for state in environment.health()))


def test_a_deleted_node_stays_away_until_the_simulator_starts_again(environment, client):
    client.delete("/api/v1/nodes/cpu-1")
    time.sleep(2)
    assert not exists(client, "/api/v1/nodes/cpu-1")
    kill(environment, "simulator")
    until(lambda: exists(client, "/api/v1/nodes/cpu-1"), what="the node")
    until(lambda: any(c["type"] == "Ready" and c["status"] == "True" for c in client.get("/api/v1/nodes/cpu-1")["status"]["conditions"]))


def test_what_somebody_changed_on_a_node_stays(environment, client):
    path = "/api/v1/nodes/cpu-0"
    changed = {"metadata": {"labels": {"topology.kubernetes.io/zone": "zone-x", "mine": "yes"}},
               "spec": {"unschedulable": True, "taints": [{"key": "mine", "effect": "NoSchedule"}]}}
    client.patch(path, changed)
    try:
        kill(environment, "simulator")
        until(lambda: all(state.healthy for state in environment.health()))
        time.sleep(1)
        node = client.get(path)
        assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "zone-x" and node["metadata"]["labels"]["mine"] == "yes"
        assert node["spec"]["unschedulable"] and "mine" in {taint["key"] for taint in node["spec"]["taints"]}
    finally:
        client.patch(path, {"metadata": {"labels": {"topology.kubernetes.io/zone": "zone-a", "mine": None}},
                            "spec": {"unschedulable": None, "taints": None}})


def test_a_node_that_loses_its_heartbeats_comes_back(client):
    path = "/api/v1/nodes/t4-0/status"
    conditions = client.get("/api/v1/nodes/t4-0")["status"]["conditions"]
    lost = [c | ({"status": "Unknown"} if c["type"] == "Ready" else {}) for c in conditions]
    client.patch(path, {"status": {"conditions": lost}})
    until(lambda: any(c["type"] == "Ready" and c["status"] == "True" for c in client.get("/api/v1/nodes/t4-0")["status"]["conditions"]))


def change(env, **changes: object) -> None:
    path = env.folder / "environment.json"
    write_private(path, json.dumps(json.loads(path.read_text()) | changes))


def test_the_record_is_followed_while_running(own, small_fleet):
    env = own("follow", fleet=small_fleet)
    client = env.client()
    with namespace(client) as where:
        create(client, where, pod("slow", notes={"run-for": "2h"}))
        assert phase_is(client, where, "slow", "Running")["metadata"]["annotations"]["orchlab/real-seconds"] == "120.000"
        change(env, clock=3600.0)
        time.sleep(1.5)
        create(client, where, pod("fast", notes={"run-for": "2h"}))
        assert phase_is(client, where, "fast", "Running", "Succeeded")["metadata"]["annotations"]["orchlab/real-seconds"] == "2.000"
    wider = {"zones": small_fleet["zones"], "pools": [small_fleet["pools"][0] | {"count": 1, "gpus": {"model": "H100-80", "count": 4}},
                                                     {"name": "cpu", "count": 2, "cpu": 8, "memory": "32Gi"}]}
    change(env, fleet=fleet.from_data(wider).model_dump(mode="json"))

    def names() -> set[str]:
        return {node["metadata"]["name"] for node in client.list("/api/v1/nodes")[0]}

    until(lambda: names() == {"gpu-0", "cpu-0", "cpu-1"}, what="the new fleet")
    until(lambda: client.get("/api/v1/nodes/gpu-0")["status"]["allocatable"]["nvidia.com/gpu"] == "4")
    metadata = client.get("/api/v1/nodes/gpu-0")["metadata"]
    assert metadata["labels"]["nvidia.com/gpu.count"] == "4"
    assert len(json.loads(metadata["annotations"]["orchlab/devices"])["nvidia.com/gpu"]) == 4
