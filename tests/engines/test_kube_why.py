"""`orchlab why` about pods that the real API server, scheduler and controllers refuse, keep waiting, or run: everything is made at once and
asked about one by one."""

from __future__ import annotations

import json
import time

import gpu_operator_support as operator
import pytest
from simulator_support import exists, namespace, pod, until

from orchlab import faults
from orchlab import why as whys
from orchlab.errors import BadInput
from orchlab.gpu_operator.restore import restore
from orchlab.kube import why, why_nodes, why_said
from orchlab.kube.client import base_path
from orchlab.kube.why_causes import words_of
from orchlab.kube.why_facts import Facts

ZONE, HOST, PRODUCT = "topology.kubernetes.io/zone", "kubernetes.io/hostname", "nvidia.com/gpu.product"
T4 = {HOST: "t4-0"}


def asking(name: str, tolerations: bool = True, labels: dict | None = None, init: dict | None = None, limits: dict | None = None, **spec) -> dict:
    """A pod with these limits, "gpu" for nvidia.com/gpu."""
    def resources(wanted: dict) -> dict:
        return {"limits": {{"gpu": "nvidia.com/gpu"}.get(key, key): str(value) for key, value in wanted.items()}}

    made = pod(name, containers=[{"name": "main", "image": "none", "resources": resources(limits or {})}], **spec)
    made["metadata"]["labels"] = labels or {"app": name}
    if not tolerations:
        del made["spec"]["tolerations"]
    if init:
        made["spec"]["initContainers"] = [{"name": "prepare", "image": "none", "resources": resources(init)}]
    return made


def required(kind: str, app: str, key: str) -> dict:
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}]}}


SPREAD = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "spread-1"}},
          "nodeAffinityPolicy": "Ignore"}
# Pods that wait, and words of the cause.
WAITING = [
    (asking("oversize", limits={"gpu": 16}), "It asks for 16 nvidia.com/gpu, more than any node has: 8 at most"),
    (asking("untolerated", tolerations=False, limits={"gpu": 1}), "It does not tolerate the taint nvidia.com/gpu=present:NoSchedule"),
    (asking("shared", limits={"gpu": 1}, nodeSelector={PRODUCT: "Tesla-T4-SHARED"}), "nodes have NVIDIA-H100-80GB-HBM3 (4)"),
    (asking("slice", limits={"nvidia.com/mig-3g.20gb": 1}), "No node advertises nvidia.com/mig-3g.20gb; they advertise nvidia.com/gpu (7 node(s))"),
    (asking("init", limits={"gpu": 1}, init={"gpu": 9}), "Its init container prepare asks for 9 nvidia.com/gpu"),
    (asking("cpus", limits={"cpu": 500}), "It asks for 500 cpu, more than any node has"),
    (asking("near", affinity=required("podAffinity", "nobody", HOST)), "Its required pod affinity"),
    (asking("spread-2", labels={"app": "spread-1"}, nodeSelector={ZONE: "zone-a"}, topologySpreadConstraints=[SPREAD]),
     "Its topology spread constraint"),
    (asking("apart-2", labels={"app": "apart"}, nodeSelector=T4, affinity=required("podAntiAffinity", "apart", HOST)), "anti-affinity"),
    (asking("gated", schedulingGates=[{"name": "example.com/quota"}]), "scheduling gates (example.com/quota)"),
    (asking("nobodys", schedulerName="nobody"), "asks for the scheduler nobody"),
    (asking("unclaimed", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]), "PersistentVolumeClaim none does not exist"),
    (asking("unbound", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "unbound"}}]), "names no storage class"),
    (asking("gang-0", limits={"gpu": 1}, schedulingGroup={"podGroupName": "gang"}), "from 3 pods on (gang.minCount), and has 1"),
    (asking("nowhere", nodeName="gone-0"), "bound to node gone-0, which there is not"),
    (asking("oom", limits={"memory": "1Gi"}, notes={"run-for": "1s", "exit": "oom"}), "more memory than its limit of 1Gi"),
    (asking("crash", notes={"run-for": "1s", "exit": "error"}, policy="Always"), "ends again and again"),
    (asking("full", limits={"gpu": 2}, nodeSelector=T4), "All nvidia.com/gpu that it could use is held by others"),
    (asking("polite", limits={"gpu": 1}, nodeSelector=T4, priorityClassName="polite"), "held by others"),
]
FIRST = [asking("spread-1", policy="Always", nodeSelector={ZONE: "zone-a"}, topologySpreadConstraints=[SPREAD]),
         asking("apart-1", policy="Always", labels={"app": "apart"}, nodeSelector=T4)]


def deployment(name: str, replicas: int = 1, **spec) -> dict:
    made = asking(name, policy="Always", **spec)
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}}, "spec": made["spec"]}}}


def job(name: str, notes: dict | None = None, limits: dict | None = None, **spec) -> dict:
    made = asking(name, notes=notes, limits=limits)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {
        "template": {"metadata": {"annotations": made["metadata"]["annotations"]}, "spec": made["spec"]}, **spec}}


def make(client, obj: dict, space: str) -> dict:
    plural, namespaced = client.resource(obj["apiVersion"], obj["kind"])
    return client.create(base_path(obj["apiVersion"]) + (f"/namespaces/{space}" if namespaced else "") + f"/{plural}", obj)


@pytest.fixture(scope="module")
def client(environment):
    return environment.client()


@pytest.fixture(scope="module")
def space(client):
    with namespace(client) as name:
        pods = f"/api/v1/namespaces/{name}/pods"
        try:
            for title, value, policy in (("urgent", 1000, "PreemptLowerPriority"), ("polite", 900, "Never")):
                make(client, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": title}, "value": value,
                              "preemptionPolicy": policy}, "")
            make(client, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "unbound"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}}, name)
            make(client, {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "gang"},
                          "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}, name)
            # It holds both GPUs of t4-0 and never ends by itself.
            make(client, deployment("holder", 2, limits={"gpu": 1}, nodeSelector=T4), name)
            for made in FIRST:
                client.create(pods, made)
            until(lambda: sum(one["status"]["phase"] == "Running" for one in client.list(pods)[0]) == 2 + len(FIRST), what="the first pods")
            for made, _ in WAITING:
                client.create(pods, made)
            for made in (job("suspended", suspend=True), job("failing", {"run-for": "1s", "exit": "error"}, backoffLimit=0),
                         job("late", activeDeadlineSeconds=1)):
                make(client, made, name)
            yield name
        finally:
            for title in ("urgent", "polite"):
                if exists(client, f"/apis/scheduling.k8s.io/v1/priorityclasses/{title}"):
                    client.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{title}")


def told(client, target: str, space: str, words: str, seconds: float = 30):
    """The first answer whose cause has these words."""
    kind, _, name = target.partition("/")
    last = []

    def look():
        last[:] = [found for _, found in why.ask(client, kind, name, space)]
        return next((one for one in last if words in one.cause), None)

    try:
        found = until(look, seconds, f"{words!r} about {target}")
    except AssertionError:
        raise AssertionError(f"{target}: {words!r} is in none of:\n" + "\n\n".join(map(str, last))) from None
    assert found.known and found.evidence
    return found


@pytest.mark.parametrize("made, words", WAITING, ids=[made["metadata"]["name"] for made, _ in WAITING])
def test_pods_that_do_not_run(client, space, made, words):
    assert told(client, f"pod/{made['metadata']['name']}", space, words).remedy


def test_the_table_counts_as_the_scheduler_does(client, space):
    def differing() -> list[str]:
        facts = Facts.from_cluster(client, space)
        waiting = [one for one in facts["pods"] if one["metadata"]["namespace"] == space and (words := why_said.read(words_of(facts, one)))
                   and words.counts and not one["spec"].get("schedulingGroup")]
        assert len(waiting) >= 10
        return [f"{one['metadata']['name']}: {words_of(facts, one)} but {dict(why_nodes.table(facts, one).counts)}" for one in waiting
                if not why_nodes.agrees(why_nodes.table(facts, one), why_said.read(words_of(facts, one)))]

    until(lambda: not differing(), 20, f"agreement: {differing()}")


def test_who_holds_what(client, space):
    found = told(client, "pod/full", space, "held by others")
    assert any(line.startswith(f"deploy/holder -n {space} holds 2 nvidia.com/gpu in 2 pod(s) on t4-0") for line in found.evidence)
    assert "does not end by itself" in found.remedy
    assert any("preempts nobody" in line for line in told(client, "pod/polite", space, "held by others").evidence)


@pytest.mark.parametrize("target, words", [("job/suspended", "It is suspended"), ("job/failing", "more often than backoffLimit"),
                                           ("job/late", "longer than its activeDeadlineSeconds"), ("deploy/holder", "nothing is wrong")])
def test_controllers(client, space, target, words):
    told(client, target, space, words)


def test_quotas_and_limits_stop_controllers(client):
    with namespace(client) as space:
        make(client, {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}, space)
        make(client, {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "cpus"}, "spec": {
            "limits": [{"type": "Container", "max": {"cpu": "4"}, "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}]}}, space)
        until(lambda: client.get(f"/api/v1/namespaces/{space}/resourcequotas/gpus").get("status", {}).get("hard"), what="the quota")
        many = deployment("many", 3, limits={"gpu": 1})
        assert "has room for 1 of its 3 pods" in why.refused(client, json.dumps(many), "many.json", space)[0][1].cause
        make(client, deployment("over", 2, limits={"gpu": 1}), space)
        make(client, job("big", limits={"gpu": 2}), space)
        make(client, deployment("limited", limits={"cpu": 8}), space)
        assert any(line == "quota gpus: requests.nvidia.com/gpu 1 of 1" for line in told(client, "deploy/over", space, "ResourceQuota gpus").evidence)
        told(client, "job/big", space, "ResourceQuota gpus")
        told(client, "deploy/limited", space, "sets the maximum of cpu per Container to 4")
        seen = {target for target, _ in why.everything(client, space)}
        assert seen >= {f"deploy/over -n {space}", f"job/big -n {space}", f"deploy/limited -n {space}"}


UNEQUAL = {"containers": [{"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": 2}, "requests": {"nvidia.com/gpu": 1}}}]}


@pytest.mark.parametrize("made, words", [
    ({**asking("x"), "spec": UNEQUAL}, "requests 1 nvidia.com/gpu with a limit of 2"), (asking("x", limits={"gpu": "0.5"}), "500m nvidia.com/gpu"),
    (asking("x", serviceAccountName="nobody"), "ServiceAccount"), (asking("x", priorityClassName="none"), "PriorityClass none does not exist"),
    (asking("x", runtimeClassName="none"), "RuntimeClass none does not exist"), (asking("x", nonsense=1), "fields that the API does not know"),
    (asking("x", limits={"vgpu": 1}), "no resource named vgpu"), (asking("x", limits={"gpu": 16}), "no node could take its pod now"),
    (deployment("x", limits={"gpu": 1}), "finds nothing to refuse"), (deployment("x", priorityClassName="none"), "PriorityClass none"),
], ids=range(10))
def test_files_are_tried_and_nothing_is_stored(client, space, made, words, tmp_path, environment):
    (tmp_path / "x.json").write_text(json.dumps(made))
    answer, = whys.refused(environment, tmp_path / "x.json", space)
    assert words in answer.diagnosis.cause and answer.diagnosis.known, answer
    for path in (f"/api/v1/namespaces/{space}/pods/x", f"/apis/apps/v1/namespaces/{space}/deployments/x"):
        assert not exists(client, path)


def test_a_pod_that_preempts_a_cordon_and_a_finalizer(client, space):
    pods = f"/api/v1/namespaces/{space}/pods"
    kept = asking("kept")
    kept["metadata"]["finalizers"] = ["example.com/keep"]
    client.create(pods, kept)
    client.delete(f"{pods}/kept")
    told(client, "pod/kept", space, "finalizers are taken away: example.com/keep")
    client.patch(f"{pods}/kept", {"metadata": {"finalizers": None}})
    client.create(pods, asking("urgent", limits={"gpu": 2}, nodeSelector=T4, priorityClassName="urgent"))
    told(client, "pod/urgent", space, "preempts pods of lower priority there, which are still terminating")
    client.delete(f"{pods}/urgent")
    client.patch("/api/v1/nodes/h100-3", {"spec": {"unschedulable": True}})
    try:
        client.create(pods, asking("cordoned", limits={"gpu": 1}, nodeSelector={HOST: "h100-3"}))
        client.patch(f"{pods}/cordoned", {"metadata": {"labels": {"seen": "yes"}}})
        told(client, "pod/cordoned", space, "are cordoned (h100-3)")
        assert "It is cordoned" in why.ask(client, "node", "h100-3")[0][1].cause
    finally:
        client.patch("/api/v1/nodes/h100-3", {"spec": {"unschedulable": None}})


def test_a_plugin_that_is_not_ready_and_another_mig_strategy(client, space, environment):
    pods = f"/api/v1/namespaces/{space}/pods"
    faults.cause(environment, "driver-broken", "a100-1")
    operator.label(client, "a100-0", **{"mig.config": "all-3g.20gb"})
    operator.policy(client, mig={"strategy": "mixed"})
    try:
        operator.advertises(client, "a100-1")
        client.create(pods, asking("no-plugin", limits={"gpu": 1}, nodeSelector={HOST: "a100-1"}))
        words = "device plugin is not ready on the nodes that it could use (a100-1)"
        # The operands' pods are made anew at that moment.
        until(lambda: any("nvidia-d" in line and "a100-1" in line for line in told(client, "pod/no-plugin", space, words).evidence), what="an operand")
        assert "device plugin is not ready" in why.ask(client, "node", "a100-1")[0][1].cause
        operator.advertises(client, "a100-0", **{"mig-3g.20gb": "8"})
        client.create(pods, asking("whole", limits={"gpu": 1}, nodeSelector={HOST: "a100-0"}))
        found = told(client, "pod/whole", space, "None of the nodes that it selects advertises nvidia.com/gpu; they advertise nvidia.com/mig-3g.20gb")
        assert "MIG strategy" in found.remedy
    finally:
        # A GPU in use is not changed, and "slice" has found one by now.
        for name in ("whole", "no-plugin", "slice"):
            if exists(client, f"{pods}/{name}"):
                client.delete(f"{pods}/{name}", {"gracePeriodSeconds": 0})
        faults.clear(environment, "driver-broken", "a100-1")
        restore(client, {one.name: one.gpus for one in environment.fleet.nodes() if one.gpus}, time.monotonic() + 60)


def test_nothing_is_changed_and_what_is_not_there_is_said(client, space):
    looking = why.ReadOnly(client)
    for call in (lambda: looking.delete(f"/api/v1/namespaces/{space}/pods/full"), lambda: looking.create("/api/v1/namespaces", {}),
                 lambda: looking.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}, dry_run=True)):
        with pytest.raises(BadInput, match="only looks"):
            call()
    with pytest.raises(BadInput, match="is no Pod in namespace"):
        why.ask(client, "pod", "nobody", space)

