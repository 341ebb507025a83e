import subprocess
import sys

import pytest

from orchlab import fleet
from orchlab.errors import BadInput
from orchlab.fleet_nodes import expand, quantity

POOL = "pools:\n- {name: a, count: 1, cpu: 1, memory: 1Gi%s}"


def test_the_default_fleet():
    nodes = fleet.load().nodes()
    assert [n.name for n in nodes] == ["h100-0", "h100-1", "h100-2", "h100-3", "a100-0", "a100-1", "t4-0", "cpu-0", "cpu-1"]
    assert sum(n.gpus for n in nodes) == 4 * 8 + 2 * 4 + 2
    assert [(n.zone, n.rack) for n in nodes[:4]] == [("zone-a", "rack-a1")] * 2 + [("zone-b", "rack-b1")] * 2
    for node in nodes:
        taints = [(t.key, t.value, t.effect) for t in node.taints]
        assert taints == ([("nvidia.com/gpu", "present", "NoSchedule")] if node.gpus else [])
        assert not any("nvidia.com" in key or "pci" in key for key in node.labels)
        assert node.labels["orchlab/simulated"] == "true" and node.labels["kubernetes.io/hostname"] == node.name


def test_plain_data_gives_the_same_nodes():
    loaded = fleet.load()
    data = loaded.model_dump(mode="json")
    assert expand(data) == loaded.nodes() == fleet.from_data(data).nodes()


def test_nodes_are_dealt_evenly_in_blocks():
    nodes = fleet.parse("zones: {za: [r1, r2], zb: [r3]}\n" + POOL.replace("count: 1", "count: 7") % "").nodes()
    assert [n.rack for n in nodes] == ["r1", "r1", "r1", "r2", "r2", "r3", "r3"]
    assert {n.zone for n in nodes if n.rack in ("r1", "r2")} == {"za"}


def test_a_pool_can_be_kept_to_zones_or_racks():
    chosen = fleet.parse("zones: {za: [r1, r2], zb: [r3]}\n" + POOL % ", zones: [zb]")
    assert chosen.racks("a") == [("zb", "r3")]
    assert fleet.parse("zones: {za: [r1, r2], zb: [r3]}\n" + POOL % ", racks: [r2, r3]").racks("a") == [("za", "r2"), ("zb", "r3")]
    with pytest.raises(BadInput, match="b"):
        chosen.racks("b")


@pytest.mark.parametrize("text, field, word", [
    ("pools: []", "pools", "empty"),
    ("region: x", "pools", "has no 'pools'"),
    ("pools: 3", "pools", "list"),
    (POOL % ", colour: red", "pools[0].colour", "not a known key"),
    (POOL % ", gpus: {modell: T4, count: 1}", "pools[0].gpus.modell", "not a known key"),
    (POOL % ", gpus: {model: H100, count: 1}", "pools[0].gpus.model", "catalog"),
    (POOL % ", gpus: {model: T4, count: 17}", "pools[0].gpus.count", "above 16"),
    (POOL % ", gpus: {model: T4, count: 0}", "pools[0].gpus.count", "below 1"),
    (POOL % ", gpus: {model: T4}", "pools[0].gpus.count", "has no 'count'"),
    (POOL.replace("count: 1", "count: 0") % "", "pools[0].count", "below 1"),
    (POOL.replace("count: 1", "count: -2") % "", "pools[0].count", "below 1"),
    (POOL.replace("count: 1", "count: '2'") % "", "pools[0].count", "integer"),
    (POOL.replace("count: 1", "count: 5001") % "", "pools[0].count", "above 5000"),
    (POOL.replace("name: a", "name: A_1") % "", "pools[0].name", "lower-case"),
    (POOL.replace("1Gi", "1Gx") % "", "pools[0].memory", "quantity"),
    (POOL.replace("1Gi", "-1Gi") % "", "pools[0].memory", "quantity"),
    (POOL % ", ephemeral_storage: lots", "pools[0].ephemeral_storage", "quantity"),
    (POOL.replace("cpu: 1", "cpu: 500m") % "", "pools[0].cpu", "integer"),
    (POOL % ", labels: {'a b': c}", "pools[0].labels.a b", "label key"),
    (POOL % ", labels: {'UPPER.example/a': c}", "pools[0].labels.UPPER.example/a", "label key"),
    (POOL % ", labels: {team: 'a b'}", "pools[0].labels.team", "label value"),
    (POOL % ", labels: {team: 1}", "pools[0].labels.team", "not text"),
    (POOL % ", labels: {nvidia.com/gpu.product: X}", "pools[0].labels.nvidia.com/gpu.product", "orchlab itself"),
    (POOL % ", taints: [{key: a, effect: NoWay}]", "pools[0].taints[0].effect", "possible"),
    (POOL % ", taints: [{key: a, effect: NoExecute}, {key: a, value: b, effect: NoExecute}]", "pools[0].taints", "same effect"),
    (POOL % ", zones: [zone-x]", "pools[0].zones[0]", "not in zones"),
    (POOL % ", racks: [rack-x]", "pools[0].racks[0]", "not in zones"),
    (POOL % "" + "\n- {name: a, count: 1, cpu: 1, memory: 1Gi}", "pools[1].name", "earlier pool"),
    ("zones: {za: [r], zb: [r]}\n" + POOL % "", "zones.zb[0]", "already a rack"),
    ("zones: {za: []}\n" + POOL % "", "zones.za", "empty"),
    ("zones: {za: [r1], zb: [r2]}\n" + POOL % ", zones: [za], racks: [r2]", "pools[0].racks", "not among"),
    ("pools:\n" + "".join(f"- {{name: p{i}, count: 2000, cpu: 1, memory: 1Gi}}\n" for i in range(3)), "pools", "5000"),
    ("pools: []\npools: []", "pools", "twice"),
    ("x: [", "fleet", "line 1"),
    ("- a", "fleet", "mapping"),
    ("", "fleet", "mapping"),
])
def test_what_is_wrong_is_named(text, field, word):
    with pytest.raises(BadInput) as caught:
        fleet.parse(text)
    assert caught.value.field == field
    assert word in caught.value.problem
    assert caught.value.remedy


def test_all_wrong_things_are_counted():
    with pytest.raises(BadInput, match=r"and 1 more"):
        fleet.parse(POOL.replace("cpu: 1", "cpu: 0") % ", gpus: {model: T4, count: 99}")


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(BadInput, match="No such file"):
        fleet.load(tmp_path / "none.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="UTF-8"):
        fleet.load(tmp_path / "binary")


@pytest.mark.parametrize("text, size", [("64Gi", 64 * 2**30), ("2T", 2 * 10**12), (1024, 1024), ("1.5Gi", 3 * 2**29), ("1000k", 10**6)])
def test_quantity(text, size):
    assert quantity(text) == size


@pytest.mark.parametrize("text", ["", "Gi", "1gb", "1 Gi", "0", "-1", "nan", "inf", None, True, "0.1"])
def test_quantity_refuses(text):
    with pytest.raises(BadInput):
        quantity(text, "memory")


def test_nodes_need_no_validation_library():
    code = "import sys, orchlab.fleet_nodes; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0
