import pytest
from simulator_fakes import pod

from orchlab.clock import Clock
from orchlab.simulator import pods
from orchlab.simulator.inventory import GPU, Ask


def plan(policy="Never", **notes):
    found = pods.plan(pod(policy=policy, notes={f"orchlab/{key.replace('_', '-')}": value for key, value in notes.items()}), Clock(60))
    return found.seconds, found.ends_with, found.warnings


def test_what_is_meant_to_end_does_so_after_ten_simulated_minutes():
    assert plan("Never") == plan("OnFailure") == (10, "Completed/0", [])


def test_always_runs_until_it_is_deleted_unless_it_says_otherwise():
    assert plan("Always") == (None, "Completed/0", [])
    assert plan("Always", run_for="1h") == (60, "Completed/0", [])
    assert plan("Always", exit="error") == (10, "Error/1", [])
    # A value that cannot be read is not taken for a wish to end.
    assert plan("Always", run_for="soon")[0] is None


@pytest.mark.parametrize("notes, ends_with", [
    ({"exit": "error"}, "Error/1"), ({"exit": "error", "exit_code": "42"}, "Error/42"), ({"exit": "oom"}, "OOMKilled/137"),
    ({"exit_code": "3"}, "Error/3"), ({"exit_code": "0"}, "Completed/0"), ({}, "Completed/0")])
def test_ends(notes, ends_with):
    assert plan(**notes)[1:] == (ends_with, [])


@pytest.mark.parametrize("notes, ends_with, word", [
    ({"exit": "crash"}, "Completed/0", "annotation orchlab/exit: 'crash'"),
    ({"exit_code": "256"}, "Completed/0", "annotation orchlab/exit-code: '256'"),
    ({"exit": "error", "exit_code": "0"}, "Error/1", "from 1 to 255"),
    ({"exit": "error", "exit_code": "-1"}, "Error/1", "orchlab/exit-code"),
    ({"exit": "oom", "exit_code": "1"}, "OOMKilled/137", "always exits with 137"),
    ({"run_for": "-5m"}, "Completed/0", "annotation orchlab/run-for: '-5m'"),
    ({"start_after": "x"}, "Completed/0", "annotation orchlab/start-after: 'x'"),
])
def test_bad_annotations_are_named_and_left_at_their_default(notes, ends_with, word):
    seconds, ends, warnings = plan(**notes)
    assert (seconds, ends) == (10, ends_with) and len(warnings) == 1 and word in warnings[0]


def test_times_are_scaled():
    found = pods.plan(pod(notes={"orchlab/run-for": "2h", "orchlab/start-after": "3m"}), Clock(120))
    assert (found.seconds, found.start_after) == (60, 1.5)


@pytest.mark.parametrize("quantity, thousandths", [
    ("250m", 250), ("2", 2000), (4, 4000), ("1Ki", 1024000), ("1e3", 1_000_000), ("64Gi", 64 * 2**30 * 1000), ("0", 0),
    ("1500k", 1_500_000_000), ("0.5", 500), ("1E", 10**21), ("2Ei", 2**61 * 1000), ("100u", 0), ("12E6", 12_000_000_000)])
def test_milli(quantity, thousandths):
    assert pods.milli(quantity) == thousandths


def test_requests_are_the_containers_or_the_greatest_init_container():
    def of(cpu, **more):
        return {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}, **more}

    found = pods.requests(pod(containers=[of("1"), of("500m")], overhead={"cpu": "100m", "memory": "1Ki"}))
    assert found == {"cpu": 1600, "memory": 1024000}
    assert pods.requests(pod(containers=[of("1")], initContainers=[of("3"), of("2")]))["cpu"] == 3000
    # A sidecar stays; the init container after it runs beside it.
    assert pods.requests(pod(containers=[of("1")], initContainers=[of("1", restartPolicy="Always"), of("3")]))["cpu"] == 4000
    assert pods.requests(pod(containers=[of("1")], resources={"requests": {"cpu": "8"}}))["cpu"] == 8000


def test_asks_in_the_kubelets_order():
    gpu = {"limits": {GPU: "1", "example.com/other": "2"}}
    before = [{"name": "i", "resources": gpu}, {"name": "s", "resources": gpu, "restartPolicy": "Always"}]
    found = pods.asks(pod(containers=[{"name": "a", "resources": gpu}, {"name": "b"}], initContainers=before), {GPU})
    assert found == [Ask("i", GPU, 1, "init"), Ask("s", GPU, 1, "sidecar"), Ask("a", GPU, 1, "main")]


@pytest.mark.parametrize("written", ["", "{", "[]", "3", '{"main": 3}', "null"])
def test_unreadable_devices_are_none(written):
    assert pods.held_devices(pod(notes={"orchlab/devices": written})) == {}


def test_a_copied_annotation_admits_nobody():
    mine = pod(uid="me", notes={"orchlab/admitted": "me"})
    copy = pod(uid="you", notes={"orchlab/admitted": "me"})
    assert pods.is_admitted(mine) and not pods.is_admitted(copy)
