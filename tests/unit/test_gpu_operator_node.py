"""What the operator decides for a node: labels, order of the operands, configurations, health, MIG."""

import json

import pytest
from gpu_operator_fakes import Node

from orchlab.gpu_operator import devices, names, operands
from orchlab.gpu_operator.devices import State

SLICED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: %s}]}}\n"
GPU = "nvidia.com/gpu"


def test_from_a_bare_node_to_gpus():
    node = Node().settle()
    assert node.allocatable == {GPU: "4"} and node.labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert node.labels[names.PRESENT] == "true" and node.labels[names.NFD[0]] == "true"
    assert (node.labels[names.MIG_CONFIG], node.labels[names.MIG_STATE]) == ("all-disabled", "success")


def test_operands_open_in_the_order_of_their_validations():
    opened = Node().settle().opened
    assert opened[:2] == [operands.DRIVER_DS, operands.TOOLKIT_DS]
    assert opened.index(operands.PLUGIN_DS) < opened.index(operands.VALIDATOR_DS)
    assert set(opened) == operands.BY_NAME.keys() - {operands.MPS_DS, operands.DCGM_DS, "nvidia-node-status-exporter"}


def test_nobody_waits_for_a_plugin_that_is_switched_off():
    node = Node(devicePlugin={"enabled": False}).settle()
    assert operands.VALIDATOR_DS in node.opened and operands.PLUGIN_DS not in node.pods and node.allocatable == {}


@pytest.mark.parametrize("section", ["driver", "toolkit"])
def test_without_driver_or_toolkit_the_rest_waits(section):
    node = Node(**{section: {"enabled": False}}).settle()
    assert operands.PLUGIN_DS not in node.opened and node.allocatable == {} and "nvidia.com/gpu.product" not in node.labels


def test_nodes_without_gpus_get_nothing():
    node = Node(count=0).settle()
    assert node.labels == {} and node.notes == {}


def test_a_node_that_cannot_do_mig_has_no_manager():
    node = Node("T4", 2).settle()
    assert operands.MIG_DS not in node.pods and names.MIG_CONFIG not in node.labels and node.labels[names.MIG_CAPABLE] == "false"


def test_opting_out_and_values_of_somebodys_own():
    node = Node().settle()
    node.labels[names.DEPLOY + "dcgm-exporter"] = "false"
    node.daemonsets()
    node.settle()
    assert node.labels[names.DEPLOY + "dcgm-exporter"] == "false" and operands.EXPORTER_DS not in node.pods
    node.labels[names.OPERANDS_OFF] = "false"
    node.settle()
    assert not operands.BY_NAME.keys() & node.pods.keys() and node.allocatable == {}


def test_without_a_policy_everything_goes_but_node_feature_discovery():
    node = Node().settle()
    node.policy = None
    node.daemonsets()
    node.settle()
    assert node.labels == {names.NFD[0]: "true"} and node.allocatable == {}


def test_labels_changed_by_hand_come_back_within_a_minute_and_foreign_ones_stay():
    node = Node().settle()
    node.labels |= {"nvidia.com/gpu.product": "GeForce", "nvidia.com/team": "a"}
    made = node.turn()
    assert made.labels == {} and 0 < made.after < 60.1
    del node.labels[names.NFD[0]]
    node.now += 61
    node.settle()
    assert node.labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB" and node.labels["nvidia.com/team"] == "a"
    assert node.labels[names.NFD[0]] == "true"


def configured(default: str = "", **files: str) -> Node:
    node = Node("T4", 2, devicePlugin={"config": {"name": "configs", "default": default}})
    node.files["configs"] = files
    return node.settle()


def test_the_nodes_label_goes_before_the_policys_default():
    node = configured("two", two=SLICED % 2, five=SLICED % 5)
    assert node.allocatable == {GPU: "4"} and node.labels["nvidia.com/gpu.product"] == "Tesla-T4-SHARED"
    node.labels[names.PLUGIN_CONFIG] = "five"
    node.settle()
    assert node.allocatable == {GPU: "10"} and node.labels["nvidia.com/gpu.replicas"] == "5"
    del node.labels[names.PLUGIN_CONFIG]
    assert node.settle().allocatable == {GPU: "4"}
    # No default, no label: no configuration.
    assert configured(two=SLICED % 2).allocatable == {GPU: "2"}


def test_an_edit_acts_when_the_program_starts_again():
    node = configured("c", c=SLICED % 2)
    node.files["configs"] = {"c": SLICED % 8}
    assert node.settle().allocatable == {GPU: "4"}
    node.replace(operands.PLUGIN_DS)
    node.settle()
    # GPU Feature Discovery still has what it read.
    assert node.allocatable == {GPU: "16"} and node.labels["nvidia.com/gpu.replicas"] == "2"
    node.replace(operands.GFD_DS)
    assert node.settle().labels["nvidia.com/gpu.replicas"] == "8"


def test_a_bad_configuration_ends_the_plugin_with_its_error():
    node = configured(good=SLICED % 2, bad=SLICED % 1)
    node.labels[names.PLUGIN_CONFIG] = "bad"
    node.settle()
    plugin = node.pods[operands.PLUGIN_DS]
    assert node.allocatable == {} and plugin.note("orchlab/crash") and "number of replicas must be >= 2" in plugin.note("orchlab/log")
    node.labels[names.PLUGIN_CONFIG] = "good"
    node.turn()
    node.restart_container(operands.PLUGIN_DS)
    assert node.settle().allocatable == {GPU: "4"}


def test_a_missing_configuration_fails_the_init_container_and_is_ignored_later():
    node = configured(good=SLICED % 2)
    node.labels[names.PLUGIN_CONFIG] = "good"
    node.settle()
    node.labels[names.PLUGIN_CONFIG] = "absent"
    assert node.settle().allocatable == {GPU: "4"}
    node.replace(operands.PLUGIN_DS)
    node.settle()
    plugin = node.pods[operands.PLUGIN_DS]
    assert not plugin.open and plugin.note("orchlab/init-error") == "specified config absent does not exist" and node.allocatable == {}
    node.files["configs"]["absent"] = SLICED % 3
    node.settle()
    assert node.allocatable == {GPU: "6"} and node.pods[operands.PLUGIN_DS].note("orchlab/init-error") is None


def test_mps_waits_for_its_daemon():
    node = configured(mps="version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 4}]}}\n")
    node.labels[names.PLUGIN_CONFIG] = "mps"
    node.settle()
    assert operands.MPS_DS in node.pods and node.allocatable == {GPU: "8"} and node.labels[names.MPS_CAPABLE] == "true"
    refusal = json.loads(node.notes["orchlab/gpu-inventory"])["resources"][GPU]["refusal"]
    assert refusal.endswith("found {count}")


def test_an_xid_lasts_until_the_plugin_restarts():
    node = Node().settle()
    node.notes[names.XID] = json.dumps({"1": 48, "2": 31})
    node.settle()
    assert node.allocatable == {GPU: "3"} and names.XID not in node.notes
    node.replace(operands.PLUGIN_DS)
    assert node.settle().allocatable == {GPU: "4"}
    node.notes[names.XID] = "nonsense"
    assert node.settle().allocatable == {GPU: "4"}


def test_a_driver_that_does_not_load_holds_up_what_starts_after_it():
    node = Node().settle()
    node.broken = True
    for app in (operands.DRIVER_DS, operands.TOOLKIT_DS, operands.VALIDATOR_DS, operands.PLUGIN_DS):
        node.replace(app)
    node.settle()
    assert node.allocatable == {} and not node.pods[operands.TOOLKIT_DS].open and node.pods[operands.DRIVER_DS].note("orchlab/crash")
    node.broken = False
    node.turn()
    node.restart_container(operands.DRIVER_DS)
    assert node.settle().allocatable == {GPU: "4"}


def test_other_hardware_starts_afresh():
    node = Node().settle()
    node.notes["orchlab/gpu-hardware"] = json.dumps({"model": "A100-40", "count": 2})
    assert node.settle().allocatable == {GPU: "2"} and node.labels["nvidia.com/gpu.count"] == "2"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"mig": 3, "unknown": 1}', "null",
                                  '{"model": "T4", "count": 1, "mig": {"0": [["1g.5gb", 0, 1]]}}',
                                  '{"model": "none", "count": 1}', '{"model": "A100-40", "count": 1, "mig": {"x": []}}'])
def test_a_state_that_cannot_be_read_is_a_fresh_one(text):
    assert State.of(text) == State()


def test_a_state_survives_being_written():
    state = State("A100-40", 2, True, {"0": [["1g.5gb", 0, 1]]}, {"1": 48}, devices.Loaded("i", "n", "t"), mig_done="x")
    assert State.of(state.dump()) == state
