"""KWOK's configuration, the rights, the record, the watch loop and the start of KWOK."""

import json
import subprocess
import sys
import threading

import pytest
import yaml
from simulator_fakes import Api

from orchlab import fleet
from orchlab.errors import ApiError, EnvironmentBroken
from orchlab.kube import watching
from orchlab.kube.client import WatchExpired
from orchlab.simulator import rbac, settings, stages, start_kwok


def test_kwoks_configuration():
    configuration, *rest = yaml.safe_load_all(stages.render())
    assert configuration["options"]["enableDebuggingHandlers"] is False
    assert configuration["options"]["manageNodesWithLabelSelector"] == "orchlab/kubelet=simulated"
    assert {stage["metadata"]["name"] for stage in rest} == {path.stem for path in stages.FOLDER.glob("*.yaml")} and len(rest) >= 9
    for stage in rest:
        # Only ever a status, only of the version that was looked at, and nothing is deleted by name alone.
        for step in stage["spec"]["steps"]:
            assert set(step) == {"patch"} and step["patch"]["subresource"] == "status" and "root" not in step["patch"]
            assert "resourceVersion: {{ .metadata.resourceVersion | Quote }}" in step["patch"]["template"]


def test_many_nodes_renew_their_leases_less_often():
    few, many = (next(yaml.safe_load_all(stages.render(count)))["options"]["nodeLeaseDurationSeconds"] for count in (9, 1000))
    # Renewed four times in its life; the node controller waits 40 s, and one renewal may be lost.
    assert few < many <= 4 * 40 / 2


def test_rights_are_the_least():
    found = rbac.manifests()
    roles = [role for role in found if role["kind"].endswith("Role")]
    rules = {(role["metadata"]["name"], tuple(rule["resources"])): rule["verbs"] for role in roles for rule in role["rules"]}
    assert all("*" not in verbs and "*" not in resources for (_, resources), verbs in rules.items())
    assert "delete" not in rules["orchlab:kwok", ("pods",)] and "patch" not in rules["orchlab:kwok", ("pods",)]
    assert not any("secrets" in resources or "pods/exec" in resources for _, resources in rules)
    assert next(role for role in found if role["kind"] == "Role")["metadata"]["namespace"] == "kube-node-lease"


@pytest.fixture
def folder(tmp_path):
    write(tmp_path)
    return tmp_path


def write(folder, **changes):
    record = {"id": "e", "name": "n", "clock": 60.0, "ports": {"simulator": 1}, "fleet": fleet.load().model_dump(mode="json")} | changes
    (folder / "environment.json").write_text(json.dumps(record))


def test_the_record_is_read_and_read_again(folder):
    watched = settings.Watched(folder)
    assert watched.current.clock.factor == 60 and len(watched.current.nodes) == 9 and not watched.changed()
    write(folder, clock=120.0)
    assert watched.changed() and watched.current.clock.factor == 120 and not watched.changed()


def test_a_broken_record_leaves_the_old_reading(folder):
    watched = settings.Watched(folder)
    (folder / "environment.json").write_text("{")
    with pytest.raises(EnvironmentBroken):
        watched.changed()
    assert watched.current.clock.factor == 60
    write(folder, clock=30.0)
    assert watched.changed() and watched.current.clock.factor == 30
    with pytest.raises(EnvironmentBroken, match="environment.json"):
        settings.read(folder / "nowhere")


class Watching:
    """A cluster whose watch goes through a list of episodes, then stops the process."""

    def __init__(self, stop, *episodes):
        self.stop, self.episodes, self.asked = stop, list(episodes), []

    def list(self, path, **query):
        self.asked.append("list")
        return [{"metadata": {"name": "listed"}}], "10"

    def watch(self, path, version, seconds, **query):
        self.asked.append(version)
        if not self.episodes:
            self.stop.set()
            return
        for step in self.episodes.pop(0):
            if isinstance(step, Exception):
                raise step
            yield step


def event(kind, version):
    return kind, {"metadata": {"name": kind.lower(), "resourceVersion": version}}


def watched(monkeypatch, *episodes, take=None):
    monkeypatch.setattr(watching, "SOON", 0)
    monkeypatch.setattr(watching, "LATER", 0)
    stop = threading.Event()
    client = Watching(stop, *episodes)
    seen = []
    watching.Watcher(client, stop).keep("pods", "/api/v1/pods", {}, take or (lambda kind, what: seen.append(kind)))
    return client.asked, seen


def test_a_watch_goes_on_where_it_ended(monkeypatch):
    asked, seen = watched(monkeypatch, [event("ADDED", "11"), event("BOOKMARK", "15")], [event("MODIFIED", "16")])
    assert asked == ["list", "10", "15", "16"] and seen == ["LIST", "ADDED", "MODIFIED"]


def test_after_a_410_it_lists_anew(monkeypatch):
    asked, seen = watched(monkeypatch, [event("ADDED", "11"), WatchExpired("too old")])
    assert asked == ["list", "10", "list", "10"] and seen == ["LIST", "ADDED", "LIST"]


@pytest.mark.parametrize("trouble, lists", [(EnvironmentBroken("away"), 1), (ApiError(403, "", "no"), 2)])
def test_after_trouble_it_comes_back(monkeypatch, trouble, lists):
    asked, _ = watched(monkeypatch, [event("ADDED", "11"), trouble])
    assert asked.count("list") == lists and asked[-1] == ("11" if lists == 1 else "10")


def test_a_fault_in_one_event_does_not_end_the_watching(monkeypatch):
    calls = []

    def take(kind, what):
        calls.append(kind)
        if calls == ["LIST", "ADDED"]:
            raise KeyError("surprise")

    asked, _ = watched(monkeypatch, [event("ADDED", "11")], take=take)
    assert asked.count("list") == 2 and calls == ["LIST", "ADDED", "LIST"]


def lease(name, holder):
    return {"metadata": {"name": name}, "spec": {"holderIdentity": holder}}


def test_only_leases_of_a_dead_kwok_are_cleared():
    api = Api(([lease("a", "host_1"), lease("b", "host_1")], "1"))
    assert start_kwok.clear_leases(api) == 2
    assert [(method, path) for method, path, _ in api.asked[1:]] == [("DELETE", start_kwok.LEASES)]
    # A real kubelet's lease bears its node's name.
    api = Api(([lease("a", "host_1"), lease("real", "real")], "1"))
    assert start_kwok.clear_leases(api) == 1
    assert [(method, path) for method, path, _ in api.asked[1:]] == [("DELETE", f"{start_kwok.LEASES}/a")]


def test_kwok_is_started_even_if_the_api_server_never_answers():
    api = Api(*[EnvironmentBroken("away")] * 100)
    assert "not cleared" in start_kwok.await_and_clear(api, longest=0.1)
    assert 1 <= len(api.asked) < 10


def test_the_process_imports_little():
    code = "import sys, orchlab.simulator.process as p; sys.exit(bool({'pydantic', 'kubernetes', 'cryptography'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0
