import pytest

from orchlab.errors import BadInput
from orchlab.gpus import allocation, inventory
from orchlab.gpus.sharing import Shared, Sharing


@pytest.fixture
def slots():
    node = inventory.of_node("env", "node", "A100-40", 2)
    node.sharing = Sharing("time-slicing", False, False, (Shared("nvidia.com/gpu", "nvidia.com/gpu", 3),))
    return inventory.resources(node)["nvidia.com/gpu"]


def names(slots, chosen):
    """As GPU index:replica."""
    short = {slot.id: f"{slot.gpu}:{slot.replica}" for slot in slots}
    return [short[name] for name in chosen]


@pytest.mark.parametrize(("taken", "size", "policy", "expected"), [
    ([], 1, "distributed", ["0:0"]), ([], 2, "distributed", ["0:0", "1:0"]), ([], 4, "distributed", ["0:0", "1:0", "0:1", "1:1"]),
    (["0:0"], 1, "distributed", ["1:0"]), (["0:0", "0:1"], 3, "distributed", ["1:0", "1:1", "0:2"]),
    ([], 2, "packed", ["0:0", "0:1"]), (["1:0"], 3, "packed", ["1:1", "1:2", "0:0"])])
def test_replicas(slots, taken, size, policy, expected):
    free = [slot.id for slot in slots if f"{slot.gpu}:{slot.replica}" not in taken]
    assert names(slots, allocation.preferred(slots, free, size, policy=policy)) == expected


def test_whole_gpus_and_required_ones():
    whole = inventory.resources(inventory.of_node("env", "node", "T4", 4))["nvidia.com/gpu"]
    ids = [slot.id for slot in whole]
    assert allocation.preferred(whole, ids[::-1], 2) == ids[:2]
    assert allocation.preferred(whole, ids, 2, required=[ids[3]]) == [ids[3], ids[0]]
    assert allocation.preferred(whole, ids, 1, required=[ids[3]]) == [ids[3]]


@pytest.mark.parametrize(("free", "size", "policy", "field"), [
    (slice(0, 1), 2, "distributed", "size"), (slice(None), 1, "spread", "sharedDevicesAllocationPolicy"), (None, 1, "packed", "device")])
def test_refusals(slots, free, size, policy, field):
    ids = ["GPU-x"] if free is None else [slot.id for slot in slots][free]
    with pytest.raises(BadInput) as caught:
        allocation.preferred(slots, ids, size, policy=policy)
    assert caught.value.field == field
