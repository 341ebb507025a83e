"""What lab 00's two controls do, against the live cluster."""

import time

import pytest

from orchlab.course import Lab, folder, pods, reset


@pytest.fixture
def visitor(proved):
    reset.cluster(folder.lab("00"), proved)
    made = Lab("00", proved, quiet=True).widget("one_pod", gpus=4)
    yield made
    made.close()


def test_the_pod_goes_where_the_controls_say_and_picture_and_words_follow(visitor):
    assert visitor.settled().startswith("pod/visitor Running on ")
    assert visitor.product.options == ("any", "NVIDIA-A100-SXM4-40GB", "NVIDIA-H100-80GB-HBM3", "Tesla-T4")
    visitor.product.value = "NVIDIA-H100-80GB-HBM3"
    assert visitor.settled().startswith("pod/visitor Running on h100-")
    [pod] = visitor.submitter.pods()
    assert [len(ids) for ids in pods.devices(pod).values()] == [4]
    visitor.gpus.value = 16
    words = visitor.settled()
    assert (
        "Unschedulable: 0/9 nodes are available: 4 Insufficient nvidia.com/gpu, 5 node(s) didn't match Pod's node affinity/selector."
        in words
    )
    deadline = time.monotonic() + 10
    while visitor.status.text != words or "waiting: lab-00/visitor (16 GPUs)" not in visitor.view.text:
        assert time.monotonic() < deadline, (visitor.status.text, visitor.view.text)
        time.sleep(0.1)
    visitor.product.value, visitor.gpus.value = "any", 0
    assert visitor.settled().startswith("pod/visitor Running on ")
