"""What lab 05's widgets do, against the live cluster."""

import pytest

from orchlab.course import Lab, folder, reset
from orchlab.errors import BadInput

POLICY = "/apis/nvidia.com/v1/clusterpolicies/cluster-policy"


@pytest.fixture
def lab(proved):
    reset.cluster(folder.lab("05"), proved)
    yield Lab("05", proved, quiet=True)
    reset.cluster(folder.lab("05"), proved)


def test_a_layout_is_designed_by_presses_applied_and_asked_for(lab):
    lab.client.patch(POLICY, {"spec": {"mig": {"strategy": "mixed"}, "daemonsets": {"rollingUpdate": {"maxUnavailable": "100%"}}}})
    tool = lab.widget("designer", node="a100-0")
    before = tool.map.html
    for place in ("3g.20gb@4", "2g.10gb@0", "1g.5gb@2", "nonsense"):
        tool.map._handle_custom_msg({"press": place}, [])
    assert tool.status.text == "placed: 1g.5gb at slice 2" and tool.map.html != before
    assert "GPU 0 of a100-0: 3g.20gb + 2g.10gb + 1g.5gb" in tool.map.text
    tool.map._handle_custom_msg({"press": "4g.20gb@0"}, [])
    assert tool.status.text == "refused: 4g.20gb at slices 0-3: slices 0-1 are held by 2g.10gb, slice 2 is held by 1g.5gb"
    tool.map._handle_custom_msg({"press": "1g.5gb@2"}, [])
    assert tool.status.text == "taken away: 1g.5gb at slice 2"
    with pytest.raises(BadInput, match="no free placement for 4g.20gb"):
        tool.design("4g.20gb", "4g.20gb")

    tool.button.click()
    assert tool.settled() == ("a100-0: designed-1 success; it advertises nvidia.com/gpu: 3, nvidia.com/mig-2g.10gb: 1, "
                              "nvidia.com/mig-3g.20gb: 1")
    lab.apply("""
apiVersion: v1
kind: Pod
metadata: {name: sized}
spec:
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
  containers: [{name: main, image: registry.example/serve:1, resources: {limits: {nvidia.com/mig-3g.20gb: 1}}}]
""")
    assert lab.wait("pod/sized") == "pod/sized Running on a100-0"

    tool.copy.click()
    assert tool.config == [{"devices": "all", "mig-enabled": True, "mig-devices": {"2g.10gb": 1, "3g.20gb": 1}}]
    tool.design("7g.40gb")
    tool.button.click()
    assert tool.settled().startswith("a100-0: designed-2 failed; ") and "Error on GPU 0: In use by another client" in tool.status.text


def test_a_way_of_sharing_is_chosen_and_the_node_follows(lab):
    tool = lab.widget("sharing", node="a100-1", replicas=4)
    tool.button.click()
    assert tool.settled().splitlines()[0] == tool.status.text == "a100-1 advertises nvidia.com/gpu: 16"
    assert "NVIDIA-A100-SXM4-40GB-SHARED" in tool.text and "time-slicing-4" in tool.panel.text
    tool.rename.value = True
    tool.button.click()
    assert tool.settled().splitlines()[0] == "a100-1 advertises nvidia.com/gpu.shared: 16"
    tool.rename.value, tool.way.value = False, "MPS"
    assert tool.strict.value and "failRequestsGreaterThanOne: true" in tool.config
    tool.replicas.value = 2
    tool.button.click()
    assert tool.settled().splitlines()[0] == "a100-1 advertises nvidia.com/gpu: 8" and "sharing-strategy  mps" in tool.text
    tool.way.value = "not shared"
    tool.button.click()
    assert tool.settled().splitlines()[0] == "a100-1 advertises nvidia.com/gpu: 4"


def test_the_sliders_of_the_cost_model_move_bars_and_table(lab):
    tool = lab.widget("costs", clients=7)
    before, words = tool.panel.html, tool.status.text
    tool.clients.value = 12
    assert tool.panel.html != before and tool.status.text != words
    assert "one A100-40 holds at most 7 instances" in tool.panel.text == str(tool.text)
