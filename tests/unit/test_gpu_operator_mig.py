"""The MIG manager's run: life of the state label, pausing, refusals, and what becomes of the node's resources."""

import pytest
from gpu_operator_fakes import Node

from orchlab.gpu_operator import migration, names, operands
from orchlab.simulator import inventory
from orchlab.simulator.plugins import INVENTORY

GPU = "nvidia.com/gpu"
CUSTOM = """version: v1
mig-configs:
  all-disabled: [{devices: all, mig-enabled: false}]
  half: [{devices: [0, 1], mig-enabled: true, mig-devices: {3g.20gb: 2}}, {devices: [2, 3], mig-enabled: false}]
  too-much: [{devices: all, mig-enabled: true, mig-devices: {7g.40gb: 2}}]
  elsewhere: [{devices: all, device-filter: "0x233010DE", mig-enabled: true, mig-devices: {1g.10gb: 7}}]
"""


def ask(node: Node, wanted: str) -> list[tuple[str | None, str]]:
    """Labels the node; the states of the manager and of the plugin's label in the order in which they were seen."""
    node.labels[names.MIG_CONFIG] = wanted
    seen = []
    for _ in range(200):
        made = node.turn()
        now = (node.labels.get(names.MIG_STATE), node.labels[names.DEPLOY + "device-plugin"])
        if not seen or seen[-1] != now:
            seen.append(now)
        node.now += made.after or 0.1
        if not (made.labels or made.notes or made.pods or made.delete or made.after):
            break
    return seen


def test_a_change_pauses_the_operands_and_takes_its_time():
    node = Node().settle()
    began, validator = node.now, node.pods[operands.VALIDATOR_DS].uid
    seen = ask(node, "all-1g.5gb")
    assert seen[-2:] == [("pending", names.PAUSED), ("success", "true")] and len(seen) <= 3
    assert node.now - began >= migration.MODE_SECONDS + migration.CONFIG_SECONDS
    assert node.pods[operands.VALIDATOR_DS].uid != validator
    assert node.allocatable == {GPU: "28"} and node.labels["nvidia.com/gpu.product"].endswith("-MIG-1g.5gb")


def test_under_mixed_each_profile_is_a_resource():
    node = Node(mig={"strategy": "mixed"}).settle()
    ask(node, "all-balanced")
    assert node.allocatable == {"nvidia.com/mig-1g.5gb": "8", "nvidia.com/mig-2g.10gb": "4", "nvidia.com/mig-3g.20gb": "4"}
    assert node.labels["nvidia.com/mig-1g.5gb.count"] == "8"


def test_balanced_under_single_ends_the_plugin():
    node = Node().settle()
    ask(node, "all-balanced")
    plugin = node.pods[operands.PLUGIN_DS]
    assert node.labels[names.MIG_STATE] == "success" and node.allocatable == {}
    assert "more than one MIG device type present on node" in plugin.note("orchlab/log") and plugin.note("orchlab/crash")


def test_a_gpu_in_use_fails_the_run_and_operands_come_back():
    node = Node().settle()
    node.held = frozenset(inventory.registered(node.notes[INVENTORY])[GPU].devices[2:3])
    assert ask(node, "all-1g.5gb")[-1] == ("failed", "true")
    assert "Error on GPU 2: In use by another client" in node.pods[operands.MIG_DS].note("orchlab/log")
    assert node.allocatable == {GPU: "4"}


def test_a_busy_gpu_that_stays_as_it_is_hinders_nobody():
    node = custom()
    node.held = frozenset(inventory.registered(node.notes[INVENTORY])[GPU].devices[3:])
    assert ask(node, "half")[-1][0] == "success"


def custom() -> Node:
    node = Node(migManager={"config": {"name": "mine", "default": "all-disabled"}}, mig={"strategy": "mixed"})
    node.files["mine"] = {migration.KEY: CUSTOM}
    return node.settle()


@pytest.mark.parametrize("wanted, log", [("all-3g.40gb", "selected mig-config not present: all-3g.40gb"),
                                         ("too-much", "all orderings failed")])
def test_refusals_in_the_managers_words(wanted, log):
    node = custom()
    assert ask(node, wanted)[-1] == ("failed", "true")
    assert log in node.pods[operands.MIG_DS].note("orchlab/log")


def test_a_configuration_of_ones_own():
    node = custom()
    ask(node, "half")
    assert node.allocatable == {GPU: "2", "nvidia.com/mig-3g.20gb": "4"}


def test_a_filter_that_matches_no_gpu_succeeds_and_changes_nothing():
    node = custom()
    assert ask(node, "elsewhere")[-1] == ("success", "true") and node.allocatable == {GPU: "4"}


def test_a_broken_config_map_fails():
    node = custom()
    node.files["mine"] = {migration.KEY: "version: v1\nmig-configs: {half: [{mig-enabled: true}]}\n"}
    assert ask(node, "half")[-1][0] == "failed"
    assert "missing required field: devices" in node.pods[operands.MIG_DS].note("orchlab/log")


def test_a_paused_operand_that_somebody_switched_off_stays_off():
    node = Node().settle()
    node.labels[names.DEPLOY + "dcgm-exporter"] = "false"
    node.daemonsets()
    ask(node, "all-1g.5gb")
    assert node.labels[names.DEPLOY + "dcgm-exporter"] == "false" and node.labels[names.MIG_STATE] == "success"


def test_the_default_file_of_nvidia_is_taken_as_a_configuration(request):
    path = request.config.rootpath / "tests" / "data" / "nvidia-default-mig-parted-config.yaml"
    node = Node(migManager={"config": {"name": "mine", "default": "all-disabled"}})
    node.files["mine"] = {migration.KEY: path.read_text(encoding="utf-8")}
    node.settle()
    ask(node, "all-1g.5gb")
    assert node.allocatable == {GPU: "28"}
