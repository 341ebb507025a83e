"""What becomes of pods on simulated nodes: devices, run times, ends, restarts, refusals, removal."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from simulator_support import create, devices, exists, get, given_twice, phase_is, pod, restarts, until

from orchlab.errors import ApiError


def terminated(found: dict, index: int = 0) -> dict:
    return found["status"]["containerStatuses"][index]["state"]["terminated"]


def condition(found: dict, kind: str) -> dict:
    return next(c for c in found["status"]["conditions"] if c["type"] == kind)


def events(client, where: str, reason: str) -> list[dict]:
    return [event for event in client.list(f"/api/v1/namespaces/{where}/events")[0] if event["reason"] == reason]


def test_nodes_say_what_they_are(client, environment):
    nodes = {node["metadata"]["name"]: node for node in client.list("/api/v1/nodes")[0]}
    assert set(nodes) == {node.name for node in environment.fleet.nodes()}
    node = nodes["h100-0"]
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8" and "nvidia.com/gpu" not in nodes["cpu-0"]["status"]["capacity"]
    # A new node bears the taint not-ready until the node controller has seen its condition.
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    until(lambda: client.get("/api/v1/nodes/h100-0")["spec"]["taints"] == [taint])
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.37.2-orchlab"
    assert node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == environment.port("simulator")
    assert len({node["spec"]["podCIDR"] for node in nodes.values()}) == len(nodes)
    assert condition(node, "Ready")["status"] == "True" and "simulated" in condition(node, "Ready")["message"]


def test_a_gpu_pod_runs_for_its_time_and_completes(client, where):
    create(client, where, pod("p", 2, {"run-for": "3m"}))
    running = phase_is(client, where, "p", "Running")
    held = devices(running)["main"]
    assert len(set(held)) == 2 and all(device.startswith("GPU-") for device in held)
    assert running["metadata"]["annotations"]["orchlab/real-seconds"] == "3.000"
    assert running["status"]["podIP"].startswith("10.128.") and condition(running, "Ready")["status"] == "True"
    health = running["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]
    assert health["name"] == "nvidia.com/gpu" and [r["resourceID"] for r in health["resources"]] == held
    done = phase_is(client, where, "p", "Succeeded")
    assert terminated(done)["reason"] == "Completed" and terminated(done)["exitCode"] == 0
    took = datetime.fromisoformat(terminated(done)["finishedAt"]) - datetime.fromisoformat(terminated(done)["startedAt"])
    assert 2 <= took.total_seconds() <= 5


def test_containers_sidecars_and_init_containers_get_devices_as_from_a_kubelet(client, where):
    gpu = {"limits": {"nvidia.com/gpu": "2"}}
    one = {"limits": {"nvidia.com/gpu": "1"}}
    containers = [{"name": "a", "image": "a", "resources": gpu}, {"name": "b", "image": "b", "resources": one}]
    before = [{"name": "setup", "image": "i", "resources": gpu},
              {"name": "side", "image": "s", "restartPolicy": "Always", "resources": one}]
    create(client, where, pod("p", notes={"run-for": "2m"}, containers=containers, initContainers=before))
    running = phase_is(client, where, "p", "Running")
    held = devices(running)
    assert [len(held[name]) for name in ("setup", "side", "a", "b")] == [2, 1, 2, 1]
    # An init container's devices are free for the containers after it; all others are apart.
    assert len(set(held["side"] + held["a"] + held["b"])) == 4
    assert set(held["setup"]) <= set(held["side"] + held["a"] + held["b"])
    init, side = running["status"]["initContainerStatuses"]
    assert init["state"]["terminated"]["reason"] == "Completed" and "running" in side["state"]
    done = phase_is(client, where, "p", "Succeeded")
    assert "terminated" in done["status"]["initContainerStatuses"][1]["state"]


def test_devices_go_lowest_first_and_come_back(client, where):
    create(client, where, pod("p", 4, nodeName="t4-0", notes={"run-for": "1s"}))
    refused = phase_is(client, where, "p", "Failed")
    # 4 of a node with 2: only a pod that names its node gets as far as the kubelet.
    assert refused["status"]["reason"] == "UnexpectedAdmissionError"
    assert refused["status"]["message"] == ("Pod was rejected: Allocate failed due to requested number of devices unavailable for "
                                            "nvidia.com/gpu. Requested: 4, Available: 2, which is unexpected")
    assert until(lambda: events(client, where, "UnexpectedAdmissionError"))[0]["type"] == "Warning"
    create(client, where, pod("q", 1, nodeName="t4-0"), pod("r", 1, nodeName="t4-0"))
    first, second = (devices(phase_is(client, where, name, "Running"))["main"] for name in "qr")
    assert first != second
    client.delete(f"/api/v1/namespaces/{where}/pods/q")
    until(lambda: not exists(client, f"/api/v1/namespaces/{where}/pods/q"))
    create(client, where, pod("s", 1, nodeName="t4-0"))
    assert devices(phase_is(client, where, "s", "Running"))["main"] == first


def test_a_pod_that_names_a_full_node_is_refused_by_the_kubelet(client, where):
    create(client, where, pod("p", nodeName="cpu-0", containers=[{"name": "main", "image": "x", "resources": {"requests": {"cpu": "17"}}}]))
    refused = phase_is(client, where, "p", "Failed")
    assert refused["status"]["reason"] == "OutOfcpu"
    assert "Node didn't have enough resource: cpu, requested: 17000, used: " in refused["status"]["message"]
    create(client, where, pod("g", 1, nodeName="cpu-0"))
    # A resource that the node has never heard of is none of its kubelet's business.
    assert phase_is(client, where, "g", "Running")["metadata"]["annotations"]["orchlab/devices"] == "{}"


@pytest.mark.parametrize("notes, reason, code", [({"exit": "oom"}, "OOMKilled", 137), ({"exit": "error"}, "Error", 1),
                                                 ({"exit": "error", "exit-code": "42"}, "Error", 42), ({"exit-code": "3"}, "Error", 3)])
def test_failures(client, where, notes, reason, code):
    create(client, where, pod("p", notes={"run-for": "30s", **notes}))
    failed = phase_is(client, where, "p", "Failed")
    assert (terminated(failed)["reason"], terminated(failed)["exitCode"]) == (reason, code)
    assert condition(failed, "Ready")["reason"] == "PodFailed"


def test_on_failure_restarts_in_place_and_backs_off(client, where):
    create(client, where, pod("p", 1, {"run-for": "30s", "exit": "error"}, "OnFailure"))
    def crashed():
        found = get(client, where, "p")
        status = found["status"].get("containerStatuses", [{}])[0]
        return found if status.get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff" else None

    found = until(crashed)
    status = found["status"]["containerStatuses"][0]
    assert status["restartCount"] == 1 and status["lastState"]["terminated"]["exitCode"] == 1
    assert status["state"]["waiting"]["message"].startswith("back-off 10s restarting failed container=main pod=p_")
    assert found["status"]["phase"] == "Running" and condition(found, "Ready")["reason"] == "ContainersNotReady"
    held = devices(found)
    again = until(lambda: (p := get(client, where, "p"))["status"]["containerStatuses"][0]["restartCount"] == 2 and p, 25)
    assert devices(again) == held


def test_on_failure_of_one_container_leaves_the_other_completed(client, where):
    containers = [{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]
    create(client, where, pod("p", notes={"run-for": "20s", "exit": "error"}, policy="OnFailure", containers=containers))
    found = until(lambda: restarts(client, where, "p"))
    a, b = found["status"]["containerStatuses"]
    assert b["state"]["terminated"]["exitCode"] == 0 and b["restartCount"] == 0
    assert a["lastState"]["terminated"]["exitCode"] == 1


def test_always_runs_on_and_restarts_what_ends(client, where):
    create(client, where, pod("on", policy="Always"), pod("again", notes={"run-for": "20s"}, policy="Always"))
    on = phase_is(client, where, "on", "Running")
    assert "orchlab/real-seconds" not in on["metadata"]["annotations"]
    assert condition(on, "orchlab/simulated")["reason"] == "RunsUntilDeleted"
    found = until(lambda: restarts(client, where, "again"))
    assert found["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 0


def test_a_start_up_time_shows_as_container_creating(client, where):
    create(client, where, pod("p", notes={"start-after": "3m", "run-for": "30s"}))
    waiting = until(lambda: (p := get(client, where, "p"))["status"].get("containerStatuses") and p)
    assert waiting["status"]["phase"] == "Pending"
    assert waiting["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
    done = phase_is(client, where, "p", "Succeeded")
    late = datetime.fromisoformat(terminated(done)["startedAt"]) - datetime.fromisoformat(done["status"]["startTime"])
    assert 2 <= late.total_seconds() <= 5


def test_bad_annotations_are_warned_about_and_the_default_is_used(client, where):
    create(client, where, pod("p", notes={"run-for": "soon", "exit": "kaboom", "exit-code": "900"}))
    running = phase_is(client, where, "p", "Running")
    assert running["metadata"]["annotations"]["orchlab/real-seconds"] == "10.000"
    said = until(lambda: len(found := [e["message"] for e in events(client, where, "BadAnnotation")]) == 3 and found)
    for word in ("annotation orchlab/run-for: 'soon'", "annotation orchlab/exit: 'kaboom'", "annotation orchlab/exit-code: '900'"):
        assert any(message.startswith(word) for message in said)


def test_changing_a_running_pod_does_not_prolong_it(client, where):
    create(client, where, pod("p", notes={"run-for": "3m"}))
    phase_is(client, where, "p", "Running")
    for number in range(8):
        time.sleep(0.4)
        client.patch(f"/api/v1/namespaces/{where}/pods/p", {"metadata": {"labels": {"n": str(number)}}})
    assert phase_is(client, where, "p", "Succeeded", seconds=3)


def test_a_copy_of_a_running_pod_is_admitted_as_a_pod_of_its_own(client, where):
    create(client, where, pod("p", 2, nodeName="h100-1"))
    first = phase_is(client, where, "p", "Running")
    copy = pod("q", 2, nodeName="h100-1")
    copy["metadata"]["annotations"] = first["metadata"]["annotations"]
    create(client, where, copy)
    second = phase_is(client, where, "q", "Running")
    assert second["metadata"]["annotations"]["orchlab/admitted"] == second["metadata"]["uid"]
    assert set(devices(first)["main"]).isdisjoint(devices(second)["main"])


def test_a_deadline_of_the_pod_ends_it(client, where):
    create(client, where, pod("p", activeDeadlineSeconds=2))
    failed = phase_is(client, where, "p", "Failed")
    assert failed["status"]["reason"] == "DeadlineExceeded" and terminated(failed)["exitCode"] == 143


def test_readiness_gates_wait_for_their_owner(client, where):
    create(client, where, pod("p", policy="Always", readinessGates=[{"conditionType": "example.com/ready"}]))
    running = phase_is(client, where, "p", "Running")
    assert condition(running, "Ready")["status"] == "False" and condition(running, "Ready")["reason"] == "ReadinessGatesNotReady"
    client.patch(f"/api/v1/namespaces/{where}/pods/p/status", {"status": {"conditions": [*running["status"]["conditions"],
                                                                                         {"type": "example.com/ready", "status": "True"}]}})
    until(lambda: condition(get(client, where, "p"), "Ready")["status"] == "True")


def test_deleting_ends_within_the_grace_period(client, where):
    create(client, where, pod("p", 1, policy="Always"))
    running = phase_is(client, where, "p", "Running")
    version = running["metadata"]["resourceVersion"]
    client.delete(f"/api/v1/namespaces/{where}/pods/p")
    seen = []
    for kind, changed in client.watch(f"/api/v1/namespaces/{where}/pods", version, 20, fieldSelector="metadata.name=p"):
        if kind != "BOOKMARK":
            seen.append((kind, changed["status"]["phase"]))
        if kind == "DELETED":
            assert terminated(changed)["exitCode"] == 143
            break
    phases = [phase for _, phase in seen]
    assert phases.index("Failed") > phases.index("Running") and seen[-1] == ("DELETED", "Failed")


def test_a_pod_that_ignores_sigterm_is_killed_when_its_grace_period_is_over(client, where):
    create(client, where, pod("p", 1, policy="Always", notes={"on-sigterm": "ignore"}))
    version = phase_is(client, where, "p", "Running")["metadata"]["resourceVersion"]
    client.delete(f"/api/v1/namespaces/{where}/pods/p", gracePeriodSeconds=4)
    for kind, changed in client.watch(f"/api/v1/namespaces/{where}/pods", version, 20, fieldSelector="metadata.name=p"):
        if kind == "DELETED":
            assert terminated(changed)["exitCode"] == 137
            assert terminated(changed)["finishedAt"] >= changed["metadata"]["deletionTimestamp"]
            break
    else:
        raise AssertionError("the pod did not go")


def test_a_pod_that_is_deleted_before_it_starts_goes_too(client, where):
    create(client, where, pod("p", notes={"start-after": "2h"}))
    until(lambda: get(client, where, "p")["status"].get("containerStatuses"))
    client.delete(f"/api/v1/namespaces/{where}/pods/p")
    until(lambda: not exists(client, f"/api/v1/namespaces/{where}/pods/p"), 15)


def test_preemption_by_priority(client, where):
    for name, value in (("low", 10), ("high", 1000)):
        try:
            client.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": f"sim-{name}"}, "value": value})
        except ApiError as error:
            assert error.status == 409
    selector = {"nodeSelector": {"kubernetes.io/hostname": "t4-0"}}
    create(client, where, pod("victim", 2, policy="Always", priorityClassName="sim-low", **selector))
    held = devices(phase_is(client, where, "victim", "Running"))
    create(client, where, pod("urgent", 2, {"run-for": "1m"}, priorityClassName="sim-high", **selector))
    urgent = phase_is(client, where, "urgent", "Running", "Succeeded")
    assert devices(urgent) == held
    assert until(lambda: events(client, where, "Preempted"))[0]["involvedObject"]["name"] == "victim"


def job(name: str, notes: dict[str, str], **spec: object) -> dict:
    template = pod(name, notes=notes)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"template": {"metadata": template["metadata"] | {"name": None}, "spec": template["spec"]}, **spec}}


def job_condition(client, where: str, name: str, kind: str) -> dict:
    def look():
        found = client.get(f"/apis/batch/v1/namespaces/{where}/jobs/{name}")
        return next((c for c in found["status"].get("conditions") or [] if c["type"] == kind and c["status"] == "True"), None)

    return until(look, what=f"job {name} {kind}")


def test_jobs_complete_and_fail(client, where):
    jobs = f"/apis/batch/v1/namespaces/{where}/jobs"
    client.create(jobs, job("good", {"run-for": "30s"}, completions=4, parallelism=2))
    client.create(jobs, job("bad", {"run-for": "30s", "exit": "error"}, backoffLimit=0))
    assert job_condition(client, where, "good", "Complete")
    assert job_condition(client, where, "bad", "Failed")["reason"] == "BackoffLimitExceeded"


def test_a_pod_failure_policy_sees_exit_codes_and_disruptions(client, where):
    jobs = f"/apis/batch/v1/namespaces/{where}/jobs"
    fail = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}
    client.create(jobs, job("codes", {"run-for": "30s", "exit": "error", "exit-code": "42"}, podFailurePolicy=fail))
    assert job_condition(client, where, "codes", "Failed")["reason"] == "PodFailurePolicy"
    ignore = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    client.create(jobs, job("evicted", {"run-for": "4m"}, backoffLimit=0, podFailurePolicy=ignore))

    def running() -> list[str]:
        found, _ = client.list(f"/api/v1/namespaces/{where}/pods", labelSelector="job-name=evicted")
        return [one["metadata"]["name"] for one in found if one["status"]["phase"] == "Running"]

    name = until(running)[0]
    client.create(f"/api/v1/namespaces/{where}/pods/{name}/eviction",
                  {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": where}})
    until(lambda: not exists(client, f"/api/v1/namespaces/{where}/pods/{name}"), what="the evicted pod is gone")
    assert job_condition(client, where, "evicted", "Complete")


def test_many_at_once_never_share_a_device(client, where):
    jobs = f"/apis/batch/v1/namespaces/{where}/jobs"
    many = job("many", {"run-for": "1m"}, completions=60, parallelism=60)
    many["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
    client.create(jobs, many)

    def done() -> bool:
        assert given_twice(client) == []
        return client.get(f"{jobs}/many")["status"].get("succeeded", 0) == 60

    until(done, 90)
