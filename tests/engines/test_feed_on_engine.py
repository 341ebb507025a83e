"""The feed and the live view on a real API server: what the scheduler says, a real 410, a killed API server."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from orchlab.kube.feed import Feed
from orchlab.views import Live

GPU = "nvidia.com/gpu"
PODS = "/api/v1/namespaces/{}/pods"


@pytest.fixture
def namespace(environment):
    client = environment.client()
    made = client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "views-"}})
    name = made["metadata"]["name"]
    yield name
    client.delete(f"/api/v1/namespaces/{name}")


def pod(name: str, gpus: int, run_for: str) -> dict:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": {"orchlab/run-for": run_for}},
            "spec": {"restartPolicy": "Never", "tolerations": [{"key": GPU, "operator": "Exists"}],
                     "containers": [{"name": "main", "image": "none", "resources": {"limits": {GPU: str(gpus)}}}]}}


def named(snapshot, name):
    return next((u for u in snapshot.units if u.name == name), None)


def test_the_map_and_the_timeline_say_what_the_api_says(environment, namespace):
    client = environment.client()
    with Live(client, ("map", "pending", "gantt", "devices"), key="engines", namespace=namespace) as view:
        view.feed.ready(20)
        for made in (pod("long", 3, "200h"), pod("short", 1, "2m"), pod("big", 16, "1h")):
            client.create(PODS.format(namespace), made)
        snapshot = view.feed.wait(
            lambda s: all(named(s, n) for n in ("long", "short", "big")) and named(s, "long").stage == "running"
            and named(s, "short").stage == "ended" and named(s, "big").reason, 40, "the three pods")
        raw = client.get(f"{PODS.format(namespace)}/big")
        condition = next(c for c in raw["status"]["conditions"] if c["type"] == "PodScheduled")
        assert named(snapshot, "big").message == condition["message"] and f"Insufficient {GPU}" in condition["message"]
        running = named(snapshot, "long")
        node = next(n for n in snapshot.nodes if n.name == running.nodes[0])
        assert len(running.shares[0].devices) == 3 and set(running.shares[0].devices) <= set(node.devices[GPU])
        assert node.simulated == "all" and node.zone and node.rack and node.product
        deadline = time.monotonic() + 10
        while condition["message"] not in view.text or f"3 of {len(node.devices[GPU])} GPUs held" not in view.widget.children[1].html:
            assert time.monotonic() < deadline, view.text
            time.sleep(0.05)
        record = {r.name: r for r in view.feed.timeline.records()}
        assert record["short"].outcome == "Succeeded" and record["short"].holds[0].shares[0].devices
        assert record["short"].submitted <= record["short"].holds[0].start <= record["short"].runs[0].start < record["short"].ended
        assert record["big"].waits[-1].message == condition["message"] and not record["big"].holds
        assert any(e.reason == "Scheduled" and e.about == "Pod long" for e in snapshot.events)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("orchlab-")]


def test_a_killed_api_server_and_a_410_leave_gaps_and_nothing_else(own, small_fleet):
    environment = own(fleet=small_fleet)
    client = environment.client()
    watch, past = client.watch, threading.Event()

    def maybe_from_the_past(path, version, **query):
        if past.is_set() and path.endswith("/pods"):
            past.clear()
            version = "1"
        return watch(path, version, **query)

    client.watch = maybe_from_the_past
    with Feed(client, watch_seconds=2) as feed:
        feed.ready(20)
        client.create(PODS.format("default"), pod("stays", 2, "200h"))
        feed.wait(lambda s: named(s, "stays") and named(s, "stays").stage == "running", 20, "a running pod")
        os.kill(next(p.pid for p in environment.health() if p.name == "kube-apiserver"), signal.SIGKILL)
        feed.wait(lambda s: s.trouble, 10, "trouble")
        snapshot = feed.wait(lambda s: not s.trouble, 60, "the API server's return")
        assert named(snapshot, "stays").stage == "running"
        gap, = feed.timeline.gaps("Pod")
        assert 0 < gap.end - gap.start < 60

        # An API server remembers changes from its own start on: what is older, it refuses with 410.
        past.set()
        feed.wait(lambda s: len(feed.timeline.gaps("Pod")) == 2, 20, "the second gap")
        assert "too old resource version: 1 " in feed.timeline.gaps("Pod")[1].why
        client.create(PODS.format("default"), pod("later", 1, "200h"))
        feed.wait(lambda s: named(s, "later") and named(s, "later").stage == "running", 20, "a pod after the list")
        record = next(r for r in feed.timeline.records() if r.name == "stays")
        assert record.ended is None and len(record.holds) == 1
        start = time.monotonic()
    assert time.monotonic() - start < 2
