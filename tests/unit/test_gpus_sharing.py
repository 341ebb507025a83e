"""The device plugin's configuration: its documented samples re-expressed, its errors and warnings, and what a node offers then."""

import pytest

from orchlab.gpus import catalog, sharing
from orchlab.gpus.sharing import PluginConfigError, PluginError, Shared, Sharing

PREFIX = ("error starting plugins: unable to load config: unable to finalize config: unable to parse config file: "
          "error parsing config file: ")
DECODING = "unmarshal error: error unmarshaling JSON: while decoding JSON: "


def slicing(resources, extra=""):
    return f"version: v1\nsharing:\n  timeSlicing:\n    {extra}\n    resources: {resources}\n"


@pytest.mark.parametrize(("text", "expected"), [
    ("", Sharing()),
    ("version: v1", Sharing()),
    ("version: ''\nflags: {migStrategy: none}", Sharing()),
    # The README's samples: ten replicas, renamed, refusing more than one, and MPS.
    (slicing("[{name: nvidia.com/gpu, replicas: 10}]"),
     Sharing("time-slicing", False, False, (Shared("nvidia.com/gpu", "nvidia.com/gpu", 10),))),
    (slicing("[{name: nvidia.com/gpu, replicas: 10}]", "renameByDefault: true"),
     Sharing("time-slicing", True, False, (Shared("nvidia.com/gpu", "nvidia.com/gpu.shared", 10),))),
    (slicing("[{name: nvidia.com/gpu, replicas: 10}]", "failRequestsGreaterThanOne: true"),
     Sharing("time-slicing", False, True, (Shared("nvidia.com/gpu", "nvidia.com/gpu", 10),))),
    ("version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}",
     Sharing("mps", False, True, (Shared("nvidia.com/gpu", "nvidia.com/gpu", 10),))),
    ("sharing: {mps: {failRequestsGreaterThanOne: false, resources: [{name: gpu, replicas: 2}]}}",
     Sharing("mps", False, False, (Shared("nvidia.com/gpu", "nvidia.com/gpu", 2),))),
    # The GPU Operator's sample for MIG.
    (slicing("[{name: nvidia.com/mig-1g.10gb, replicas: 2}, {name: nvidia.com/mig-3g.40gb, replicas: 3}]"),
     Sharing("time-slicing", False, False, (Shared("nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb", 2),
                                            Shared("nvidia.com/mig-3g.40gb", "nvidia.com/mig-3g.40gb", 3)))),
    # Both: MPS wins.
    ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}, mps: {resources: [{name: gpu, replicas: 2}]}}",
     Sharing("mps", False, True, (Shared("nvidia.com/gpu", "nvidia.com/gpu", 2),))),
    # What is silent: a key that does not exist, one in another case, a null.
    ("sharing: {timeslice: {resources: []}}", Sharing()),
    ("SHARING: {timeslicing: {resources: [{name: gpu, replicas: 4}]}}",
     Sharing("time-slicing", False, False, (Shared("nvidia.com/gpu", "nvidia.com/gpu", 4),))),
    ("sharing: {mps: null}", Sharing()),
    ("sharing: null\nflags: null", Sharing()),
])
def test_what_the_plugin_accepts(text, expected):
    config = sharing.parse(text)
    assert config.sharing == expected and config.warnings == ()


def test_flags():
    config = sharing.parse("flags: {migStrategy: mixed, failOnInitError: false, nvidiaDriverRoot: /run/nvidia/driver, "
                           "plugin: {passDeviceSpecs: true, deviceListStrategy: envvar, deviceIDStrategy: uuid}, gfd: {oneshot: false}}")
    assert config.mig_strategy == "mixed" and config.flags["plugin.deviceListStrategy"] == ["envvar"]
    assert config.effective_strategy() == "mixed" and config.effective_strategy("single") == "single"
    assert sharing.parse("").effective_strategy() == "none"


@pytest.mark.parametrize(("text", "warning"), [
    (slicing("[{name: gpu, replicas: 2, rename: gpu-small}]"),
     "Setting the 'rename' field in sharing.timeSlicing.resources is not yet supported in the config. Ignoring..."),
    (slicing("[{name: gpu, replicas: 2, devices: [0, '1', '0:1', GPU-b1028956-cfa2-0990-bf4a-5da9abb51763]}]"),
     "Customizing the 'devices' field in sharing.timeSlicing.resources is not yet supported in the config. Ignoring..."),
    ("sharing: {mps: {resources: [{name: gpu, replicas: 2, devices: 1}]}}",
     "Customizing the 'devices' field in sharing.mps.resources is not yet supported in the config. Ignoring..."),
    ("resources: {gpus: [{pattern: '*', name: nvidia.com/gpu}]}",
     "Customizing the 'resources' field is not yet supported in the config. Ignoring..."),
])
def test_what_it_ignores_with_a_warning(text, warning):
    config = sharing.parse(text)
    assert config.warnings == (warning,)
    assert all(item.advertised == item.name for item in config.sharing.resources)


R = "sharing.timeSlicing.resources"


@pytest.mark.parametrize(("text", "field", "problem"), [
    ("sharing: {timeSlicing: }", R, "no resources specified"),
    ("sharing: {timeSlicing: {renameByDefault: true}}", R, "no resources specified"),
    (slicing("[]"), R, "no resources specified"),
    (slicing("[{replicas: 2}]"), f"{R}[0].name", "no resource name specified"),
    (slicing("[{name: gpu}]"), f"{R}[0].replicas", "no replicas specified"),
    (slicing("[{name: gpu, replicas: 1}]"), f"{R}[0].replicas", "number of replicas must be >= 2"),
    (slicing("[{name: gpu, replicas: 2}, {name: gpu, replicas: }]"), f"{R}[1].replicas", "number of replicas must be >= 2"),
    (slicing("[{name: gpu, replicas: '4'}]"), f"{R}[0].replicas", "json: cannot unmarshal string into Go value of type int"),
    (slicing("[{name: gpu, replicas: 2.5}]"), f"{R}[0].replicas", "json: cannot unmarshal number 2.5 into Go value of type int"),
    (slicing("[{name: gpu, replicas: 2, devices: some}]"), f"{R}[0].devices",
     "devices set as 'some' but the only valid string input is 'all'"),
    (slicing("[{name: gpu, replicas: 2, devices: 0}]"), f"{R}[0].devices", "devices set as '0' but a count of devices must be > 0"),
    (slicing("[{name: gpu, replicas: 2, devices: [x]}]"), f"{R}[0].devices[0]", "unsupported type for device in devices list: x, string"),
    (slicing("{name: gpu}"), R, "json: cannot unmarshal object into Go value of type []v1.ReplicatedResource"),
    ("sharing: {mps: []}", "sharing.mps", "json: cannot unmarshal array into Go value of type map[string]json.RawMessage"),
    (slicing(f"[{{name: {'x' * 60}, replicas: 2}}]"), f"{R}[0].name",
     f"fully-qualified resource name must be 63 characters or less: nvidia.com/{'x' * 60}"),
])
def test_what_it_refuses(text, field, problem):
    with pytest.raises(PluginConfigError) as caught:
        sharing.parse(text)
    assert (caught.value.field, caught.value.problem, caught.value.log) == (field, problem, PREFIX + DECODING + problem)


def test_version_yaml_and_names():
    with pytest.raises(PluginConfigError) as caught:
        sharing.parse("version: v2")
    assert caught.value.log == PREFIX + "unknown version: v2" and caught.value.field == "version"
    with pytest.raises(PluginConfigError) as caught:
        sharing.parse("sharing: [", "timeslice-4")
    assert caught.value.field == "timeslice-4"
    assert caught.value.log.startswith(PREFIX + "unmarshal error: error converting YAML to JSON: yaml: line 1")
    # A plus sign, as in the driver's name of the profile, is no resource name.
    with pytest.raises(PluginConfigError, match="incorrect format for resource name 'nvidia.com/mig-1g.5gb\\+me'"):
        sharing.parse(slicing("[{name: mig-1g.5gb+me, replicas: 2}]"))


MPS = Sharing("mps", False, True, (Shared("nvidia.com/gpu", "nvidia.com/gpu", 4),))


@pytest.mark.parametrize(("config", "strategy", "problem"), [
    (sharing.PluginConfig(sharing=MPS), "mixed", "using --mig-strategy=mixed is not supported with MPS"),
    (sharing.PluginConfig(), "Single", "unknown MIG strategy: Single"),
    (sharing.PluginConfig(flags={"plugin.deviceIDStrategy": "name"}), "none", "invalid --device-id-strategy option: name"),
    (sharing.PluginConfig(flags={"deviceDiscoveryStrategy": "x"}), "none", "invalid --device-discovery-strategy option x"),
    (sharing.PluginConfig(flags={"plugin.sharedDevicesAllocationPolicy": "x"}), "none",
     "invalid --shared-devices-allocation-policy option: x"),
])
def test_flags_are_checked(config, strategy, problem):
    with pytest.raises(PluginError) as caught:
        sharing.check(config, strategy)
    assert caught.value.log == f"error starting plugins: unable to validate flags: {problem}" and caught.value.field.startswith("flags.")


def test_a_request_for_two():
    time_slicing = Sharing("time-slicing", False, False, MPS.resources)
    assert sharing.refusal(time_slicing, "nvidia.com/gpu", 2) is None
    assert sharing.refusal(MPS, "nvidia.com/gpu", 1) is None
    assert sharing.refusal(MPS, "nvidia.com/mig-1g.5gb", 2) is None
    assert sharing.refusal(Sharing(), "nvidia.com/gpu", 2) is None
    assert sharing.refusal(MPS, "nvidia.com/gpu", 2) == (
        'rpc error: code = Unknown desc = invalid allocation request for "nvidia.com/gpu": invalid request: '
        "maximum request size for shared resources is 1; found 2")
    renamed = Sharing("time-slicing", True, True, (Shared("nvidia.com/gpu", "nvidia.com/gpu.shared", 4),))
    assert sharing.refusal(renamed, "nvidia.com/gpu.shared", 3) and sharing.refusal(renamed, "nvidia.com/gpu", 3) is None


def test_replicas():
    offered = sharing.replicate(MPS, {"nvidia.com/gpu": ["GPU-a", "GPU-b"], "nvidia.com/mig-1g.5gb": ["MIG-c"]})
    assert offered["nvidia.com/gpu"] == [(f"GPU-{d}::{n}", f"GPU-{d}", n) for d in "ab" for n in range(4)]
    assert offered["nvidia.com/mig-1g.5gb"] == [("MIG-c", "MIG-c", 0)]
    # A name that matches nothing is skipped; one listed twice has the replicas of both, which are the same ids.
    other = Sharing("time-slicing", False, False, (Shared("nvidia.com/gpus", "nvidia.com/gpus", 4),))
    assert sharing.replicate(other, {"nvidia.com/gpu": ["GPU-a"]}) == {"nvidia.com/gpu": [("GPU-a", "GPU-a", 0)]}
    twice = Sharing("time-slicing", False, False, (MPS.resources[0], Shared("nvidia.com/gpu", "nvidia.com/gpu", 6)))
    assert len(sharing.replicate(twice, {"nvidia.com/gpu": ["GPU-a"]})["nvidia.com/gpu"]) == 6


@pytest.mark.parametrize(("model", "replicas", "limits"), [
    ("A100-80", 4, (20480, 25)), ("A100-40", 7, (5851, 14)), ("T4", 3, (5120, 33)), ("H100-80", 48, (1699, 2)), ("T4", 48, (320, 2))])
def test_mps_limits(model, replicas, limits):
    found = sharing.mps_limits(catalog.model(model), replicas)
    assert (found.memory_mib, found.thread_percentage) == limits


def test_too_many_mps_replicas():
    with pytest.raises(PluginError) as caught:
        sharing.mps_limits(catalog.model("A100-80"), 49)
    assert caught.value.problem == "invalid MPS configuration: invalid device maximum allowed replicas exceeded: 49 > 48"
