"""Every model x strategy x layout x sharing: allocatable and labels against hand-written tables and a few plain rules."""

import json
import uuid
from collections import Counter
from itertools import product

import pytest

from orchlab.errors import BadInput
from orchlab.gpus import catalog, inventory, labels, mig, mig_config, sharing
from orchlab.gpus.sharing import PluginError, Shared, Sharing
from orchlab.simulator import inventory as simulated

# Typed by hand: product, memory, family, compute capability; then by profile memory, SMs, slices and copy/decoder/JPEG/OFA engines.
GPUS = {
    "A100-40": ("NVIDIA-A100-SXM4-40GB", 40960, "ampere", "8.0"), "A100-80": ("NVIDIA-A100-SXM4-80GB", 81920, "ampere", "8.0"),
    "H100-80": ("NVIDIA-H100-80GB-HBM3", 81559, "hopper", "9.0"), "H200-141": ("NVIDIA-H200", 143771, "hopper", "9.0"),
    "B200-180": ("NVIDIA-B200", 183359, "blackwell", "10.0"), "A30": ("NVIDIA-A30", 24576, "ampere", "8.0"),
    "L40S": ("NVIDIA-L40S", 46068, "ada-lovelace", "8.9"), "T4": ("Tesla-T4", 15360, "turing", "7.5"),
}
SLICES = {
    "A100-40": {"1g.5gb": "4864 14 1 1/0/0/0", "1g.5gb+me": "4864 14 1 1/1/1/1", "2g.10gb": "9856 28 2 2/1/0/0",
                "3g.20gb": "19968 42 3 3/2/0/0"},
    "A100-80": {"1g.10gb": "9856 14 1 1/0/0/0", "1g.10gb+me": "9856 14 1 1/1/1/1", "2g.20gb": "19968 28 2 2/1/0/0",
                "3g.40gb": "40192 42 3 3/2/0/0"},
    "H100-80": {"1g.10gb": "9984 16 1 1/1/1/0", "1g.10gb+me": "9984 16 1 1/1/1/1", "2g.20gb": "20096 32 2 2/2/2/0",
                "3g.40gb": "40448 60 3 3/3/3/0"},
    "H200-141": {"1g.18gb": "16384 16 1 1/1/1/0", "1g.18gb+me": "16384 16 1 1/1/1/1", "2g.35gb": "33024 32 2 2/2/2/0",
                 "3g.71gb": "71168 60 3 3/3/3/0"},
    "B200-180": {"1g.23gb": "22528 18 1 2/1/1/0", "1g.23gb+me": "22528 18 1 2/1/1/1", "2g.45gb": "45312 36 2 4/2/2/0",
                 "3g.90gb": "91136 70 3 6/3/3/0"},
    "A30": {"1g.6gb": "5952 14 1 1/0/0/0", "1g.6gb+me": "5952 14 1 1/1/1/1", "2g.12gb": "11968 28 2 2/2/0/0"},
}


def layouts_of(model):
    """By name: the profiles of each of the node's two GPUs, None where MIG is off."""
    found = {"whole": [None, None]}
    if model in SLICES:
        one, media, *bigger = SLICES[model]
        full = [one] * (4 if model == "A30" else 7)
        mixed = [*reversed(bigger), one, one]
        found |= {"full": [full, full], "mixed": [mixed, mixed], "media": [[media], [media]], "half": [full, None], "empty": [[], []],
                  "one empty": [full, []]}
    return found


def sharings_of(model):
    one = next(iter(SLICES.get(model, {"": ""})))
    found = {"none": Sharing(), "sliced": Sharing("time-slicing", False, False, (Shared("nvidia.com/gpu", "nvidia.com/gpu", 4),)),
             "renamed": Sharing("time-slicing", True, False, (Shared("nvidia.com/gpu", "nvidia.com/gpu.shared", 4),)),
             "mps": Sharing("mps", False, True, (Shared("nvidia.com/gpu", "nvidia.com/gpu", 4),))}
    if one:
        found["mig sliced"] = Sharing("time-slicing", False, False, (Shared(f"nvidia.com/mig-{one}", f"nvidia.com/mig-{one}", 3),))
    return found


CASES = [pytest.param(m, st, id=f"{m}-{st}") for m, st in product(GPUS, ("none", "single", "mixed"))]


def build(model, strategy, layout, shared):
    node = inventory.of_node("env", "node-0", model, 2)
    for gpu, profiles in zip(node.gpus, layouts_of(model)[layout], strict=True):
        if profiles is not None:
            inventory.partition(gpu, True, mig.place(gpu.figures, profiles))
    node.mig_strategy, node.sharing = strategy, sharings_of(model)[shared]
    return node


def expected_allocatable(model, strategy, layout, shared):
    """The plugin's rules in a few lines: a dict, or the end of its error message."""
    gpus = layouts_of(model)[layout]
    if shared == "mps" and strategy == "mixed":
        return "using --mig-strategy=mixed is not supported with MPS"
    devices = Counter()
    if strategy == "none":
        devices["nvidia.com/gpu"] = 2
    for profiles in gpus if strategy != "none" else ():
        for profile in ["gpu"] if profiles is None else profiles:
            name = "gpu" if strategy == "single" or profile == "gpu" else "mig-" + profile.replace("+", ".")
            devices[f"nvidia.com/{name}"] += 1
    if strategy == "single":
        if [] in gpus:
            return f"device {gpus.index([])} has no MIG devices configured"
        if len({profile for profiles in gpus for profile in profiles or ()}) > 1:
            return "more than one MIG device type present on node"
        if None in gpus and gpus != [None, None]:
            return "all devices on the node must be configured with the same migEnabled value"
    if shared == "mps" and strategy == "single" and gpus != [None, None]:
        return "sharing using MPS is not supported for MIG devices"
    for name in list(devices):
        if shared in ("sliced", "mps") and name == "nvidia.com/gpu":
            devices[name] *= 4
        if shared == "renamed" and name == "nvidia.com/gpu":
            devices["nvidia.com/gpu.shared"] = 4 * devices.pop(name)
        if shared == "mig sliced" and name == f"nvidia.com/mig-{next(iter(SLICES[model]))}":
            devices[name] *= 3
    return dict(devices)


@pytest.mark.parametrize(("model", "strategy"), CASES)
def test_allocatable(model, strategy):
    for layout, shared in product(layouts_of(model), sharings_of(model)):
        check_allocatable(model, strategy, layout, shared)


def check_allocatable(model, strategy, layout, shared):
    node = build(model, strategy, layout, shared)
    expected = expected_allocatable(model, strategy, layout, shared)
    if isinstance(expected, str):
        with pytest.raises(PluginError) as caught:
            inventory.resources(node)
        assert caught.value.log.startswith("error starting plugins: ") and caught.value.log.endswith(expected), (layout, shared)
        return
    assert inventory.allocatable(node) == inventory.capacity(node) == expected, (layout, shared)
    slots = [slot for found in inventory.resources(node).values() for slot in found]
    assert len({slot.id for slot in slots}) == len(slots)
    known = {gpu.uuid: gpu.index for gpu in node.gpus} | {i.uuid: gpu.index for gpu in node.gpus for i in gpu.instances}
    assert all(known[slot.device] == slot.gpu and slot.id.partition("::")[0] == slot.device for slot in slots)
    assert inventory.from_json(json.loads(json.dumps(inventory.to_json(node)))) == node


def expected_labels(model, strategy, layout, shared):
    """GFD's rules in a few lines, without the labels of the driver; None: GFD fails."""
    gpus = layouts_of(model)[layout]
    if shared == "mps" and gpus != [None, None]:
        return None
    name, memory, family, capability = GPUS[model]
    kind = {"none": "none", "sliced": "time-slicing", "renamed": "time-slicing", "mps": "mps", "mig sliced": "none"}[shared]
    suffix = "-SHARED" if shared in ("sliced", "mps") else ""
    all_partitioned = None not in gpus
    found = {"gpu.product": name if all_partitioned else name + suffix, "gpu.count": 2, "gpu.memory": memory, "gpu.family": family,
             "gpu.replicas": 0 if all_partitioned else 1 if kind == "none" else 4,
             "gpu.sharing-strategy": "none" if all_partitioned else kind,
             "gpu.compute.major": capability.split(".")[0], "gpu.compute.minor": capability.split(".")[1], "gpu.mode": "compute",
             "gpu.machine": "DGX-A100", "mig.capable": str(model in SLICES).lower(), "mps.capable": str(shared == "mps").lower()}
    if strategy != "none":
        found["mig.strategy"] = strategy
    profiles = [profile for one in gpus for profile in one or ()]

    def slices(key, profile, replicas, how, end):
        size, sms, part, engines = SLICES[model][profile].split()
        copy, decoder, jpeg, ofa = engines.split("/")
        return {f"{key}.product": f"{name}-MIG-{profile.replace('+', '.')}{end}", f"{key}.count": profiles.count(profile),
                f"{key}.replicas": replicas, f"{key}.sharing-strategy": how, f"{key}.memory": size, f"{key}.multiprocessors": sms,
                f"{key}.slices.gi": part, f"{key}.slices.ci": part, f"{key}.engines.copy": copy, f"{key}.engines.decoder": decoder,
                f"{key}.engines.encoder": 0, f"{key}.engines.jpeg": jpeg, f"{key}.engines.ofa": ofa}

    if strategy == "single" and gpus != [None, None]:
        if len(set(profiles)) == 1 and all(gpus):
            found |= slices("gpu", profiles[0], 1 if kind == "none" else 4, kind, suffix)
        else:
            found |= {"gpu.product": f"{name}-MIG-INVALID", "gpu.count": 0, "gpu.replicas": 0, "gpu.sharing-strategy": "", "gpu.memory": 0}
    if strategy == "mixed":
        for profile in set(profiles):
            cut = shared == "mig sliced" and profile == next(iter(SLICES[model]))
            found |= slices(f"mig-{profile.replace('+', '.')}", profile, 3 if cut else 1, "time-slicing" if cut else "none",
                            "-SHARED" if cut else "")
    return {f"nvidia.com/{key}": str(value) for key, value in found.items()}


@pytest.mark.parametrize(("model", "strategy"), CASES)
def test_labels(model, strategy):
    for layout, shared in product(layouts_of(model), sharings_of(model)):
        check_labels(model, strategy, layout, shared)


def check_labels(model, strategy, layout, shared):
    node = build(model, strategy, layout, shared)
    expected = expected_labels(model, strategy, layout, shared)
    if expected is None:
        with pytest.raises(labels.LabelError, match="MPS sharing is not supported for mig devices"):
            labels.gfd(node)
        return
    found = labels.gfd(node, "DGX A100")
    assert {key: value for key, value in found.items() if not key.startswith("nvidia.com/cuda.")} == expected, (layout, shared)
    assert labels.discovered(node, "DGX A100") == found | {"feature.node.kubernetes.io/pci-10de.present": "true"}


def test_labels_of_the_driver_the_time_and_nfd():
    node = inventory.of_node("env", "node-0", "T4", 1)
    found = labels.gfd(node, timestamp=1700000000)
    assert {key.removeprefix("nvidia.com/cuda."): value for key, value in found.items() if ".cuda." in key or "/cuda." in key} == {
        "driver.major": "580", "driver.minor": "95", "driver.rev": "05", "runtime.major": "13", "runtime.minor": "0",
        "driver-version.major": "580", "driver-version.minor": "95", "driver-version.revision": "05", "driver-version.full": "580.95.05",
        "runtime-version.major": "13", "runtime-version.minor": "0", "runtime-version.full": "13.0"}
    assert found["nvidia.com/gfd.timestamp"] == "1700000000" and "nvidia.com/gfd.timestamp" not in labels.gfd(node)
    assert found["nvidia.com/gpu.machine"] == "orchlab-simulated-node"
    assert labels.nfd(node, ("class", "vendor")) == {"feature.node.kubernetes.io/pci-0302_10de.present": "true"}
    node.driver_ok = False
    assert labels.gfd(node) == {} and labels.nfd(node) and inventory.resources(node) == {}
    assert labels.discovered(inventory.of_node("env", "node-0", None, 0)) == {}


@pytest.mark.parametrize("model", catalog.models().values(), ids=lambda m: m.name)
def test_the_product_label_is_the_sanitised_name(model):
    assert labels.sanitise(model.nvml_name) == model.product


def test_different_models_on_one_node():
    node = inventory.of_node("env", "node-0", "A100-40", 2)
    node.gpus[1].model = "T4"
    found = labels.gfd(node)
    # GFD has one set of labels and no order among the models; here the last GPU's stay.
    assert found["nvidia.com/gpu.product"] == "Tesla-T4" and found["nvidia.com/gpu.count"] == "1"
    assert found["nvidia.com/mig.capable"] == "true"


def test_uuids_are_those_of_the_simulator():
    node = inventory.of_node("some-id", "node-7", "A100-40", 3)
    assert [gpu.uuid for gpu in node.gpus] == [d.uuid for d in simulated.of_node("some-id", "node-7", 3).devices]
    inventory.partition(node.gpus[0], True, mig.place(node.gpus[0].figures, ["1g.5gb"] * 7))
    names = [instance.uuid for instance in node.gpus[0].instances]
    assert len(set(names)) == 7 and all(str(uuid.UUID(name.removeprefix("MIG-"))) == name.removeprefix("MIG-") for name in names)
    assert [instance.gi for instance in node.gpus[0].instances] == [7, 8, 9, 10, 11, 12, 13]
    inventory.partition(node.gpus[0], False)
    inventory.partition(node.gpus[0], True, mig.place(node.gpus[0].figures, ["1g.5gb"] * 7))
    assert [instance.uuid for instance in node.gpus[0].instances] == names


def test_illness():
    node = build("A100-40", "mixed", "mixed", "none")
    for xid in sorted(inventory.IGNORED_XIDS):
        inventory.report_xid(node.gpus[0], xid)
        assert node.gpus[0].healthy and node.gpus[0].xid == xid
    inventory.report_xid(node.gpus[0], 79)
    inventory.report_xid(node.gpus[0], 13)
    # The plugin marks one device of each resource on that GPU, and keeps it so.
    assert inventory.allocatable(node) == {"nvidia.com/mig-3g.20gb": 1, "nvidia.com/mig-2g.10gb": 1, "nvidia.com/mig-1g.5gb": 3}
    assert inventory.capacity(node) == {"nvidia.com/mig-3g.20gb": 2, "nvidia.com/mig-2g.10gb": 2, "nvidia.com/mig-1g.5gb": 4}
    whole = build("A100-40", "none", "whole", "sliced")
    inventory.report_xid(whole.gpus[1], 48)
    assert inventory.allocatable(whole) == {"nvidia.com/gpu": 7}
    assert [slot.id for slot in inventory.resources(whole)["nvidia.com/gpu"] if not slot.healthy] == [f"{whole.gpus[1].uuid}::3"]
    inventory.restart_plugin(whole)
    assert inventory.allocatable(whole) == {"nvidia.com/gpu": 8}
    plain = build("T4", "single", "whole", "none")
    inventory.report_xid(plain.gpus[0], 79)
    assert inventory.allocatable(plain) == {"nvidia.com/gpu": 1}


def test_mps_with_too_many_replicas_and_what_the_plugin_logs():
    node = build("T4", "none", "whole", "none")
    node.sharing = Sharing("mps", False, True, (Shared("nvidia.com/gpu", "nvidia.com/gpu", 64),))
    with pytest.raises(PluginError, match="maximum allowed replicas exceeded: 64 > 48"):
        inventory.resources(node)
    assert inventory.log_lines(build("A100-40", "mixed", "one empty", "none")) == ["device 1 has no MIG devices configured"]
    empty = inventory.log_lines(build("A100-40", "mixed", "empty", "none"))
    assert empty[-1] == "No devices found. Waiting indefinitely." and len(empty) == 3
    assert inventory.log_lines(inventory.of_node("env", "node-0", None, 0)) == ["No devices found. Waiting indefinitely."]


def test_a_mig_configuration_is_applied_to_the_whole_node_or_not_at_all():
    node = inventory.of_node("env", "node-0", "A100-40", 2)
    configs = mig_config.generate([gpu.figures for gpu in node.gpus])
    assert inventory.pending_mig_changes(node, configs, "all-balanced") == [0, 1]
    assert not any(gpu.mig_enabled for gpu in node.gpus)
    assert inventory.apply_mig_config(node, configs, "all-balanced") == [0, 1]
    assert [(i.profile, i.gi, i.start, i.size) for i in node.gpus[1].instances] == [
        ("3g.20gb", 2, 4, 4), ("2g.10gb", 3, 0, 2), ("1g.5gb", 9, 2, 1), ("1g.5gb", 10, 3, 1)]
    assert inventory.pending_mig_changes(node, configs, "all-balanced") == inventory.apply_mig_config(node, configs, "all-balanced") == []
    before = inventory.to_json(node)
    half = mig_config.parse("version: v1\nmig-configs: {c: [{devices: [0], mig-enabled: true, mig-devices: {7g.40gb: 1}}, "
                            "{devices: [1], mig-enabled: true, mig-devices: {7g.40gb: 2}}]}")
    with pytest.raises(mig_config.MigApplyError):
        inventory.apply_mig_config(node, half, "c")
    assert inventory.to_json(node) == before
    assert inventory.apply_mig_config(node, configs, "all-disabled") == [0, 1] and not node.gpus[0].instances


def test_when_a_mig_configuration_counts_as_applied():
    node = inventory.of_node("env", "node-0", "A100-40", 2)
    configs = mig_config.generate([gpu.figures for gpu in node.gpus]) | mig_config.parse(
        "version: v1\nmig-configs: {first: [{devices: [0], mig-enabled: true, mig-devices: {7g.40gb: 1}}], "
        "elsewhere: [{devices: all, device-filter: '0x1', mig-enabled: false}], "
        "zero: [{devices: all, mig-enabled: true, mig-devices: {7g.40gb: 1, 1g.5gb: 0}}]}")

    def applied():
        return {name for name in configs if inventory.mig_config_applied(node, configs, name)}

    assert applied() == {"all-disabled"}
    for name in ("all-1g.5gb.me", "all-balanced", "all-enabled", "all-7g.40gb"):
        inventory.apply_mig_config(node, configs, name)
        assert applied() == {name}
    # All three change nothing now, and none of them is taken for applied.
    for name in ("first", "elsewhere", "zero"):
        assert inventory.pending_mig_changes(node, configs, name) == []
    with pytest.raises(mig_config.MigApplyError, match="selected mig-config not present: all-3g.40gb"):
        inventory.mig_config_applied(node, configs, "all-3g.40gb")
    node.gpus[1].model = "T4"
    inventory.partition(node.gpus[1], False)
    assert applied() == set()
    inventory.partition(node.gpus[0], False)
    assert applied() == {"all-disabled"}


def test_bad_input():
    with pytest.raises(BadInput, match="T4 cannot be partitioned"):
        inventory.partition(inventory.of_node("e", "n", "T4", 1).gpus[0], True)
    with pytest.raises(BadInput):
        inventory.of_node("e", "n", "T5", 1)
    for data in ({}, {"sharing": {}}, {"sharing": {"resources": []}, "gpus": [{}]}, {"sharing": None}):
        with pytest.raises(BadInput) as caught:
            inventory.from_json(data)
        assert caught.value.field == "inventory"
    assert sharing.GPU == simulated.GPU
