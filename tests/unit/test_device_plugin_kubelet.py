"""The device plugin and a kubelet, over real sockets."""

from __future__ import annotations

import json

import grpc
import pytest
from device_plugin_fakes import Site, node, until

from orchlab.device_plugin import api
from orchlab.simulator.inventory import node_devices, registered
from orchlab.simulator.plugins import INVENTORY

GPU = "nvidia.com/gpu"
SLICED = "version: v1\nsharing:\n  timeSlicing:\n    failRequestsGreaterThanOne: {}\n    resources: [{{name: nvidia.com/gpu, replicas: 3}}]\n"
MPS = "version: v1\nsharing:\n  mps:\n    resources: [{name: nvidia.com/gpu, replicas: 2}]\n"


@pytest.fixture
def site():
    made = []

    def make(found: dict | None = None) -> Site:
        made.append(Site(found))
        return made[-1].start()

    yield make
    for one in made:
        one.clean()


def ids(found: dict, resource: str = GPU) -> list[str]:
    return registered(found["metadata"]["annotations"][INVENTORY])[resource].ids


def test_registers_as_the_real_plugin_does(site):
    there = site(found := node())
    assert there.kubelet.devices(GPU) == dict.fromkeys(ids(found), "Healthy")
    [request] = there.kubelet.registrations
    assert (request.version, request.endpoint, request.resource_name) == ("v1beta1", "nvidia-gpu.sock", GPU)
    assert request.options.get_preferred_allocation_available and not request.options.pre_start_required
    options = there.kubelet.ask(GPU, "GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
    assert options == request.options
    there.kubelet.ask(GPU, "PreStartContainer", api.PreStartContainerRequest(devices_ids=ids(found)[:1]), api.PreStartContainerResponse)


def test_registers_once_kubelet_takes_it(site, caplog):
    caplog.set_level("INFO")
    there = Site(node())
    try:
        there.kubelet.refuse = True
        there.start()
        until(lambda: "Could not register device plugin: not now" in caplog.messages)
        there.kubelet.refuse = False
        there.kubelet.devices(GPU)
        assert f"Registered device plugin for '{GPU}' with Kubelet" in caplog.messages
        assert caplog.messages.count("Could not register device plugin: not now") == 1
    finally:
        there.clean()


def test_health_and_new_devices_are_sent_at_once(site):
    there = site(found := node())
    there.kubelet.devices(GPU)
    there.node.take("MODIFIED", node(ill={"1": 79}))
    sick = until(lambda: [devices for devices in there.kubelet.lists[GPU] if "Unhealthy" in devices.values()])[0]
    assert [id_ for id_, health in sick.items() if health == "Unhealthy"] == [ids(found)[1]]
    there.node.take("MODIFIED", node(config=SLICED.format("false")))
    until(lambda: len(there.kubelet.lists[GPU][-1]) == 12)
    assert len(there.kubelet.registrations) == 1


def test_an_annotation_with_the_same_devices_is_no_news(site):
    there = site(found := node())
    there.kubelet.devices(GPU)
    for number in range(20):
        found["metadata"]["resourceVersion"] = str(number)
        there.node.take("MODIFIED", found)
    there.node.take("MODIFIED", node(ill={"0": 79}))
    until(lambda: len(there.kubelet.lists[GPU]) > 1)
    assert len(there.kubelet.lists[GPU]) == 2


def test_replicas_have_the_ids_that_simulated_kubelets_give_them(site):
    there = site(found := node(config=SLICED.format("false")))
    text = found["metadata"]["annotations"][INVENTORY]
    listed = there.kubelet.devices(GPU)
    assert list(listed) == [device.uuid for device in node_devices("n", registered(text)).devices]
    given = there.kubelet.allocate(GPU, *list(listed)[1:3])
    # Without the number of the replica, and one for each.
    uuid = next(iter(listed)).partition("::")[0]
    assert dict(given.envs) == {"NVIDIA_VISIBLE_DEVICES": f"{uuid},{uuid}"}


def test_mig_devices_under_mixed_have_a_socket_for_each_profile(site):
    layout = {"0": [["1g.5gb", 0, 1], ["1g.5gb", 1, 1], ["3g.20gb", 4, 4]]}
    there = site(found := node(count=2, strategy="mixed", mig=layout))
    small, large = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
    assert [len(there.kubelet.devices(resource)) for resource in (GPU, small, large)] == [1, 2, 1]
    assert there.sockets() == ["nvidia-gpu.sock", "nvidia-mig-1g.5gb.sock", "nvidia-mig-3g.20gb.sock"]
    device = ids(found, small)[1]
    assert there.kubelet.allocate(small, device).envs["NVIDIA_VISIBLE_DEVICES"] == device
    assert device.startswith("MIG-")


def test_refuses_several_replicas_in_the_words_of_simulated_kubelets(site):
    there = site(found := node(config=SLICED.format("true")))
    there.kubelet.devices(GPU)
    said = there.kubelet.message(GPU, *ids(found)[:2])
    assert said == ('Allocate failed due to rpc error: code = Unknown desc = invalid allocation request for "nvidia.com/gpu": invalid '
                    "request: maximum request size for shared resources is 1; found 2, which is unexpected")
    refusal = registered(found["metadata"]["annotations"][INVENTORY])[GPU].refusal.replace("{count}", "2")
    assert said == f"Allocate failed due to {refusal}, which is unexpected"
    assert there.kubelet.message(GPU, ids(found)[0]) == ""


def test_refuses_a_device_that_it_does_not_have(site):
    there = site(node())
    there.kubelet.devices(GPU)
    assert there.kubelet.message(GPU, "GPU-1") == ('Allocate failed due to rpc error: code = Unknown desc = invalid allocation request for '
                                                   '"nvidia.com/gpu": invalid request: unknown device: GPU-1, which is unexpected')


def test_mps_clients_are_told_where_the_daemon_is(site):
    there = site(found := node(config=MPS))
    there.kubelet.devices(GPU)
    assert there.kubelet.allocate(GPU, ids(found)[0]).envs["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu/pipe"
    assert "found 2" in there.kubelet.message(GPU, *ids(found)[:2])


def test_prefers_what_simulated_kubelets_give(site):
    there = site(found := node(config=SLICED.format("false")))
    there.kubelet.devices(GPU)
    every = ids(found)

    def preferred(size: int, available: list[str], required: tuple[str, ...] = ()) -> list[str]:
        request = api.PreferredAllocationRequest()
        request.container_requests.add(available_deviceIDs=available, must_include_deviceIDs=required, allocation_size=size)
        return list(there.kubelet.ask(GPU, "GetPreferredAllocation", request, api.PreferredAllocationResponse).container_responses[0].deviceIDs)

    assert preferred(2, every) == [every[0], every[3]]
    assert preferred(2, every, (every[1],)) == [every[1], every[3]]
    with pytest.raises(grpc.RpcError) as refused:
        preferred(2, every[:1])
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert refused.value.details().startswith("error getting list of preferred allocation devices: ")
    assert refused.value.details().endswith("not enough available devices to satisfy allocation")


def test_a_resource_that_is_gone_takes_its_socket_along(site):
    layout = {"0": [["1g.5gb", 0, 1]]}
    there = site(node(count=2, strategy="mixed", mig=layout))
    small = "nvidia.com/mig-1g.5gb"
    assert (len(there.kubelet.devices(small)), len(there.kubelet.devices(GPU))) == (1, 1)
    there.node.take("MODIFIED", node(count=2))
    until(lambda: small in there.kubelet.ended)
    until(lambda: there.sockets() == ["nvidia-gpu.sock"])
    until(lambda: len(there.kubelet.lists[GPU][-1]) == 2)
    assert GPU not in there.kubelet.ended
    there.node.take("DELETED", node(count=2))
    until(lambda: not there.sockets())
    until(lambda: GPU in there.kubelet.ended)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"resources": []}', '{"resources": {"nvidia.com/gpu": {}}}',
                                  '{"resources": {"nvidia.com/gpu": {"devices": [1, 2]}}}',
                                  '{"resources": {"nvidia.com/../../x": {"devices": ["GPU-1"]}}}',
                                  '{"resources": {"other.com/gpu": {"devices": ["GPU-1"]}}}'])
def test_an_annotation_that_makes_no_sense_registers_nothing(site, text):
    there = site(node())
    there.kubelet.devices(GPU)
    bad = node()
    bad["metadata"]["annotations"][INVENTORY] = text
    there.node.take("MODIFIED", bad)
    until(lambda: not there.sockets())
    assert [request.resource_name for request in there.kubelet.registrations] == [GPU]
    there.node.take("MODIFIED", node())
    until(lambda: len(there.kubelet.registrations) == 2)


def test_allocates_although_the_rest_of_the_node_makes_no_sense(site):
    odd = {"metadata": {"name": "n", "annotations": {INVENTORY: json.dumps({"resources": {GPU: {"devices": ["GPU-x"]}}}),
                                                     "orchlab/gpu-state": "nonsense"}}}
    there = site(odd)
    there.kubelet.devices(GPU)
    assert dict(there.kubelet.allocate(GPU, "GPU-x").envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-x"}


def test_registers_anew_with_a_kubelet_that_was_restarted(site, caplog):
    caplog.set_level("INFO")
    there = site(found := node())
    there.kubelet.devices(GPU)
    there.kubelet.restart()
    assert list(there.kubelet.devices(GPU)) == ids(found)
    assert there.sockets() == ["nvidia-gpu.sock"]
    assert f"inotify: {there.root}/plugins/kubelet.sock created, restarting." in caplog.messages
    assert there.kubelet.allocate(GPU, ids(found)[0]).envs["NVIDIA_VISIBLE_DEVICES"] == ids(found)[0]


def test_a_socket_that_somebody_removed_comes_again(site):
    there = site(node())
    there.kubelet.devices(GPU)
    (there.root / "plugins" / "nvidia-gpu.sock").unlink()
    until(lambda: len(there.kubelet.registrations) == 2 and there.sockets())


def test_waits_for_a_kubelet(site):
    there = Site(node())
    try:
        there.kubelet.stop()
        (there.root / "plugins" / "kubelet.sock").unlink(missing_ok=True)
        there.start()
        there.kubelet.start()
        there.kubelet.devices(GPU)
    finally:
        there.clean()


def test_ends_without_sockets(site):
    (there := Site(node())).root.joinpath("plugins", "nvidia-old.sock").touch()
    there.start()
    try:
        there.kubelet.devices(GPU)
        assert there.sockets() == ["nvidia-gpu.sock"]
        there.end()
        assert there.sockets() == []
        until(lambda: GPU in there.kubelet.ended)
    finally:
        there.clean()
