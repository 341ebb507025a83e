import pytest
from views_support import GPU, ZERO, node_object, pod, stamp

from orchlab.kube.objects import event_from, node_from, requests, seconds, unit_from
from orchlab.snapshot import LastRun, Share

WORDS = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu. preemption: 0/9 nodes are available: …"


def container(gpus=0, resource=GPU, **fields):
    return {"name": "c", "resources": {"limits": {resource: str(gpus), "cpu": "500m"}} if gpus else {}} | fields


def status(name="c", restarts=0, last=None, **state):
    return {"name": name, "restartCount": restarts, "state": state, **({"lastState": {"terminated": last}} if last else {})}


def ended(code, reason, start=2, end=9):
    return {"exitCode": code, "reason": reason, "startedAt": stamp(start), "finishedAt": stamp(end)}


def test_the_schedulers_words_are_kept_as_they_are():
    unit = unit_from(pod("big", 16, why=WORDS))
    assert (unit.stage, unit.reason, unit.message, unit.wanted) == ("waiting", "Unschedulable", WORDS, {GPU: 16})
    assert unit.submitted == ZERO and unit.bound is None


def test_a_gated_pod_says_so():
    gated = pod("gated")
    gated["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "blocked"}]
    assert unit_from(gated).reason == "SchedulingGated"


def test_a_running_pod_with_devices():
    unit = unit_from(pod("p", 2, "n1", "Running", ["GPU-1", "GPU-2"]))
    assert unit.shares == (Share("n1", GPU, 2, ("GPU-1", "GPU-2")),)
    assert (unit.stage, unit.bound, unit.started) == ("running", ZERO + 1, ZERO + 2)


def test_devices_as_a_kubelet_reports_them():
    real = pod("p", 2, "n1", "Running")
    real["status"]["containerStatuses"][0]["allocatedResourcesStatus"] = [
        {"name": "claim:x/y", "resources": [{"resourceID": "other"}]},
        {"name": GPU, "resources": [{"resourceID": "GPU-7", "health": "Healthy"}, {"resourceID": "GPU-8", "health": "Healthy"}]}]
    assert unit_from(real).shares[0].devices == ("GPU-7", "GPU-8")


@pytest.mark.parametrize("text", ["", "not json", "[1]", "7", '{"c": "GPU-1"}', "null"])
def test_a_devices_annotation_of_another_form_is_as_good_as_none(text):
    odd = pod("p", 2, "n1", "Running")
    odd["metadata"]["annotations"] = {"orchlab/devices": text}
    assert unit_from(odd).shares == (Share("n1", GPU, 2),)


def test_a_pod_on_a_node_that_waits_for_its_image():
    slow = pod("p", 1, "n1")
    slow["status"]["containerStatuses"] = [status(waiting={"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'})]
    unit = unit_from(slow)
    assert (unit.stage, unit.reason, unit.message) == ("starting", "ImagePullBackOff", 'Back-off pulling image "x"')


def test_crash_loop():
    crash = pod("p", 1, "n1", "Running")
    crash["status"]["containerStatuses"] = [status(restarts=2, last=ended(1, "Error"), waiting={"reason": "CrashLoopBackOff"})]
    unit = unit_from(crash)
    assert (unit.stage, unit.restarts, unit.last_run) == ("starting", 2, LastRun(2, ZERO + 2, ZERO + 9, "Error (exit 1)"))
    crash["status"]["containerStatuses"] = [status(restarts=3, last=ended(1, "Error"), running={"startedAt": stamp(20)})]
    unit = unit_from(crash)
    assert (unit.stage, unit.started, unit.last_run.number) == ("running", ZERO + 20, 2)


@pytest.mark.parametrize("phase, fields, end, outcome", [
    ("Succeeded", {}, ended(0, "Completed"), "Succeeded"),
    ("Failed", {}, ended(1, "Error"), "Failed (exit 1)"),
    ("Failed", {}, ended(137, "OOMKilled"), "Failed: OOMKilled (exit 137)"),
    ("Failed", {"reason": "UnexpectedAdmissionError"}, None, "Failed: UnexpectedAdmissionError"),
    ("Failed", {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                                "lastTransitionTime": stamp(9)}]}, None, "Failed: PreemptionByScheduler"),
])
def test_how_a_pod_ended(phase, fields, end, outcome):
    over = pod("p", 1, "n1", phase)
    over["status"] |= fields | ({"containerStatuses": [status(terminated=end)]} if end else {})
    unit = unit_from(over)
    assert (unit.stage, unit.outcome) == ("ended", outcome)
    assert unit.ended == (ZERO + 9 if end or "conditions" in fields else ZERO)


def test_requests_follow_the_kubelets_rule():
    sidecar = container(1, restartPolicy="Always")
    assert requests({"containers": [container(2), container(1)], "initContainers": [container(2)]}) == {GPU: 3}
    assert requests({"containers": [container(1)], "initContainers": [container(4)]}) == {GPU: 4}
    assert requests({"containers": [container(1)], "initContainers": [sidecar]}) == {GPU: 2}
    assert requests({"containers": [container(1, "nvidia.com/mig-1g.10gb"), container()]}) == {"nvidia.com/mig-1g.10gb": 1}
    assert requests({"containers": [container()]}) == {}


def test_two_resources_are_two_shares():
    both = pod("p", 1, "n1", "Running", ["GPU-1", "MIG-1"])
    both["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.10gb"] = "1"
    assert unit_from(both).shares == (Share("n1", GPU, 1, ("GPU-1",)), Share("n1", "nvidia.com/mig-1g.10gb", 1, ("MIG-1",)))


def test_groups():
    assert unit_from(pod("p")).group == ""
    owner = [{"kind": "ReplicaSet", "name": "x"}, {"kind": "Job", "name": "train", "controller": True}]
    owned = pod("p", ownerReferences=owner)
    assert unit_from(owned).group == "Job/train"
    owned["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
    assert unit_from(owned).group == "PodGroup/gang"


def test_nodes():
    plain = node_from(node_object("n1"))
    assert (plain.zone, plain.rack, plain.capacity, plain.ready, plain.cordoned, plain.simulated) == ("a", "", {GPU: 8}, True, False, "")
    raw = node_object("n1")
    raw["metadata"]["labels"] |= {"orchlab/rack": "r1", "orchlab/pool": "h100", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    raw["metadata"]["labels"] = (raw["metadata"].get("labels") or {}) | {"orchlab/kubelet": "simulated"}
    raw["metadata"]["annotations"] = {"orchlab/devices": f'{{"{GPU}": ["GPU-1", "GPU-2"]}}'}
    raw["spec"] = {"unschedulable": True, "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
                                                     {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}
    raw["status"] |= {"conditions": [{"type": "Ready", "status": "Unknown"}], "allocatable": {GPU: "6", "nvidia.com/odd": "1k"}}
    node = node_from(raw)
    assert (node.rack, node.pool, node.product, node.simulated) == ("r1", "h100", "NVIDIA-H100-80GB-HBM3", "all")
    assert (node.ready, node.cordoned, node.allocatable, node.devices) == (False, True, {GPU: 6}, {GPU: ("GPU-1", "GPU-2")})
    assert node.taints == ("nvidia.com/gpu=present:NoSchedule", "node.kubernetes.io/unschedulable:NoSchedule")


@pytest.mark.parametrize("label, simulated", [("true", "all"), ("gpus", "gpus"), ("no", "")])
def test_what_a_node_says_of_itself(label, simulated):
    raw = node_object("n1")
    raw["metadata"]["labels"]["orchlab/simulated"] = label
    assert node_from(raw).simulated == simulated


def test_events_of_both_kinds():
    about = {"kind": "Pod", "name": "p"}
    old = {"metadata": {"uid": "1"}, "type": "Warning", "reason": "Failed", "message": "m", "involvedObject": about, "count": 4,
           "firstTimestamp": stamp(1), "lastTimestamp": stamp(8), "source": {"component": "kubelet"}}
    new = {"metadata": {"uid": "2"}, "type": "Normal", "reason": "Scheduled", "message": "m", "involvedObject": about,
           "lastTimestamp": None, "eventTime": "2023-11-14T22:13:23.250000Z", "reportingComponent": "default-scheduler"}
    first, second = event_from(old), event_from(new)
    assert (first.at, first.count, first.about, first.source) == (ZERO + 8, 4, "Pod p", "kubelet")
    assert (second.at, second.count, second.source) == (ZERO + 3.25, 1, "default-scheduler")
    new["series"] = {"count": 7, "lastObservedTime": "2023-11-14T22:13:29.5Z"}
    assert (event_from(new).at, event_from(new).count) == (ZERO + 9.5, 7)


def test_times():
    assert seconds(None) is None and seconds("") is None
    assert seconds("2023-11-14T22:13:20Z") == ZERO == seconds("2023-11-14T23:13:20+01:00")
