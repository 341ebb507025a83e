import json
import time

import pytest
from simulator_fakes import Api, Direct, Later, pod

from orchlab.clock import Clock
from orchlab.errors import ApiError, EnvironmentBroken
from orchlab.simulator import admission, inventory, pods
from orchlab.simulator.admission import Admission

ROOM = {"cpu": "8", "memory": "64Gi", "pods": "110"}


class Cluster(Api):
    """An API server that has the pods in `there`; lists are not remembered, since they change nothing."""

    def __init__(self):
        super().__init__()
        self.there = []

    def list(self, path, **query):
        return self.there, "1"


@pytest.fixture
def api():
    return Cluster()


@pytest.fixture
def admits(api):
    made = Admission(api, Direct(), lambda: Clock(60))
    made.node(node(), ROOM)
    return made


def node(gpus=4, name="n"):
    return inventory.of_node("e", name, gpus, "10.128.0.0/24")


def notes(api, index=-1):
    return api.asked[index][2]["metadata"]["annotations"]


def given(api, index=-1):
    return json.loads(notes(api, index)["orchlab/devices"])


def indexes(uuids):
    order = [device.uuid for device in node().devices]
    return [order.index(uuid) for uuid in uuids]


def test_one_write_says_everything(api, admits):
    admits.pod(pod(gpus=2, uid="u", notes={"orchlab/run-for": "2h"}))
    assert [(method, path) for method, path, _ in api.asked] == [("PATCH", "/api/v1/namespaces/ns/pods/p")]
    assert api.asked[0][2]["metadata"]["uid"] == "u"
    assert notes(api) == {"orchlab/admitted": "u", "orchlab/devices": json.dumps({"main": [d.uuid for d in node().devices[:2]]}),
                          "orchlab/real-seconds": "120.000", "orchlab/ends-with": "Completed/0", "orchlab/pod-ip": "10.128.0.2",
                          "orchlab/start-at": None}


def test_what_a_copied_manifest_brings_along_is_overwritten(api, admits):
    copied = {"orchlab/admitted": "other", "orchlab/real-seconds": "1", "orchlab/devices": '{"main": ["GPU-x"]}'}
    admits.pod(pod(uid="u", policy="Always", notes=copied))
    assert notes(api)["orchlab/real-seconds"] is None and given(api) == {} and notes(api)["orchlab/admitted"] == "u"


def test_a_barrier_is_noted_as_it_holds_and_what_became_of_another_pod_s_is_not_inherited(api, admits):
    copied = {pods.BARRIER: "g", pods.BARRIER_SIZE: "6", pods.BARRIER_TIMEOUT: "20m", pods.RELEASED: "2026-01-01T00:00:00Z", pods.MISSED: "0/1/6"}
    admits.pod(pod(uid="u", notes=copied))
    assert json.loads(notes(api)[pods.WAITS_AT]) == {"name": "g", "size": 6, "seconds": 20}
    assert (notes(api)[pods.RELEASED], notes(api)[pods.MISSED]) == (None, None)
    admits.pod(pod(uid="v", notes={pods.WAITS_AT: '{"name": "g", "size": 6}'}))
    assert notes(api)[pods.WAITS_AT] is None


def test_events_of_the_same_pod_are_one_admission(api, admits):
    one = pod(gpus=1)
    for _ in range(3):
        admits.pod(one)
    assert len(api.asked) == 1


def test_a_start_up_time_is_an_absolute_one(api, admits):
    admits.pod(pod(notes={"orchlab/start-after": "10m"}))
    assert notes(api)["orchlab/start-at"] > time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 8))


def test_devices_are_free_after_the_end_and_after_the_deletion(api, admits):
    first, second = pod(gpus=3, uid="a"), pod(gpus=1, uid="b")
    admits.pod(first)
    admits.pod(second)
    admits.pod(first | {"status": {"phase": "Succeeded"}})
    admits.pod(pod(gpus=1))
    assert indexes(given(api)["main"]) == [0]
    admits.pod_gone(second)
    admits.pod(pod(gpus=3))
    assert indexes(given(api)["main"]) == [1, 2, 3]


def test_one_too_many_is_refused_as_by_a_kubelet(api, admits):
    api.there = [pod(gpus=4)]
    admits.pod(api.there[0])
    admits.pod(pod(name="q", gpus=1, uid="q"))
    method, path, body = api.asked[1]
    assert (method, path) == ("PATCH", "/api/v1/namespaces/ns/pods/q/status") and body["metadata"] == {"uid": "q"}
    assert body["status"]["phase"] == "Failed" and body["status"]["reason"] == "UnexpectedAdmissionError"
    assert body["status"]["message"].startswith("Pod was rejected: Allocate failed due to requested number of devices unavailable")
    event = api.asked[2][2]
    assert event["type"] == "Warning" and event["involvedObject"]["uid"] == "q"


def test_before_it_refuses_it_asks_who_is_still_there(api, admits):
    """The scheduler heard first of a deletion and bound the next pod."""
    admits.pod(pod(name="deleted", gpus=4))
    over = pod(name="over", gpus=4, phase="Succeeded")
    api.there = [over]
    admits.pod(pod(name="q", gpus=1, uid="q"))
    assert [path for _, path, _ in api.asked] == ["/api/v1/namespaces/ns/pods/deleted", "/api/v1/namespaces/ns/pods/q"] and len(given(api)["main"]) == 1


@pytest.mark.parametrize("resources, reason, message", [
    ({"cpu": "5"}, "OutOfcpu", "cpu, requested: 5000, used: 4000, capacity: 8000"),
    ({"memory": "61Gi"}, "OutOfmemory", f"memory, requested: {61 * 2**30}, used: {4 * 2**30}, capacity: {64 * 2**30}"),
])
def test_no_room(api, admits, resources, reason, message):
    api.there = [pod(containers=[{"name": "a", "resources": {"requests": {"cpu": "4", "memory": "4Gi"}}}])]
    admits.pod(api.there[0])
    admits.pod(pod(name="q", gpus=0, containers=[{"name": "a", "resources": {"requests": resources}}]))
    status = api.asked[1][2]["status"]
    assert status["reason"] == reason and status["message"] == f"Pod was rejected: Node didn't have enough resource: {message}"


def test_the_number_of_pods_is_limited(api, admits):
    admits.node(node(), ROOM | {"pods": "2"})
    api.there = [pod(name) for name in "abc"]
    for one in api.there:
        admits.pod(one)
    assert api.asked[2][2]["status"]["reason"] == "OutOfpods"


def test_a_pod_waits_for_its_node_and_other_nodes_are_not_ours(api, admits):
    admits.pod(pod(node="later", gpus=1))
    admits.pod(pod(node="real"))
    assert api.asked == []
    admits.node(node(name="later"), ROOM)
    assert len(api.asked) == 1


def test_a_new_reading_of_a_node_forgets_nothing(api, admits):
    admits.pod(pod(gpus=1))
    admits.node(node(), ROOM)
    admits.pod(pod(gpus=1))
    assert indexes(given(api)["main"]) == [1]


def test_on_a_deleted_node_nothing_is_admitted_until_it_is_back(api, admits):
    admits.pod(pod(gpus=1))
    admits.node_gone("n")
    admits.pod(pod(gpus=1))
    assert len(api.asked) == 1
    admits.node(node(), ROOM)
    assert indexes(given(api)["main"]) == [1]
    admits.only_nodes({"m"})
    admits.pod(pod(gpus=1))
    assert len(api.asked) == 2


def admitted(index, uid, **more):
    uuid = node().devices[index].uuid
    written = {"orchlab/admitted": uid, "orchlab/devices": json.dumps({"main": [uuid]}), "orchlab/pod-ip": "10.128.0.9"}
    return pod(gpus=1, uid=uid, phase="Running", notes=written, **more)


def test_a_start_rebuilds_from_the_pods_before_it_admits(api):
    fresh = Admission(api, Direct(), lambda: Clock(60))
    # Pods are heard of before their node, and the new one before the old.
    fresh.relisted([pod(gpus=3, uid="new"), admitted(0, "old")])
    fresh.node(node(), ROOM)
    assert [body["metadata"]["uid"] for _, _, body in api.asked] == ["new"]
    assert indexes(given(api)["main"]) == [1, 2, 3] and notes(api)["orchlab/pod-ip"] == "10.128.0.2"
    assert set(fresh.holders("n").values()) == {"old", "new"}


def test_a_fresh_list_frees_what_went_unnoticed(api, admits):
    gone, stays = pod(gpus=2, uid="gone"), pod(gpus=1, uid="stays")
    admits.pod(gone)
    admits.pod(stays)
    admits.relisted([stays])
    assert sorted(filter(None, admits.holders("n").values())) == ["stays"]


def test_a_deleted_pod_is_not_admitted_and_goes_when_it_has_ended(api, admits):
    dying = pod(uid="d")
    dying["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
    admits.pod(dying)
    assert api.asked == []
    over = dying | {"status": {"phase": "Failed"}}
    admits.pod(over)
    admits.pod(over)
    assert api.asked == [("DELETE", "/api/v1/namespaces/ns/pods/p", {"gracePeriodSeconds": 0, "preconditions": {"uid": "d"}})]
    held_by_a_finalizer = over | {"metadata": over["metadata"] | {"deletionGracePeriodSeconds": 0, "finalizers": ["x"], "uid": "e"}}
    admits.pod(held_by_a_finalizer)
    assert len(api.asked) == 1


def test_a_pod_whose_last_deletion_was_cut_short_goes_all_the_same(api, admits):
    cut = pod(uid="c") | {"status": {"phase": "Failed"}}
    cut["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 0}
    admits.relisted([cut])
    assert api.asked == [("DELETE", "/api/v1/namespaces/ns/pods/p", {"gracePeriodSeconds": 0, "preconditions": {"uid": "c"}})]


def test_bad_annotations_become_warnings_on_the_pod(api, admits):
    admits.pod(pod(notes={"orchlab/run-for": "x", "orchlab/exit": "y"}))
    messages = [body["message"] for method, path, body in api.asked if path.endswith("/events")]
    assert len(messages) == 2 and all(body["reason"] == "BadAnnotation" for _, path, body in api.asked if path.endswith("/events"))


def test_writes_are_tried_until_the_api_server_answers(monkeypatch):
    monkeypatch.setattr(admission, "SHORTEST_PAUSE", 0.001)
    api = Api(EnvironmentBroken("away"), ApiError(503, "", "busy"), ApiError(429, "", "slowly"), {})
    made = Admission(api, Direct(), lambda: Clock(60))
    made.node(node(), ROOM)
    made.pod(pod())
    assert [method for method, _, _ in api.asked] == ["PATCH"] * 4


@pytest.mark.parametrize("status", [404, 409, 403, 422])
def test_writes_that_cannot_succeed_are_given_up(status):
    api = Api(ApiError(status, "", "no"))
    made = Admission(api, Direct(), lambda: Clock(60))
    made.node(node(), ROOM)
    made.pod(pod())
    assert len(api.asked) == 1


def test_one_pod_that_makes_no_sense_does_not_hold_up_the_others(api, admits):
    strange = pod(containers=[{"name": "a", "resources": {"requests": {"cpu": "much"}}}])
    admits.relisted([strange, pod(name="q")])
    assert [path for _, path, _ in api.asked] == ["/api/v1/namespaces/ns/pods/q"]


def test_decisions_do_not_wait_for_writes():
    later, api = Later(), Api()
    made = Admission(api, later, lambda: Clock(60))
    made.node(node(), ROOM)
    for number in range(4):
        made.pod(pod(gpus=1, uid=str(number)))
    assert api.asked == [] and sorted(made.holders("n").values()) == ["0", "1", "2", "3"]
    later.run()
    assert len({uuid for index in range(4) for uuid in given(api, index)["main"]}) == 4
