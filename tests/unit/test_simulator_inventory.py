import pytest

from orchlab.simulator import inventory
from orchlab.simulator.inventory import GPU, Ask, Unavailable


@pytest.fixture
def node():
    return inventory.of_node("environment", "n", 4, "10.128.0.0/24")


def uuids(node, *indexes):
    return [node.devices[index].uuid for index in indexes]


def test_uuids_last_and_differ():
    again = inventory.of_node("environment", "n", 4)
    others = inventory.of_node("environment", "m", 4).devices + inventory.of_node("other", "n", 4).devices
    mine = [device.uuid for device in inventory.of_node("environment", "n", 4).devices]
    assert mine == [device.uuid for device in again.devices]
    assert len(set(mine)) == 4 and set(mine).isdisjoint(device.uuid for device in others)


def test_lowest_index_first_and_freed_ones_again(node):
    assert node.allocate("a", [Ask("main", GPU, 2)]) == {"main": uuids(node, 0, 1)}
    assert node.allocate("b", [Ask("main", GPU, 1)]) == {"main": uuids(node, 2)}
    node.release("a")
    assert node.allocate("c", [Ask("x", GPU, 1), Ask("y", GPU, 2)]) == {"x": uuids(node, 0), "y": uuids(node, 1, 3)}


def test_too_many_takes_nothing(node):
    node.allocate("a", [Ask("main", GPU, 3)])
    with pytest.raises(Unavailable) as refused:
        node.allocate("b", [Ask("x", GPU, 1), Ask("y", GPU, 1)])
    assert refused.value.reason == "UnexpectedAdmissionError"
    assert str(refused.value) == ("Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 1, "
                                  "Available: 0, which is unexpected")
    assert [device.holder for device in node.devices] == ["a", "a", "a", None]


def test_unhealthy_devices_are_not_given_and_not_allocatable(node):
    node.devices[0].healthy = False
    assert node.allocatable() == {GPU: 3}
    assert node.allocate("a", [Ask("main", GPU, 1)]) == {"main": uuids(node, 1)}
    for device in node.devices:
        device.healthy = False
    with pytest.raises(Unavailable, match="no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"):
        node.allocate("b", [Ask("main", GPU, 1)])
    assert node.allocatable() == {GPU: 0}


def test_an_unknown_resource(node):
    with pytest.raises(Unavailable, match="cannot allocate unregistered device nvidia.com/mig-1g.5gb"):
        node.allocate("a", [Ask("main", "nvidia.com/mig-1g.5gb", 1)])


def test_init_containers_lend_their_devices_and_sidecars_keep_theirs(node):
    asks = [Ask("first", GPU, 2, "init"), Ask("second", GPU, 3, "init"), Ask("side", GPU, 1, "sidecar"), Ask("main", GPU, 2)]
    given = node.allocate("a", asks)
    assert given == {"first": uuids(node, 0, 1), "second": uuids(node, 0, 1, 2), "side": uuids(node, 0), "main": uuids(node, 1, 2)}
    assert [device.holder for device in node.devices] == ["a", "a", "a", None]


def test_restored_devices_are_taken(node):
    node.restore("a", {"main": [*uuids(node, 1), "GPU-gone"]})
    assert node.allocate("b", [Ask("main", GPU, 2)]) == {"main": uuids(node, 0, 2)}


def test_addresses_are_apart_and_come_back(node):
    assert [node.address(name) for name in "abca"] == ["10.128.0.2", "10.128.0.3", "10.128.0.4", "10.128.0.2"]
    node.release("b")
    assert node.address("d") == "10.128.0.3"
    for number in range(250):
        node.address(f"more-{number}")
    assert node.address("last") is None
    assert inventory.of_node("e", "n", 0).address("a") is None


def shared(*holders):
    """Two GPUs, four replicas each."""
    one = inventory.Registered(("GPU-a", "GPU-b"), 4, refusal="found {count}")
    made = inventory.node_devices("n", {GPU: one})
    for device, holder in zip(made.devices, holders, strict=False):
        device.holder = holder
    return made


def test_replicas_are_spread_over_the_least_used_devices():
    node = shared()
    assert node.allocatable() == {GPU: 8}
    given = [node.allocate(str(pod), [Ask("main", GPU, 1)])["main"][0] for pod in range(4)]
    assert given == ["GPU-a::0", "GPU-b::0", "GPU-a::1", "GPU-b::1"]
    node.release("0")
    assert node.allocate("4", [Ask("main", GPU, 1)])["main"] == ["GPU-a::0"]


def test_the_plugin_may_hand_out_one_at_a_time():
    with pytest.raises(Unavailable, match="Allocate failed due to found 2, which is unexpected"):
        shared().allocate("a", [Ask("main", GPU, 2)])


def test_a_stopped_plugin_leaves_unhealthy_devices():
    one = inventory.registered('{"resources": {"nvidia.com/gpu": {"devices": ["GPU-a", "GPU-b"], "unhealthy": ["GPU-b"]}}}')
    assert inventory.node_devices("n", one).allocatable() == {GPU: 1}
    assert inventory.node_devices("n", one, gone=frozenset({GPU})).allocatable() == {GPU: 0}
    assert inventory.registered("{") == inventory.registered("") == {}
