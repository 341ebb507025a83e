"""Why pods that have a node do not run, why controllers have too few pods, and what is refused."""

from __future__ import annotations

import json

import pytest
from why_sentences import REFUSED, UNHELPFUL
from why_support import GPU, SPACE, container, ended, event, facts, fleet, node, owner, pod, running, waits

from orchlab.diagnosis import Diagnosis
from orchlab.errors import ApiError, BadInput
from orchlab.kube import why_pods, why_refused
from orchlab.kube import why_owners as owners


def states(*found: dict, phase: str = "Running", **more) -> dict:
    return pod(on="cpu-0", phase=phase, status={"containerStatuses": list(found)}, **more)


CASES = {
    "image": (states(container(waits("ImagePullBackOff", "not found"))), "image of container main cannot be pulled"),
    "image never": (states(container(waits("ErrImageNeverPull"))), "imagePullPolicy is Never"),
    "config": (states(container(waits("CreateContainerConfigError", 'secret "x" not found'))), "ConfigMap, Secret or key"),
    "crash": (states(container(waits("CrashLoopBackOff"), ended(3), 5)), "ends again and again (exit status 3)"),
    "crash by memory": (states(container(waits("CrashLoopBackOff"), ended(137, "OOMKilled"), 5), limits={"memory": "1Gi"}),
                        "more memory than its limit of 1Gi (OOMKilled)"),
    "init crash": (pod(on="cpu-0", status={"initContainerStatuses": [container(waits("CrashLoopBackOff"), ended(1), 2, "warm")]}), "Container warm ends again"),
    "creating": (states(container(waits("ContainerCreating")), phase="Pending"), "nothing has failed yet"),
    "init runs": (pod(on="cpu-0", status={"initContainerStatuses": [container({"running": {}}, name="warm")],
                                          "containerStatuses": [container(waits("PodInitializing"))]}), "Its init container warm runs"),
    "oom": (states(container(ended(137, "OOMKilled")), phase="Failed"), "OOMKilled"),
    "exit": (states(container(ended(139)), phase="Failed"), "exit status 139 (signal 11)"),
    "admission": (pod(on="cpu-0", phase="Failed", status={
        "reason": "UnexpectedAdmissionError", "message": "Pod was rejected: Allocate failed due to requested number of devices unavailable for"
        " nvidia.com/gpu. Requested: 2, Available: 0, which is unexpected"}), "device plugin could not give what it asks for: requested number of devices"),
    "out of": (pod(on="cpu-0", phase="Failed", status={"reason": "OutOfnvidia.com/gpu"}), "too little nvidia.com/gpu left"),
    "evicted": (pod(on="cpu-0", phase="Failed", status={"reason": "Evicted"}), "ran short of memory or disk"),
    "deadline": (pod(on="cpu-0", phase="Failed", status={"reason": "DeadlineExceeded"}), "longer than its activeDeadlineSeconds"),
    "preempted": (pod(on="cpu-0", phase="Failed", status={"conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "x"}]}), "preempted it for a pod of higher priority"),
    "finalizer": (pod(on="cpu-0", metadata={"deletionTimestamp": "t", "finalizers": ["example.com/keep"]}), "finalizers are taken away: example.com/keep"),
    "terminating": (pod(on="cpu-0", metadata={"deletionTimestamp": "t"}), "until the end of the grace period"),
    "deleted on a lost node": (pod(on="lost-0", metadata={"deletionTimestamp": "t"}), "node lost-0 does not answer"),
    "node gone": (pod(on="gone-0"), "bound to node gone-0, which there is not"),
    "node lost": (running("r", "lost-0"), "Its node lost-0 is not ready: NodeStatusUnknown"),
    "over": (pod(on="cpu-0", phase="Succeeded"), "nothing is wrong"),
    "runs": (running("r", "cpu-0"), "It runs; nothing is wrong"),
}
NODES = [*fleet(), node("lost-0", ready=False)]


@pytest.mark.parametrize("which", CASES)
def test_pods_with_a_node(which):
    made, words = CASES[which]
    found = owners.pod(facts(made, nodes=NODES), made)
    assert found.known and words in found.cause and "{" not in found.cause
    assert found.evidence and (found.remedy or "nothing is wrong" in found.cause)


def test_events_tell_why_a_container_is_not_created():
    made = states(container(waits("ContainerCreating")), phase="Pending")
    for reason, words in (("FailedMount", "cannot mount one of its volumes"), ("FailedCreatePodSandBox", "cannot make the pod's sandbox")):
        assert words in owners.pod(facts(made, events=[event(made, reason, "no such thing")]), made).cause
    made = pod(on="cpu-0", phase="Running", status={"conditions": [{"type": "Ready", "status": "False", "message": "unready"}]})
    assert "a probe fails" in owners.pod(facts(made, events=[event(made, "Unhealthy", "503")]), made).cause


@pytest.mark.parametrize("made", [states(container(waits("SomethingNew")), phase="Pending"), pod(on="cpu-0", phase="Failed", status={"reason": "New"}),
                                  pod(on="cpu-0")], ids=["state", "reason", "nothing"])
def test_what_is_new_is_not_guessed_at(made):
    found = owners.pod(facts(made), made)
    assert not found.known and found.cause == "I don't know." and found.evidence


def test_tenants_on_one_gpu():
    def sharing(name: str, replica: int, space: str) -> dict:
        return running(name, "t4-0", metadata={"namespace": space, "annotations": {"orchlab/devices": json.dumps({"main": [f"GPU-1::{replica}"]})}})

    mine = sharing("mine", 0, "a")
    found = owners.pod(facts(mine, sharing("other", 1, "b"), running("alone", "t4-0")), mine)
    assert found.evidence[1].startswith("it shares GPU GPU-1 with pod b/other")
    assert "pods of different namespaces share a GPU" in found.evidence[2]
    reported = running("r", "t4-0", status={"containerStatuses": [{"name": "main", "allocatedResourcesStatus": [
        {"name": GPU, "resources": [{"resourceID": "GPU-1::2"}]}]}]})
    assert "it shares GPU GPU-1" in " ".join(owners.pod(facts(mine, reported), reported).evidence)


def test_tables_are_complete():
    assert all(cause.endswith(".") and remedy for cause, remedy in [*why_pods.STATES.values(), *why_pods.ENDED.values(), *why_pods.DISRUPTED.values(),
                                                                    *owners.FAILED.values()])


# -- controllers


def test_jobs():
    def condition(kind: str, reason: str) -> dict:
        return {"conditions": [{"type": kind, "status": "True", "reason": reason, "message": "words"}]}

    for reason, (cause, _) in owners.FAILED.items():
        found, = owners.job(facts(), owner("Job", "j", {}, condition("Failed", reason)))
        assert found.cause == cause and any("words" in line for line in found.evidence)
    assert not owners.job(facts(), owner("Job", "j", {}, condition("Failed", "New")))[0].known
    assert "has completed" in owners.job(facts(), owner("Job", "j", {}, condition("Complete", "x")))[0].cause
    assert "is suspended (spec.suspend)" in owners.job(facts(), owner("Job", "j", {"suspend": True}))[0].cause
    queued = owner("Job", "j", {"suspend": True}, labels={owners.QUEUE: "team-a"})
    assert "until Kueue admits it to the queue team-a" in owners.job(facts(), queued)[0].cause
    assert not owners.job(facts(), owner("Job", "j", {}))[0].known


QUOTA = 'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=3, used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=4'
QUOTAS = [{"metadata": {"name": "gpus", "namespace": SPACE}, "spec": {"scopeSelector": {"matchExpressions": [
    {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}},
           "status": {"hard": {"requests.nvidia.com/gpu": "4"}, "used": {"requests.nvidia.com/gpu": "2"}}}]


def test_controllers_that_cannot_create_their_pods():
    job = owner("Job", "j", {"parallelism": 2})
    found, = owners.job(facts(resourcequotas=QUOTAS, events=[event(job, "FailedCreate", f"Error creating: {QUOTA}")]), job)
    assert "exceed ResourceQuota gpus" in found.cause and "quota gpus: requests.nvidia.com/gpu 2 of 4" in found.evidence
    assert "it counts only pods with PriorityClass In high" in found.evidence
    old = owner("Job", "j", {"parallelism": 1}, {"active": 1})
    mine = running("p", "cpu-0", owner=("Job", "j"))
    assert "nothing is wrong" in owners.job(facts(mine, events=[event(old, "FailedCreate", QUOTA)]), old)[0].cause
    failure = {"conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": QUOTA}]}
    for one in (owner("Deployment", "d", {"replicas": 2}, failure), owner("ReplicaSet", "r", {"replicas": 2}, failure)):
        assert "exceed ResourceQuota gpus" in owners.replicas(facts(resourcequotas=QUOTAS), one)[0].cause
    deployment, replicas = owner("Deployment", "d", {"replicas": 1}), owner("ReplicaSet", "d-1", {"replicas": 1})
    replicas["metadata"]["ownerReferences"] = [{"kind": "Deployment", "name": "d", "uid": "Deployment-d", "controller": True}]
    told = facts(replicasets=[replicas], events=[event(replicas, "FailedCreate", 'pods "x" is forbidden: no PriorityClass with name p was found')])
    assert "PriorityClass p does not exist" in owners.replicas(told, deployment)[0].cause


def test_controllers_tell_what_their_pods_say():
    deployment, replicas = owner("Deployment", "web", {"replicas": 3}), owner("ReplicaSet", "web-5d8", {"replicas": 3})
    replicas["metadata"]["ownerReferences"] = [{"kind": "Deployment", "name": "web", "uid": "Deployment-web", "controller": True}]
    says = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu." + UNHELPFUL
    pods = [pod(f"web-5d8-{n}", {"gpu": 16}, says=says, owner=("ReplicaSet", "web-5d8"), labels={"pod-template-hash": "5d8"}) for n in range(2)]
    found, = owners.replicas(facts(*pods, running("web-5d8-2", "cpu-0", owner=("ReplicaSet", "web-5d8")), replicasets=[replicas]), deployment)
    assert "asks for 16 nvidia.com/gpu" in found.cause and "so it is with 2 of its pods: web-5d8-0, web-5d8-1" in found.evidence
    assert "scaled to 0" in owners.replicas(facts(), owner("Deployment", "d", {"replicas": 0}))[0].cause
    assert "is paused" in owners.replicas(facts(), owner("Deployment", "d", {"paused": True}))[0].cause
    assert not owners.replicas(facts(), owner("ReplicaSet", "d", {"replicas": 1}))[0].known


def test_nodes():
    assert "does not report that it is ready" in owners.node(facts(), node("lost", ready=False)).cause
    assert "is cordoned" in owners.node(facts(), node("n", unschedulable=True)).cause
    assert "device plugin is not ready: nvidia.com/gpu" in owners.node(facts(), node("n", gpus=8, allocatable={GPU: "0"})).cause
    found = owners.node(facts(running("r", "h100-0", {"gpu": 3})), fleet()[4])
    assert "nothing is wrong" in found.cause and "3 of 8 nvidia.com/gpu in use" in found.evidence


# -- refusals


@pytest.mark.parametrize("message", REFUSED)
def test_refusals(message):
    found = why_refused.refusal(message)
    assert found.known and REFUSED[message] in found.cause and found.remedy and found.evidence[0].startswith("the API server says: ")
    assert "{" not in found.cause


def test_a_refusal_in_new_words():
    assert not why_refused.refusal("pods \"x\" is forbidden: bad luck").known


@pytest.mark.parametrize("text", ["", "kind: Pod", "just words", "a: [", "- 1", "apiVersion: v1\nkind: Pod\nmetadata: 3\n"])
def test_files_that_are_no_manifest(text):
    with pytest.raises(BadInput, match="-f"):
        why_refused.objects(text, "x.yaml")
    with pytest.raises(BadInput, match="1 MiB"):
        why_refused.objects("#" * 2**21, "x.yaml")


class Api:
    """An API server that answers creates with `answers` in turn (a dict is merged into what was sent, an ApiError raised), and lists `lists`."""

    def __init__(self, *answers, **lists) -> None:
        self.answers, self.lists, self.sent = list(answers), lists, []

    def resource(self, version: str, kind: str) -> tuple[str, bool]:
        if kind == "Strange":
            raise BadInput("kind", kind, "is not served by this cluster")
        return {"Deployment": "deployments"}.get(kind, f"{kind.lower()}s"), kind != "Namespace"

    def request(self, method, path, body=None, content_type="", timeout=0, **query):
        if method == "GET":
            return {"kind": "XList", "items": self.lists.get(path.rpartition("/")[2], []), "metadata": {}}
        self.sent.append((path, body, query))
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        return {**body, **answer}


POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": {"containers": [{"name": "m", "resources": {"limits": {GPU: "16"}}}]}}
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 3, "template": {
    "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "m", "resources": {"limits": {GPU: "1"}}}], "tolerations": [{"operator": "Exists"}]}}}}


def tried(api: Api, made: dict) -> Diagnosis:
    return why_refused.tried(api, json.dumps(made), "x.json", SPACE)[0][1]


def test_files_are_sent_as_dry_runs():
    api = Api(nodes=fleet())
    found = tried(api, POD)
    assert found.cause.startswith("The API server would take it, but no node could take its pod now: It asks for 16 nvidia.com/gpu")
    assert all(query["dryRun"] == "All" for _, _, query in api.sent)
    api = Api(nodes=fleet())
    assert "finds nothing to refuse" in tried(api, DEPLOYMENT).cause and api.sent[1][1]["kind"] == "Pod"
    refused = tried(Api({}, ApiError(403, "Forbidden", QUOTA)), DEPLOYMENT)
    assert "exceed ResourceQuota" in refused.cause and "its pods would be refused" in refused.evidence[0]
    quota = [{"metadata": {"name": "gpus", "namespace": SPACE}, "status": {"hard": {"requests.nvidia.com/gpu": "4"}, "used": {"requests.nvidia.com/gpu": "2"}}}]
    assert "has room for 2 of its 3 pods" in tried(Api(nodes=fleet(), resourcequotas=quota), DEPLOYMENT).cause
    assert "serves no" in tried(Api(), {"apiVersion": "x/v1", "kind": "Strange", "metadata": {"name": "x"}}).cause
    api = Api(ApiError(409, "AlreadyExists", "there"), nodes=fleet())
    assert tried(api, DEPLOYMENT).known and "name" not in api.sent[1][1]["metadata"]
