"""Why a pod has no node: each cause from raw JSON and a sentence that the scheduler said."""

from __future__ import annotations

import copy
import time
from datetime import UTC, datetime

import pytest
from why_sentences import UNHELPFUL
from why_support import GPU, HOST, PRODUCT, SPACE, ZONE, event, facts, fleet, node, pod, required, running, selecting

from orchlab.kube import why_causes as causes
from orchlab.kube import why_reasons

T4 = {HOST: "t4-0"}
ONE_FULL = "0/9 nodes are available: 1 Insufficient nvidia.com/gpu, 8 node(s) didn't match Pod's node affinity/selector."
ALL_GPU, ALL_AFFINITY = (f"0/9 nodes are available: 9 {words}.{UNHELPFUL}" for words in ("Insufficient nvidia.com/gpu",
                                                                                        "node(s) didn't match Pod's node affinity/selector"))


def changed(name: str, **parts) -> list[dict]:
    """The fleet with one node's metadata, spec or status merged."""
    made = copy.deepcopy(fleet())
    one = next(one for one in made if one["metadata"]["name"] == name)
    for part, values in parts.items():
        for key, value in values.items():
            one[part][key] = one[part].get(key, {}) | value if isinstance(value, dict) else value
    return made


def answer(mine, *others, known=True, **more):
    found = causes.waiting(facts(*others, mine, **more), mine)
    assert found.known == known, found
    assert found.evidence and (found.remedy or not known)
    assert "{" not in found.cause and found.cause.endswith(".") and found.cause[0].isupper()
    return found


def test_more_gpus_than_any_node_has():
    found = answer(pod(limits={"gpu": 16}, says=ALL_GPU))
    assert found.cause == "It asks for 16 nvidia.com/gpu, more than any node has: 8 at most."
    assert "2 node(s): has no nvidia.com/gpu: cpu-0, cpu-1" in found.evidence
    assert any("the counts add up to its sentence" in line for line in found.evidence)
    says = "0/9 nodes are available: 2 Insufficient nvidia.com/gpu, 7 node(s) didn't match Pod's node affinity/selector."
    found = answer(pod(limits={"gpu": 8}, says=says, nodeSelector={PRODUCT: "NVIDIA-A100-SXM4-40GB"}))
    assert found.cause == "It asks for 8 nvidia.com/gpu, more than any node that it selects has: 4 at most."


def test_taint_without_toleration():
    says = "0/9 nodes are available: 2 Insufficient nvidia.com/gpu, 7 node(s) had untolerated taint(s)." + UNHELPFUL
    found = answer(pod(limits={"gpu": 1}, tolerated=False, says=says))
    assert "does not tolerate the taint nvidia.com/gpu=present:NoSchedule" in found.cause and "key: nvidia.com/gpu" in found.remedy
    older = pod(limits={"gpu": 1}, tolerated=False, says=says.replace("taint(s)", "taint {nvidia.com/gpu: present}"))
    assert answer(older).cause == found.cause


def test_a_taint_and_too_many_gpus_are_both_said():
    says = "0/9 nodes are available: 2 Insufficient nvidia.com/gpu, 7 node(s) had untolerated taint(s)."
    assert "asks for 16 nvidia.com/gpu, more than any node has: 8 at most; and it does not tolerate the taint" in answer(
        pod(limits={"gpu": 16}, tolerated=False, says=says)).cause


@pytest.mark.parametrize("wanted", ["Tesla-T4-SHARED", "Tesla-T4-MIG-1g.5gb"])
@pytest.mark.parametrize("how", ["selector", "affinity"])
def test_a_product_label_that_changed(wanted, how):
    more = {"nodeSelector": {PRODUCT: wanted}} if how == "selector" else {"affinity": selecting(PRODUCT, "In", wanted)}
    found = answer(pod(limits={"gpu": 1}, says=ALL_AFFINITY, **more))
    assert f"no node has {PRODUCT}={wanted}; nodes have NVIDIA-H100-80GB-HBM3 (4)" in found.cause
    assert "GPU Feature Discovery writes Tesla-T4 now" in found.remedy


def test_required_affinity_that_nothing_matches():
    assert "no node matches" in answer(pod(says=ALL_AFFINITY, affinity=selecting(ZONE, "In", "zone-z"))).cause.lower()
    assert "no node matches" in answer(pod(says=ALL_AFFINITY, affinity=selecting(ZONE, "Gt", "5"))).cause.lower()
    says = "0/9 nodes are available: 9 node(s) didn't satisfy plugin(s) [NodeAffinity]." + UNHELPFUL
    assert "names nodes that there are not (gone-9)" in answer(pod(says=says, affinity=selecting("metadata.name", "In", "gone-9", fields=True))).cause


def test_the_resource_name_of_another_mig_strategy():
    says = "0/9 nodes are available: 9 Insufficient nvidia.com/mig-3g.20gb." + UNHELPFUL
    found = answer(pod(limits={"nvidia.com/mig-3g.20gb": 1}, says=says))
    assert found.cause == "No node advertises nvidia.com/mig-3g.20gb; they advertise nvidia.com/gpu (7 node(s))." and "MIG strategy" in found.remedy
    sliced = changed("t4-0", status={"allocatable": {GPU: "0", "nvidia.com/mig-1g.5gb": "7"}, "capacity": {GPU: "0", "nvidia.com/mig-1g.5gb": "7"}})
    found = answer(pod(limits={"gpu": 1}, nodeSelector=T4, says=ONE_FULL), nodes=sliced)
    assert found.cause == "None of the nodes that it selects advertises nvidia.com/gpu; they advertise nvidia.com/mig-1g.5gb (1 node(s))."


def test_a_shared_resource_under_another_name():
    shared = [node("n", gpus=0, allocatable={"nvidia.com/gpu.shared": "8"}, capacity={"nvidia.com/gpu.shared": "8"})]
    found = answer(pod(limits={"gpu": 1}, says="0/1 nodes are available: 1 Insufficient nvidia.com/gpu."), nodes=shared)
    assert "they advertise nvidia.com/gpu.shared" in found.cause and "renameByDefault" in found.remedy


@pytest.mark.parametrize("capacity", ["2", "0"])
def test_a_plugin_that_is_not_ready(capacity):
    machines = changed("t4-0", status={"allocatable": {GPU: "0"}, "capacity": {GPU: capacity}})
    operand = pod("nvidia-device-plugin-daemonset-x", on="t4-0", metadata={"namespace": "gpu-operator"},
                  status={"containerStatuses": [{"name": "plugin", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                                                 "lastState": {"terminated": {"exitCode": 1}}}]})
    found = answer(pod(limits={"gpu": 1}, nodeSelector=T4, says=ONE_FULL), operand, nodes=machines)
    assert "device plugin is not ready on the nodes that it could use (t4-0)" in found.cause
    assert "pod gpu-operator/nvidia-device-plugin-daemonset-x on t4-0: container plugin is in CrashLoopBackOff, last exit status 1" in found.evidence


def test_gpus_in_an_init_container():
    init = [{"name": "warm", "resources": {"limits": {GPU: "9"}, "requests": {GPU: "9"}}}]
    found = answer(pod(limits={"gpu": 1}, says=ALL_GPU, initContainers=init))
    assert found.cause.startswith("Its init container warm asks for 9 nvidia.com/gpu, more than any node has")
    assert "the larger of the largest init container and the sum" in found.evidence[0]


def test_a_cordoned_node():
    says = "0/9 nodes are available: 1 node(s) were unschedulable, 8 node(s) didn't match Pod's node affinity/selector." + UNHELPFUL
    found = answer(pod(limits={"gpu": 1}, nodeSelector=T4, says=says), nodes=changed("t4-0", spec={"unschedulable": True}))
    assert "are cordoned (t4-0)" in found.cause and "uncordon" in found.remedy


def test_a_node_that_is_not_ready():
    says = "0/9 nodes are available: 1 node(s) had untolerated taint(s), 8 node(s) didn't match Pod's node affinity/selector."
    taints = [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]
    found = answer(pod(limits={"gpu": 1}, nodeSelector=T4, says=says), nodes=changed("t4-0", spec={"taints": taints}))
    assert "not ready (t4-0: node.kubernetes.io/unreachable:NoSchedule)" in found.cause


def test_cpu_that_daemons_take():
    daemons = [running(f"log-{number}", "t4-0", {"cpu": "8"}, owner=("DaemonSet", f"log-{number}")) for number in range(3)]
    found = answer(pod(limits={"cpu": "16"}, nodeSelector=T4, says=ONE_FULL.replace(GPU, "cpu")), *daemons)
    assert "DaemonSets' pods leave too little cpu" in found.cause and "of 32 they take 24, it asks for 16" in found.cause
    assert any(line.startswith(f"ds/log-0 -n {SPACE} holds 8 cpu") for line in found.evidence)


def test_gpus_that_others_hold():
    held = [running(f"web-5d8-{n}", "t4-0", {"gpu": 1}, owner=("ReplicaSet", "web-5d8"), labels={"pod-template-hash": "5d8"}) for n in range(2)]
    found = answer(pod(limits={"gpu": 1}, nodeSelector=T4, says=ONE_FULL + " preemption: not eligible due to preemptionPolicy=Never."), *held)
    assert found.cause == "All nvidia.com/gpu that it could use is held by others: it asks for 1, at most 0 are free on one node (t4-0)."
    assert any(line.startswith(f"deploy/web -n {SPACE} holds 2 nvidia.com/gpu in 2 pod(s) on t4-0 since") and "does not end by itself" in line
               for line in found.evidence)
    assert found.remedy.startswith(f"deploy/web -n {SPACE} does not end by itself") and any("preempts nobody" in line for line in found.evidence)
    brief = running("job", "t4-0", {"gpu": 2})
    assert answer(pod(limits={"gpu": 1}, nodeSelector=T4, says=ONE_FULL), brief).remedy.startswith("wait until they end")


def test_enough_in_all_but_on_no_single_node():
    held = [running(f"r{n}", f"h100-{n}", {"gpu": 5}) for n in range(4)]
    found = answer(pod(limits={"gpu": 8}, says=ALL_GPU), *held)
    assert found.cause.startswith("Enough nvidia.com/gpu is free in all (12), but on no single node: it asks for 8, at most 3 are free on one node")


def test_spread_affinity_and_ports():
    says = "0/9 nodes are available: 4 node(s) didn't match Pod's node affinity/selector, 5 node(s) didn't match pod {}."
    constraint = [{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "s"}},
                   "nodeAffinityPolicy": "Ignore"}]
    there = running("r", "cpu-0", labels={"app": "s"})
    zone_a = {ZONE: "zone-a"}
    assert "topology spread" in answer(pod(labels={"app": "s"}, nodeSelector=zone_a, topologySpreadConstraints=constraint,
                                           says=says.format("topology spread constraints")), there).cause
    assert "anti-affinity" in answer(pod(nodeSelector=zone_a, affinity=required("podAntiAffinity", "s", ZONE),
                                         says=says.format("anti-affinity rules")), there).cause
    everywhere = "0/9 nodes are available: 9 node(s) didn't match pod {}." + UNHELPFUL
    assert "pod affinity" in answer(pod(affinity=required("podAffinity", "none"), says=everywhere.format("affinity rules"))).cause
    missing = [constraint[0] | {"topologyKey": "none"}]
    assert "label that the nodes do not have" in answer(pod(
        labels={"app": "s"}, topologySpreadConstraints=missing, says=everywhere.format("topology spread constraints (missing required label)"))).cause
    listening = {"containers": [{"name": "m", "ports": [{"hostPort": 80}]}]}
    ports = "0/9 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, 8 node(s) didn't match Pod's node affinity/selector."
    assert "host port" in answer(pod(nodeSelector=T4, says=ports, **listening), running("web", "t4-0", **listening)).cause


# -- without looking at nodes


def test_gates_and_schedulers():
    assert "scheduling gates (example.com/quota)" in answer(pod(schedulingGates=[{"name": "example.com/quota"}], says="Scheduling is blocked")).cause
    assert "asks for the scheduler nobody" in answer(pod(schedulerName="nobody")).cause
    assert "does not run" in answer(pod()).cause
    young = pod(metadata={"creationTimestamp": datetime.fromtimestamp(time.time() - 1, UTC).isoformat()})
    assert "ask again" in answer(young, known=False).remedy


def test_preemption_that_is_under_way():
    says = ONE_FULL + " preemption: not eligible due to a terminating pod on the nominated node."
    victim = running("low", "t4-0", {"gpu": 2}, metadata={"deletionTimestamp": "2026-01-01T00:00:09Z"})
    mine = pod(limits={"gpu": 2}, nodeSelector=T4, says=says, status={"nominatedNodeName": "t4-0"}, priority=1000)
    mine["status"]["conditions"] = pod(says=says)["status"]["conditions"]
    found = answer(mine, victim)
    assert "keeps a place for it on t4-0 and preempts pods of lower priority" in found.cause
    assert f"pod {SPACE}/low on t4-0 is terminating, priority 0" in found.evidence


def group(least: int, *conditions: dict) -> dict:
    return {"metadata": {"name": "gang", "namespace": SPACE}, "spec": {"schedulingPolicy": {"gang": {"minCount": least}}}, "status": {"conditions": list(conditions)}}


def test_pod_groups():
    def member(**more):
        return pod(limits={"gpu": 8}, schedulingGroup={"podGroupName": "gang"}, **more)

    assert "PodGroup gang, which there is not" in answer(member()).cause
    assert "from 3 pods on (gang.minCount), and has 2" in answer(member(), member(), podgroups=[group(3)]).cause
    waits = {"type": "PodGroupInitiallyScheduled", "status": "False", "reason": "Unschedulable", "message": "minCount (2) cannot be satisfied"}
    found = answer(member(says="minCount (2) cannot be satisfied: 1 scheduled"), member(says=ALL_GPU), podgroups=[group(2, waits)])
    assert "starts all or nothing, and not all of its 2 pods" in found.cause
    assert any("of a member: 0/9 nodes" in line for line in found.evidence)


def claim(name: str, storage: str, phase: str = "Pending") -> dict:
    return {"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": SPACE, "uid": name}, "status": {"phase": phase},
            "spec": {"storageClassName": storage}}


UNBOUND = "0/9 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"


@pytest.mark.parametrize("storage, mode, says, words", [
    (None, "", '0/9 nodes are available: persistentvolumeclaim "data" not found. not found', "PersistentVolumeClaim data does not exist"),
    ("", "", UNBOUND, "names no storage class"), ("gone", "", UNBOUND, "storage class gone, which there is not"),
    ("disk", "Immediate", UNBOUND, "example.com/disk has made no volume yet"),
    ("disk", "WaitForFirstConsumer", 'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded', "has made no volume yet")])
def test_volume_claims(storage, mode, says, words):
    made = [{"metadata": {"name": "disk"}, "provisioner": "example.com/disk", "volumeBindingMode": mode}]
    mine = pod(says=says, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
               status={"nominatedNodeName": "cpu-0"} if mode.startswith("Wait") else {})
    mine["status"]["conditions"] = pod(says=says)["status"]["conditions"]
    claims = [] if storage is None else [claim("data", storage)]
    found = answer(mine, persistentvolumeclaims=claims, storageclasses=made, events=[event(one, "ProvisioningFailed", "no disk") for one in claims])
    assert words in found.cause
    assert storage is None or any("ProvisioningFailed: no disk" in line for line in found.evidence)


def test_volumes_in_other_zones():
    says = "0/9 nodes are available: 4 node(s) {}, 5 node(s) didn't match Pod's node affinity/selector."
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["zone-a"]}]}
    bound = claim("data", "", "Bound")
    bound["spec"]["volumeName"] = "v1"
    for words, labels, spec, cause in (("didn't match PersistentVolume's node affinity", {}, {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}},
                                        "reached from other nodes only"), ("had no available volume zone", {ZONE: "zone-a"}, {}, "in another zone")):
        mine = pod(says=says.format(words), nodeSelector={ZONE: "zone-b"}, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
        volume = {"metadata": {"name": "v1", "labels": labels}, "spec": spec}
        assert cause in answer(mine, persistentvolumeclaims=[bound], persistentvolumes=[volume]).cause


def test_resource_claims():
    mine = pod(resourceClaims=[{"name": "g", "resourceClaimName": "none"}])
    assert "ResourceClaim none does not exist" in answer(mine).cause
    mine = pod(resourceClaims=[{"name": "g", "resourceClaimTemplateName": "none"}])
    assert "cannot be made from template none" in answer(mine, events=[event(mine, "FailedResourceClaimCreation", "not found")]).cause


# -- what is not known


def test_a_sentence_that_the_table_does_not_bear_out_is_not_guessed_at():
    found = answer(pod(limits={"gpu": 1}, says=ALL_GPU), known=False)
    assert found.cause == "I don't know." and any(line.startswith("9 node(s)") or "fits" in line for line in found.evidence)
    assert any("not those of the scheduler's sentence" in line for line in found.evidence)
    assert not causes.waiting(facts(mine := pod(says="0/9 nodes are available: 9 node(s) had bad luck.")), mine).known
    assert not causes.waiting(facts(mine := pod(says='running "X" filter plugin: strange')), mine).known
    assert not causes.waiting(facts(mine := pod(says="0/9 nodes are available: quite new words.")), mine).known


def test_counts_that_differ_are_said_though_the_cause_is_in_the_sentence():
    says = "0/10 nodes are available: 3 Insufficient nvidia.com/gpu, 7 node(s) had untolerated taint(s)."
    found = answer(pod(limits={"gpu": 1}, tolerated=False, says=says))
    assert "does not tolerate the taint" in found.cause and any("its last word is older" in line for line in found.evidence)


def test_without_nodes_the_words_are_all():
    mine = pod(limits={"gpu": 1}, says="0/9 nodes are available: 2 Insufficient nvidia.com/gpu, 7 node(s) had untolerated taint(s)." + UNHELPFUL)
    blind = facts(mine)
    blind.missing["nodes"] = "nodes could not be read: forbidden"
    found = causes.waiting(blind, mine)
    assert found.known and found.cause == "None of 9 nodes can take it: 7 untolerated taint, 2 short of nvidia.com/gpu."
    assert "nodes could not be read: forbidden" in found.evidence
    assert causes.waiting(facts(mine), mine, with_table=False).cause == found.cause


def test_the_words_of_an_event_do_where_there_is_no_condition():
    mine = pod(limits={"gpu": 16})
    assert "more than any node has" in answer(mine, events=[event(mine, "FailedScheduling", ALL_GPU, source="default-scheduler")]).cause
    other = {**mine, "metadata": {**mine["metadata"], "uid": "an-earlier-one"}}
    assert "does not run" in answer(mine, events=[event(other, "FailedScheduling", ALL_GPU)]).cause


def test_each_class_has_a_weight_and_words():
    assert set(why_reasons.PLAIN) <= set(why_reasons.COST)
