"""The admission policy of the kind backend on a real API server: it compiles, and changes the labs' images and no others."""

from __future__ import annotations

import time

import pytest

from orchlab.kube import kind_parts

IMAGE = "orchlab/standin:test"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def client(environment):
    client = environment.client()
    paths = []
    for manifest in kind_parts.policies(IMAGE, 30):
        client.apply(manifest)
        paths.append(client.path_of(manifest))
    yield client
    for path in reversed(paths):
        client.delete(path)
    # Others create pods in this cluster: not before the policy has no effect any more.
    _until(lambda: _dry(client, "registry.example/train:1")["containers"][0]["image"] == "registry.example/train:1")


def _until(condition, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def _dry(client, *images: str, inits: list[dict] | None = None, **notes: str) -> dict:
    containers = [{"name": f"c{number}", "image": image} for number, image in enumerate(images)]
    annotations = {f"orchlab/{key.replace('_', '-')}": value for key, value in notes.items()}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "policy-test", "annotations": annotations}, "spec": {"restartPolicy": "Never", "containers": containers, **({"initContainers": inits} if inits else {})}}
    return client.create(PODS, pod, dryRun="All")["spec"]


def test_labs_images_get_the_stand_in_and_what_the_annotations_say(client):
    _until(lambda: _dry(client, "registry.example/train:1")["containers"][0]["image"] == IMAGE)
    spec = _dry(client, "registry.example/train:1", "busybox:1", run_for="2h", exit="oom")
    first, second = spec["containers"]
    assert {one["name"]: one.get("value", "") for one in first["env"]} == {
        "ORCHLAB_RUN_FOR": "2h", "ORCHLAB_START_AFTER": "", "ORCHLAB_EXIT": "oom", "ORCHLAB_EXIT_CODE": "", "ORCHLAB_BARRIER": "", "ORCHLAB_BARRIER_SIZE": "",
        "ORCHLAB_BARRIER_TIMEOUT": "", "ORCHLAB_CLOCK": "30", "ORCHLAB_RESTART_POLICY": "Never"}
    assert "initContainers" not in spec
    assert second["image"] == "busybox:1" and "env" not in second


def test_init_containers_end_at_once_and_sidecars_run_on(client):
    inits = [{"name": "warm-up", "image": "registry.example/convert:1"}, {"name": "proxy", "image": "registry.example/proxy:1", "restartPolicy": "Always"},
             {"name": "theirs", "image": "busybox:1"}]
    _until(lambda: _dry(client, "busybox:1", inits=inits)["initContainers"][0]["image"] == IMAGE)
    spec = _dry(client, "busybox:1", inits=inits)
    assert [one["image"] for one in spec["initContainers"]] == [IMAGE, IMAGE, "busybox:1"] and spec["containers"][0]["image"] == "busybox:1"
    said = [{one["name"]: one.get("value", "") for one in container.get("env", [])} for container in spec["initContainers"]]
    assert said == [{"ORCHLAB_CLOCK": "30", "ORCHLAB_RESTART_POLICY": "Never", "ORCHLAB_RUN_FOR": "1s"},
                    {"ORCHLAB_CLOCK": "30", "ORCHLAB_RESTART_POLICY": "Always", "ORCHLAB_RUN_FOR": ""}, {}]
