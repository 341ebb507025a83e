"""Reading a cluster, the overview, whose a target is, and the command line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner
from why_sentences import UNHELPFUL
from why_support import SPACE, facts, fleet, node, owner, pod, running

from orchlab import cli
from orchlab import why as whys
from orchlab.diagnosis import Diagnosis
from orchlab.environment import Environment
from orchlab.errors import ApiError, BadInput, EnvironmentBroken
from orchlab.kube import why, why_holders
from orchlab.kube.why_facts import MOST, PAGE, Facts


def test_lists_are_read_page_by_page_and_what_may_not_be_read_is_noted():
    class Paged:
        asked: list = []

        def request(self, method, path, timeout, **query):
            self.asked.append((path, query))
            if path.endswith("persistentvolumes"):
                raise ApiError(403, "Forbidden", "no right")
            more = {} if "continue" in query else {"continue": "2"}
            return {"kind": "PodList", "metadata": more, "items": [{"metadata": {"name": f"p{len(self.asked)}"}}]}

    found = Facts.from_cluster(Paged(), "team")
    assert [one["metadata"]["name"] for one in found["pods"]] == ["p1", "p2"] and found["pods"][0]["kind"] == "Pod"
    assert found["persistentvolumes"] == [] and "no right" in found.missing["persistentvolumes"]
    assert len(found["pods"]) == 2 and len(Paged.asked) == 3, "each list is read once"
    assert Paged.asked[0][1]["limit"] == PAGE < MOST
    assert found["events"] and Paged.asked[3][0] == "/api/v1/namespaces/team/events"


def test_the_overview_has_one_answer_for_what_is_alike():
    says = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu." + UNHELPFUL
    many = [pod(f"job-{n}", {"gpu": 16}, says=says, owner=("Job", "job")) for n in range(5)]
    alone = pod("alone", schedulingGates=[{"name": "g"}], metadata={"namespace": "other"})
    failed = owner("Job", "failed", {}, {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]})
    machines = [*fleet(), node("lost-0", ready=False)]
    for one in many:
        one["status"]["conditions"][0]["message"] = says.replace("9", "10")
    seen = facts(*many, alone, running("fine", "cpu-0"), pod("over", on="cpu-0", phase="Failed", owner=("Job", "failed")), nodes=machines, jobs=[failed])
    found = why.overview(seen)
    assert [target for target, _ in found] == ["pod/alone -n other", f"pod/job-0 -n {SPACE}", f"job/failed -n {SPACE}", "node/lost-0"]
    assert any(line.startswith(f"the same holds for 4 more of job/job -n {SPACE}: job-1") for line in found[1][1].evidence)
    assert [target for target, _ in why.overview(seen, "other")] == ["pod/alone -n other", "node/lost-0"]


def test_a_large_overview_is_told_from_words(monkeypatch):
    monkeypatch.setattr(why, "CELLS", 9)
    says = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu." + UNHELPFUL
    found = why.overview(facts(*(pod(f"p{n}", {"gpu": 16}, says=says, labels={"app": str(n)}) for n in range(3))))
    assert ["node by node" in " ".join(diagnosis.evidence) for _, diagnosis in found] == [True, False, False]
    assert all(diagnosis.known for _, diagnosis in found)


def test_workloads_have_names_that_can_be_asked_for():
    assert why_holders.workload(pod("p")) == ("Pod", f"pod/p -n {SPACE}")
    assert why_holders.workload(pod("p", owner=("ReplicaSet", "web-5d8"))) == ("ReplicaSet", f"rs/web-5d8 -n {SPACE}")
    assert why_holders.workload(pod("p", owner=("Job", "train")))[1] == f"job/train -n {SPACE}"


class There:
    """An environment with these orchestrators."""

    def __init__(self, kubernetes: str = "local", slurm: str = "local") -> None:
        self.name, self.record = "e", type("Record", (), {"kubernetes": kubernetes, "slurm": slurm, "left_out": {}})()


@pytest.mark.parametrize("target, there, who", [
    ("pod/x", There(), "kubernetes"), ("deploy/x", There(), "kubernetes"), ("rs/x-1", There(), "kubernetes"), ("job/train", There(), "kubernetes"),
    ("job/7", There(), "slurm"), ("job/7_3", There(), "slurm"), ("job/7 -n team", There(), "kubernetes"), ("kubernetes/job/7", There(), "kubernetes"),
    ("node/a", There(), "slurm"), ("node/a", There(slurm="none"), "kubernetes"), ("job/7", There(slurm="none"), "kubernetes"),
    ("job/7", There(kubernetes="none"), "slurm"), ("pod/x", There(kubernetes="none"), "kubernetes")])
def test_whose_a_target_is(target, there, who, monkeypatch):
    asked = []
    for one in (whys.Slurm, whys.Kubernetes):
        monkeypatch.setattr(one, "answer", lambda self, env, kind, name, namespace: asked.append((self.name, kind, name, namespace)) or [])
    whys.ask(there, target, "mine")
    assert asked == [(who, *target.partition(" -n ")[0].removeprefix("kubernetes/").split("/"), "team" if "-n" in target else "mine")]


def test_both_are_asked_for_all_and_one_that_is_down_is_said(monkeypatch):
    def down(self, env, namespace):
        raise EnvironmentBroken("it does not answer")

    monkeypatch.setattr(whys.Slurm, "everything", lambda self, env, namespace: [whys.Answer("slurm", "job/7", Diagnosis("c."))])
    monkeypatch.setattr(whys.Kubernetes, "everything", down)
    assert [(one.target, one.diagnosis.known) for one in whys.ask(There())] == [("job/7", True), ("kubernetes", False)]
    with pytest.raises(EnvironmentBroken):
        whys.ask(There(slurm="none"))


def test_the_command_line(monkeypatch, tmp_path):
    asked = []
    answer = whys.Answer("kubernetes", "pod/x -n team", Diagnosis("<b> is short.", ["a < b"], "wait"))
    monkeypatch.setattr(Environment, "load", classmethod(lambda cls, name: name))
    monkeypatch.setattr(whys, "ask", lambda env, target, namespace, among: asked.append((env, target, namespace)) or [answer])
    run = CliRunner().invoke
    assert run(cli.app, ["why", "pod/x", "-n", "team"]).stdout.startswith("pod/x -n team\ncause     <b> is short.")
    assert "<b>&lt;b&gt; is short.</b>" in run(cli.app, ["why", "--html"]).stdout
    assert asked == [("default", "pod/x -n team", "team"), ("default", "", "")]
    missing = run(cli.app, ["why", "--kubeconfig", str(tmp_path / "none")])
    assert isinstance(missing.exception, BadInput) and "no such file" in str(missing.exception)
    seen = []
    monkeypatch.setattr(whys, "elsewhere", lambda path, context: seen.append((path.name, context)) or ())
    run(cli.app, ["why", "--context", "prod"], env={"KUBECONFIG": str(tmp_path / "conf")})
    assert seen == [("conf", "prod")] and asked[-1][0] is None
