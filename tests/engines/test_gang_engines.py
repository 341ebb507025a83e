"""The engines for gangs, each on a real control plane: what fits runs, what doesn't waits as a whole and says why in the engine's own words."""

from __future__ import annotations

import os
import signal

import pytest
from waiting import until

from orchlab import environment as environments
from orchlab import faults
from orchlab.course import reset
from orchlab.course.lab import Lab
from orchlab.environment import Environment
from orchlab.errors import ApiError
from orchlab.kube import addons, gangs

BATCH = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
# Two nodes with 8 GPUs each, so that a gang of two pods with 8 GPUs fits and one of three never does.
FITS, TOO_LARGE = 2, 3
# The first to add an engine may have to build it.
pytestmark = pytest.mark.timeout(2400)


@pytest.fixture
def env(own, small_fleet):
    return own("gangs", fleet=small_fleet)


def job(name: str, pods: int, labels: dict | None = None, pod_labels: dict | None = None, pod: dict | None = None, **spec) -> dict:
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    template = {"metadata": {"labels": pod_labels or {}, "annotations": {"orchlab/run-for": "1m"}}, "spec": {"restartPolicy": "Never", "containers": [container]} | (pod or {})}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
            "spec": {"parallelism": pods, "completions": pods, "template": template} | spec}


def queued(name: str, pods: int, queue: str = "team") -> dict:
    return job(name, pods, labels={"kueue.x-k8s.io/queue-name": queue}, suspend=True)


def cosched(name: str, pods: int) -> list[dict]:
    return [{"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": name, "namespace": "default"}, "spec": {"minMember": pods}},
            job(name, pods, pod_labels={"scheduling.x-k8s.io/pod-group": name}, pod={"schedulerName": "cosched"})]


def quota(gpus: int) -> list[dict]:
    api = "kueue.x-k8s.io/v1beta2"
    flavor = {"name": "gpu", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": gpus}]}
    return [{"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": "gpu"}},
            {"apiVersion": api, "kind": "ClusterQueue", "metadata": {"name": "all"},
             "spec": {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}]}},
            {"apiVersion": api, "kind": "LocalQueue", "metadata": {"name": "team", "namespace": "default"}, "spec": {"clusterQueue": "all"}}]


def complete(client, name: str) -> bool:
    return client.get(f"{BATCH}/{name}")["status"].get("succeeded", 0) == client.get(f"{BATCH}/{name}")["spec"]["completions"]


def placed(client, name: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in client.list(PODS, labelSelector=f"job-name={name}")[0] if pod["spec"].get("nodeName")]


def said(client, name: str) -> str:
    """All that was said of a Job's pods: conditions and events."""
    pods = client.list(PODS, labelSelector=f"job-name={name}")[0]
    names = {pod["metadata"]["name"] for pod in pods}
    conditions = [condition.get("message", "") for pod in pods for condition in pod["status"].get("conditions") or []]
    events = [event.get("message") or event.get("note", "") for event in client.list("/api/v1/namespaces/default/events")[0] if event["involvedObject"].get("name") in names]
    return "\n".join([*conditions, *events])


def served(client) -> tuple:
    """What an engine must not leave behind: API groups, webhook configurations, CRDs, cluster-wide rights, namespaces."""
    def names(path: str) -> list[str]:
        return sorted(item["metadata"]["name"] for item in client.list(path)[0])

    rights = "/apis/rbac.authorization.k8s.io/v1"
    return (sorted(group["name"] for group in client.get("/apis")["groups"]), names(f"{WEBHOOKS}/mutatingwebhookconfigurations"),
            names(f"{WEBHOOKS}/validatingwebhookconfigurations"), names("/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
            names(f"{rights}/clusterroles"), names(f"{rights}/clusterrolebindings"), names("/api/v1/namespaces"))


def running(env) -> set[str]:
    return {state.name for state in Environment.load(env.name).health() if state.healthy}


def made(client, name: str) -> bool:
    """Whether the API server took a new Job."""
    try:
        return bool(client.create(BATCH, job(name, 1)))
    except ApiError:
        return False


def webhooks(client) -> list[str]:
    return [item["metadata"]["name"] for kind in ("mutating", "validating") for item in client.list(f"{WEBHOOKS}/{kind}webhookconfigurations")[0]
            if "kueue" in item["metadata"]["name"]]


def test_native_a_gang_that_does_not_fit_waits_as_a_whole_and_one_that_fits_runs(env):
    client = env.client()
    form = gangs.native(client)
    for name, size in (("large", TOO_LARGE), ("fits", FITS)):
        client.apply(gangs.manifest(form, name, size, "default"))
        wanted = job(name, size)
        wanted["spec"]["template"]["spec"] = gangs.member(form, name, wanted["spec"]["template"]["spec"])
        client.apply(wanted)

    def message() -> str:
        found = client.get(f"/apis/{form.api_version}/namespaces/default/podgroups/large").get("status", {}).get("conditions", [])
        return next((one["message"] for one in found if one["type"] == "PodGroupInitiallyScheduled" and one["status"] == "False"), "")

    until(lambda: complete(client, "fits"))
    assert "minCount (3) cannot be satisfied" in until(message)
    assert placed(client, "large") == []


def test_coscheduling_a_gang_that_does_not_fit_waits_as_a_whole_and_one_that_fits_runs(env):
    client = env.client()
    before = served(client)
    env = addons.add(env, "coscheduling")
    assert addons.present(env) == ["coscheduling"] and "coscheduling" in running(env)
    for one in [*cosched("large", TOO_LARGE), *cosched("fits", FITS)]:
        client.apply(one)
    until(lambda: complete(client, "fits"))
    until(lambda: "PodGroup default/large gets rejected due to Pod" in said(client, "large"))
    assert placed(client, "large") == []
    assert "Pod is waiting to be scheduled to node" in env.supervisor.log_tail("coscheduling", 1000)  # in Permit: what the API doesn't show
    assert {pod["spec"]["schedulerName"] for pod in client.list(PODS)[0]} == {"cosched"}

    addons.remove(env, "coscheduling")
    assert served(client) == before
    assert "coscheduling" not in running(env) and addons.present(Environment.load(env.name)) == []
    assert client.get(f"{BATCH}/large")["spec"]["parallelism"] == TOO_LARGE  # what users made stays


def test_kueue_holds_a_job_back_that_is_larger_than_the_quota_and_admits_one_that_fits(env):
    client = env.client()
    before = served(client)
    env = addons.add(env, "kueue")
    assert {"kueue", "kueue-webhooks"} <= running(env)
    for one in quota(16):
        client.apply(one)
    # Without `suspend`: Kueue's own webhook sees to that.
    client.apply(job("large", TOO_LARGE, labels={"kueue.x-k8s.io/queue-name": "team"}))
    client.apply(queued("fits", FITS))
    assert client.get(f"{BATCH}/large")["spec"]["suspend"] is True

    def message() -> str:
        owned = [one for one in client.list(WORKLOADS)[0] if one["metadata"]["ownerReferences"][0]["name"] == "large"]
        return next((cond["message"] for one in owned for cond in one.get("status", {}).get("conditions", []) if cond["type"] == "QuotaReserved" and cond["status"] == "False"), "")

    until(lambda: complete(client, "fits"))
    assert "insufficient quota for nvidia.com/gpu in flavor gpu" in until(message)
    assert client.get(f"{BATCH}/large")["spec"]["suspend"] is True and client.list(PODS, labelSelector="job-name=large")[0] == []

    addons.remove(env, "kueue")
    assert served(client) == before
    assert not {"kueue", "kueue-webhooks"} & running(env)
    assert client.get(f"{BATCH}/large")["spec"]["suspend"] is True
    client.create(BATCH, job("plain", 1))


def test_a_labs_reset_removes_what_was_added_even_where_kueue_is_broken(env):
    client = env.client()
    before = served(client)
    lab = Lab("01", env.name, quiet=True)
    for name in ("coscheduling", "kueue"):
        assert f"{name} {addons.versions(addons.add(env, name))[name]} runs" in lab.add_engine(name)
    for one in quota(16):
        client.apply(one)
    client.apply(queued("large", TOO_LARGE))
    faults.cause(env, "daemon-down", "kueue")
    steps = reset.cluster(lab.folder, env.name)
    assert {"engine kueue: removed", "engine coscheduling: removed"} <= set(steps)
    assert [names for names in served(client)[:-1]] == list(before[:-1])  # the last are namespaces, and the lab has one
    assert addons.present(Environment.load(env.name)) == [] and not {"kueue", "kueue-webhooks", "coscheduling"} & running(env)


def test_both_come_back_with_up_and_kueue_leaves_no_webhook_where_it_is_gone(env):
    env = addons.add(addons.add(env, "kueue"), "coscheduling")
    client = env.client()
    assert len(webhooks(client)) == 2
    client.apply(quota(16)[0])

    faults.cause(env, "daemon-down", "kueue")
    until(lambda: webhooks(client) == [])
    client.create(BATCH, job("while-it-is-down", 1))
    faults.clear(env)
    until(lambda: len(webhooks(client)) == 2)

    # Killed, it is started again; in between, too, a Job can be made once its webhooks are gone.
    os.kill(next(state.pid for state in Environment.load(env.name).health() if state.name == "kueue"), signal.SIGKILL)
    until(lambda: made(client, "after-the-kill"))
    until(lambda: len(webhooks(client)) == 2)

    environments.down(env.name)
    assert "webhooks removed: stopping" in env.supervisor.log_tail("kueue-webhooks")
    env = environments.up(env.name)
    client = env.client()
    assert addons.present(env) == ["kueue", "coscheduling"] and {"kueue", "kueue-webhooks", "coscheduling"} <= running(env)
    assert len(webhooks(client)) == 2
    assert client.get("/apis/kueue.x-k8s.io/v1beta2/resourceflavors/gpu")
    pids = {state.name: state.pid for state in env.health()}
    again = addons.add(env, "kueue")
    assert {state.name: state.pid for state in again.health()} == pids  # adding what is there changes nothing
