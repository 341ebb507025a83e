"""From kubelet's podresources to the annotation of the pods."""

from __future__ import annotations

import json
import shutil

import grpc
import pytest
from device_plugin_fakes import Cluster, Kubelet, folder, node
from simulator_fakes import pod

from orchlab.device_plugin.node import OwnNode
from orchlab.device_plugin.reporter import Reporter
from orchlab.device_plugin.smi_files import Folders, digest
from orchlab.gpu_operator import readings
from orchlab.gpus import smi
from orchlab.simulator import pods
from orchlab.simulator.inventory import registered
from orchlab.simulator.plugins import INVENTORY

GPU = "nvidia.com/gpu"
FOUND = node(count=12)
IDS = registered(FOUND["metadata"]["annotations"][INVENTORY])[GPU].ids


class There:
    def __init__(self, *found: dict) -> None:
        self.root = folder()
        self.kubelet = Kubelet(self.root).start()
        self.cluster = Cluster(*found)
        self.node = OwnNode("n", "env")
        self.node.take("LIST", [FOUND])
        self.folders = Folders(self.root / "smi")
        self.reporter = Reporter(self.cluster, self.node, self.kubelet.resources, self.folders)

    def look(self, held: dict) -> list[dict]:
        """The patches that a look makes."""
        self.kubelet.held = held
        before = len(self.cluster.patches)
        self.reporter.look()
        return [body for _, body in self.cluster.patches[before:]]


@pytest.fixture
def there():
    made = []

    def make(*found: dict) -> There:
        made.append(There(*found))
        return made[-1]

    yield make
    for one in made:
        one.kubelet.stop()
        shutil.rmtree(one.root, ignore_errors=True)


def test_writes_what_simulated_kubelets_write_and_only_once(there):
    site = there(pod("a", uid="u"), pod("b"))
    held = {("ns", "a"): {"main": {GPU: [IDS[11], IDS[2]]}, "other": {}}, ("ns", "b"): {"main": {"other.com/x": ["1"]}}}
    [body] = site.look(held)
    assert body["metadata"] == {"uid": "u", "annotations": {"orchlab/devices": json.dumps({"main": [IDS[2], IDS[11]]})}}
    assert pods.held_devices(site.cluster.pods["ns", "a"]) == {"main": [IDS[2], IDS[11]]}
    assert site.look(held) == []
    # In another order, as kubelet's sets have none.
    assert site.look({("ns", "a"): {"main": {GPU: [IDS[2], IDS[11]]}}}) == []


def test_several_containers_and_resources(there):
    site = there(pod("a"))
    held = {("ns", "a"): {"x": {GPU: [IDS[0]], "nvidia.com/aaa": ["MIG-1"]}, "y": {GPU: [IDS[1]]}}}
    [body] = site.look(held)
    assert json.loads(body["metadata"]["annotations"]["orchlab/devices"]) == {"x": ["MIG-1", IDS[0]], "y": [IDS[1]]}


def test_a_new_pod_of_the_same_name_with_the_same_devices(there):
    site = there(pod("a", uid="old"))
    held = {("ns", "a"): {"main": {GPU: IDS[:1]}}}
    site.look(held)
    site.cluster.pods["ns", "a"] = pod("a", uid="new")
    [body] = site.look(held)
    assert body["metadata"]["uid"] == "new"


def test_a_copied_annotation_goes_and_that_of_a_pod_that_is_over_stays(there):
    notes = {"orchlab/devices": json.dumps({"main": IDS[:1]})}
    site = there(pod("copy", notes=dict(notes)), pod("over", notes=dict(notes), phase="Succeeded"), pod("unknown", notes=dict(notes)))
    [body] = site.look({("ns", "copy"): {}, ("ns", "over"): {}, ("ns", "a"): {"main": {GPU: IDS[:1]}}})
    assert body["metadata"]["annotations"] == {"orchlab/devices": None}
    assert ["orchlab/devices" in one["metadata"]["annotations"] for one in site.cluster.pods.values()] == [False, True, True]


def test_a_pod_that_goes_meanwhile_is_no_error(there):
    site = there(pod("a"), pod("b"))
    listed = site.cluster.list

    def gone(path, **query):
        answer = listed(path, **query)
        site.cluster.pods.pop(("ns", "a"), None)
        return answer

    site.cluster.list = gone
    assert len(site.look({("ns", name): {"main": {GPU: [IDS[number]]}} for number, name in enumerate("ab")})) == 1


def test_nvidia_smi_in_the_container_says_what_orchlab_smi_says_of_the_pod(there):
    site = there(pod("a", phase="Running"))
    site.look({("ns", "a"): {"main": {GPU: IDS[3:5]}}})
    found = readings.of_pod(readings.of_node("env", FOUND, list(site.cluster.pods.values())), "ns", "a")
    text = (site.folders.root / digest(IDS[3:5]) / "texts" / "table").read_text()
    assert text.partition("\n")[2] == smi.table(found.inventory, found.holders, found.loads)
    assert "MiB" in text and "No running processes" not in text


def test_no_kubelet_is_an_error_that_passes(there):
    site = there(pod("a"))
    site.kubelet.stop()
    with pytest.raises(grpc.RpcError):
        site.look({})
    site.kubelet.start()
    assert len(site.look({("ns", "a"): {"main": {GPU: IDS[:1]}}})) == 1
