"""Simulated nodes against a kubelet with the real device plugin: one fleet, one operator, two nodes of the same model. For a pairwise sample of
sharing configurations, MIG layouts and requests both end with the same allocatable, phase, reason and message; and what both advertise is
what the pure model says, which covers all combinations in the unit tests.
"""

from __future__ import annotations

import re
import time

import pytest
from kind_support import pod, until
from pairwise import sample

from orchlab.gpu_operator import migration
from orchlab.gpu_operator.restore import restore
from orchlab.gpus import inventory, mig_config, sharing

PODS = "/api/v1/namespaces/default/pods"
POLICY = "/apis/nvidia.com/v1/clusterpolicies/cluster-policy"
REAL, SIMULATED = "a100-0", "a100-1"
MODEL, COUNT = "A100-40", 4
PLAIN = "nvidia.com/gpu"
SHARING = {
    "whole": "version: v1\n",
    "sliced": "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}, {name: nvidia.com/mig-1g.5gb, replicas: 2}]}}\n",
    "strict": "version: v1\nsharing: {timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: nvidia.com/gpu, replicas: 2}, "
              "{name: nvidia.com/mig-1g.5gb, replicas: 2}]}}\n",
    "renamed": "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n",
    "typo": "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}\n",
}
# What a pod asks of each resource: 1, 2, all of it, one more than there is; and a resource that only another strategy has.
REQUESTS = ("one", "two", "all", "more", "another")
LAYOUTS = ("all-disabled", "all-1g.5gb", "all-balanced")
STRATEGIES = ("single", "mixed")
ROWS = sample({"strategy": STRATEGIES, "layout": LAYOUTS, "sharing": tuple(SHARING), "request": REQUESTS})
pytestmark = pytest.mark.timeout(3000)


def model(strategy: str, layout: str, text: str) -> dict[str, int]:
    """What the pure model says a node advertises: {} where the plugin ends with an error."""
    found = inventory.of_node("", "node", MODEL, COUNT)
    inventory.apply_mig_config(found, mig_config.parse(migration.generated(MODEL, COUNT)), layout)
    found.mig_strategy = strategy
    try:
        config = sharing.parse(text)
        sharing.check(config, strategy)
        found.sharing = config.sharing
        return inventory.allocatable(found)
    except sharing.PluginError:
        return {}


def advertised(client, node: str) -> dict[str, int]:
    allocatable = client.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]
    return {key: int(value) for key, value in allocatable.items() if key.startswith("nvidia.com/") and value != "0"}


@pytest.fixture(scope="module")
def client(cluster):
    """All configurations are there; the operands of all nodes restart at the same time."""
    client = cluster.client()
    client.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fidelity", "namespace": "gpu-operator"}, "data": SHARING}, manager="test")
    client.patch(POLICY, {"spec": {"devicePlugin": {"config": {"name": "fidelity", "default": "whole"}}, "daemonsets": {"rollingUpdate": {"maxUnavailable": "100%"}}}})
    yield client
    restore(client, {node.name: node.gpus for node in cluster.fleet.nodes() if node.gpus}, time.monotonic() + 180)


def configured(client, strategy: str, layout: str, chosen: str) -> dict[str, int]:
    """Brings both nodes there; returns what they advertise, once that is what the model says."""
    if client.get(POLICY)["spec"]["mig"]["strategy"] != strategy:
        client.patch(POLICY, {"spec": {"mig": {"strategy": strategy}}})
    for node in (REAL, SIMULATED):
        client.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"nvidia.com/mig.config": layout, "nvidia.com/device-plugin.config": chosen}}})
    wanted = model(strategy, layout, SHARING[chosen])
    for node in (REAL, SIMULATED):
        until(lambda node=node: _settled(client, node, layout) and advertised(client, node) == wanted, 150)
    return wanted


def _settled(client, node: str, layout: str) -> bool:
    labels = client.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
    return (labels.get("nvidia.com/mig.config"), labels.get("nvidia.com/mig.config.state")) == (layout, "success")


def ask(request: str, offered: dict[str, int]) -> tuple[str, int]:
    if request == "another" or not offered:
        known = ("nvidia.com/mig-7g.40gb", PLAIN, "nvidia.com/gpu.shared")
        return next(name for name in known if name not in offered), 1
    resource = max(offered, key=lambda name: (offered[name], name))
    return resource, {"one": 1, "two": 2, "all": offered[resource], "more": offered[resource] + 1}[request]


def outcome(client, node: str, resource: str, count: int) -> tuple[str, str, str]:
    """(phase, reason, message) of a pod that has to go to this node, without names and numbers that differ between nodes."""
    name = f"asks-{node}"
    client.create(PODS, pod(name, gpus=count, resource=resource, node=node, run_for="10h"))

    def decided() -> dict | None:
        status = client.get(f"{PODS}/{name}")["status"]
        waits = any(c["type"] == "PodScheduled" and c["status"] == "False" for c in status.get("conditions") or [])
        return status if waits or status.get("phase") in ("Running", "Failed") else None

    status = until(decided, 60, 0.2)
    message = status.get("message") or next((c.get("message", "") for c in status.get("conditions") or [] if c["type"] == "PodScheduled"), "")
    client.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 1})
    until(lambda: not [one for one in client.list(PODS)[0] if one["metadata"]["name"] == name], 60, 0.2)
    return status["phase"], status.get("reason", ""), re.sub(r"(GPU|MIG)-[0-9a-f-]+(::\d+)?", r"\1-ID", message)


def test_the_sample_has_about_thirty_inputs():
    assert 25 <= len(ROWS) <= 40


def test_simulated_nodes_answer_as_real_kubelets_do(client):
    """All of the sample, in an order that changes layouts seldom; the differences of all inputs are told together."""
    differences, last, offered = [], None, {}
    for row in sorted(ROWS, key=lambda row: (row["strategy"], row["layout"], row["sharing"])):
        now = (row["strategy"], row["layout"], row["sharing"])
        if now != last:
            offered, last = configured(client, *now), now
        resource, count = ask(row["request"], offered)
        real, simulated = (outcome(client, node, resource, count) for node in (REAL, SIMULATED))
        if real != simulated:
            differences.append(f"{row}: {count} x {resource}\n  kubelet:   {real}\n  simulated: {simulated}")
    assert not differences, "\n".join(differences)
