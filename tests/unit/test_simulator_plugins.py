"""A kubelet's side of device plugins: registered, stopped, forgotten, and what the node says of it."""

import json
from types import SimpleNamespace

import pytest
from simulator_fakes import Api, Direct, Later, pod

from orchlab.clock import Clock
from orchlab.errors import ApiError, EnvironmentBroken
from orchlab.simulator import plugins
from orchlab.simulator.admission import Admission
from orchlab.simulator.inventory import GPU
from orchlab.simulator.nodes import HARDWARE


class Kubelets:
    """One node with its simulated kubelet; `api` remembers what it writes. `look` is a watch's event."""

    def __init__(self, monkeypatch, *answers) -> None:
        self.api, self.now = Api(*answers), 1000.0
        monkeypatch.setattr(plugins, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=lambda seconds: None))
        self.admission = Admission(self.api, Direct(), lambda: Clock(60))
        self.fresh()
        self.status = {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8", "pods": "10"}}
        self.notes = {HARDWARE: "{}"}

    def fresh(self) -> None:
        self.workers = Later()
        self.plugins = plugins.Plugins(self.api, self.workers, self.admission, lambda: Clock(60))

    def look(self, registered: dict | None = None, ours: bool = True, **resources: list[str]) -> dict[str, tuple[str, str]]:
        """Lets the node's annotation say that these devices are registered; returns what the node then says: {resource: (capacity,
        allocatable)}."""
        found = registered or {f"nvidia.com/{name.replace('_', '-')}": {"devices": devices} for name, devices in resources.items()}
        self.notes[plugins.INVENTORY] = json.dumps({"resources": found})
        self.event(ours)
        return self.says()

    def event(self, ours: bool = True) -> None:
        before = len(self.api.asked)
        self.plugins.node({"metadata": {"name": "n", "annotations": dict(self.notes)}, "spec": {"podCIDR": "10.128.0.0/24"},
                           "status": json.loads(json.dumps(self.status))}, ours)
        self.take(before)

    def take(self, before: int) -> None:
        """The writes are carried out, and the API server keeps them."""
        self.workers.run()
        for method, path, body in self.api.asked[before:]:
            if path.endswith("/nodes/n/status"):
                for part, values in body["status"].items():
                    self.status[part] |= values
            elif path.endswith("/nodes/n"):
                self.notes |= body["metadata"]["annotations"]

    def tick(self, seconds: float) -> dict[str, tuple[str, str]]:
        self.now += seconds
        before = len(self.api.asked)
        self.plugins.tick()
        self.take(before)
        return self.says()

    def says(self) -> dict[str, tuple[str, str]]:
        return {key.removeprefix("nvidia.com/"): (value, self.status["allocatable"][key]) for key, value in self.status["capacity"].items()
                if key != "cpu"}

    def admit(self, name: str, gpus: int) -> dict:
        self.admission.pod(pod(name, gpus, uid=name))
        return self.api.asked[-1][2]


@pytest.fixture
def kubelets(monkeypatch):
    return Kubelets(monkeypatch)


def test_what_is_registered_is_capacity(kubelets):
    assert kubelets.look(gpu=["a", "b"]) == {"gpu": ("2", "2")}
    assert json.loads(kubelets.notes["orchlab/devices"]) == {GPU: ["a", "b"]}
    assert kubelets.look({GPU: {"devices": ["a", "b"], "replicas": 3, "unhealthy": ["b::2"]}}) == {"gpu": ("6", "5")}


def test_nothing_is_written_twice(kubelets):
    kubelets.look(gpu=["a"])
    before = len(kubelets.api.asked)
    kubelets.event()
    kubelets.tick(1)
    assert len(kubelets.api.asked) == before


def test_somebody_elses_change_of_the_status_is_written_over(kubelets):
    kubelets.look(gpu=["a"])
    kubelets.status["capacity"][GPU] = "64"
    kubelets.event()
    assert kubelets.says() == {"gpu": ("1", "1")}


def test_a_stopped_plugin_is_remembered_for_five_minutes(kubelets):
    kubelets.look(gpu=["a", "b"])
    assert kubelets.look() == {"gpu": ("2", "0")}
    # At 60 simulated seconds to a real one.
    assert kubelets.tick(4.9) == {"gpu": ("2", "0")}
    assert kubelets.tick(0.2) == {"gpu": ("0", "0")}
    assert kubelets.notes["orchlab/devices"] is None
    assert kubelets.look(gpu=["a"]) == {"gpu": ("1", "1")}


def test_a_plugin_that_comes_back_in_time_is_never_forgotten(kubelets):
    kubelets.look(gpu=["a"])
    kubelets.look()
    kubelets.tick(3)
    kubelets.look(gpu=["a"])
    assert kubelets.tick(60) == {"gpu": ("1", "1")}


def test_a_kubelet_that_starts_knows_only_what_is_registered(kubelets):
    kubelets.look(gpu=["a"], mig_1g_5gb=["m"])
    kubelets.look(gpu=["a"])
    kubelets.fresh()
    kubelets.event()
    assert kubelets.says() == {"gpu": ("1", "1"), "mig-1g-5gb": ("0", "0")}


def test_pods_keep_their_devices_while_no_plugin_vouches_for_them(kubelets):
    kubelets.look(gpu=["a", "b"])
    assert json.loads(kubelets.admit("first", 1)["metadata"]["annotations"]["orchlab/devices"]) == {"main": ["a"]}
    kubelets.look()
    kubelets.tick(10)
    kubelets.look(gpu=["a", "b"])
    assert json.loads(kubelets.admit("third", 1)["metadata"]["annotations"]["orchlab/devices"]) == {"main": ["b"]}


def test_a_stopped_plugin_refuses_pods(kubelets):
    kubelets.look(gpu=["a"])
    kubelets.look()
    kubelets.api.answers.append(([], "1"))  # which pods are there
    kubelets.admission.pod(pod("p", 1, uid="p"))
    messages = [body["status"]["message"] for _, path, body in kubelets.api.asked if path.endswith("/pods/p/status")]
    assert messages == ["Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
                        "nvidia.com/gpu, which is unexpected"]


def test_a_foreign_simulated_node_has_what_it_says(kubelets):
    kubelets.notes = {}
    kubelets.status = {"capacity": {GPU: "2"}, "allocatable": {GPU: "2", "cpu": "8", "pods": "10"}}
    kubelets.event(ours=False)
    assert len(kubelets.admission.holders("n")) == 2 and kubelets.api.asked == []


def test_a_write_that_fails_is_tried_again(monkeypatch):
    kubelets = Kubelets(monkeypatch, EnvironmentBroken("away"), ApiError(503, "", "busy"))
    assert kubelets.look(gpu=["a"]) == {"gpu": ("1", "1")} and len(kubelets.api.asked) == 4
    kubelets = Kubelets(monkeypatch, ApiError(404, "", "gone"))
    kubelets.look(gpu=["a"])
    assert len(kubelets.api.asked) == 1


def test_a_silent_kubelet_admits_nothing_and_one_that_is_back_what_has_waited(monkeypatch):
    kubelets = Kubelets(monkeypatch)
    kubelets.look(gpu=["a", "b"])
    kubelets.plugins.silent("n")
    before = len(kubelets.api.asked)
    kubelets.tick(1000)
    kubelets.admission.pod(pod("waits", 1, uid="waits"))
    assert len(kubelets.api.asked) == before
    kubelets.event()  # nothing else of the node has changed meanwhile
    assert any("waits" in path for _, path, _ in kubelets.api.asked[before:])
