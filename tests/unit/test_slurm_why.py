"""Every pending reason, refusal and end that is explained, and "I don't know" for the rest; who is asked about what."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from orchlab import cli
from orchlab import why as whys
from orchlab.course.slurm_side import SlurmSide
from orchlab.environment import Environment
from orchlab.errors import BadInput, EnvironmentBroken
from orchlab.slurm import causes, errors, why
from orchlab.slurm.errors import SlurmError
from orchlab.slurm.model import Held, Job, Node, Partition, PastJob, Priority, Qos, Reservation


class Answers:
    """A client with fixed answers; counts the questions."""

    def __init__(self, jobs=(), nodes=(), past=(), partitions=(), test=""):
        self._jobs, self._nodes, self._partitions = list(jobs), list(nodes), list(partitions)
        self._past, self._test, self.asked = past, test, []

    def jobs(self, which=None):
        self.asked.append("jobs")
        return [job for job in self._jobs if which in (None, str(job.id), str(job.array_id), str(job.het_id))]

    def queue(self):
        return [job for job in self.jobs() if not job.ended_for_good]

    def nodes(self):
        self.asked.append("nodes")
        return self._nodes

    def partitions(self):
        return self._partitions

    def accounting(self, jobs):
        return [job for job in self._past if str(job.id) in jobs or str(job.array_id) in jobs]

    def qos(self):
        return [Qos("normal", max_tres_per_user="gres/gpu=4")]

    def priorities(self):
        return [Priority("5", "ann", 12, age=2, fairshare=10)]

    def reservations(self):
        return [Reservation("upkeep", ("n",))]

    def test(self, script):
        if isinstance(self._test, Exception):
            raise self._test
        return self._test


# Reason: words of its cause.
REASONS = {
    "Resources": "in use or out of service", "Priority": "higher priority", "Dependency": "waits for other jobs",
    "DependencyNeverSatisfied": "never fulfils", "JobArrayTaskLimit": "array", "JobHeldUser": "owner holds",
    "JobHeldAdmin": "administrator holds",
    "JobHoldMaxRequeue": "requeued so often", "BeginTime": "not to start before", "PartitionTimeLimit": "more time",
    "PartitionNodeLimit": "more nodes", "PartitionDown": "starts no jobs", "PartitionInactive": "neither takes nor starts",
    "PartitionConfig": "partition's settings", "Licenses": "license", "MaxMemPerLimit": "MaxMemPerNode", "Reservation": "its reservation",
    "ReqNodeNotAvail": "down, drained or reserved", "BadConstraints": "No node can ever", "JobLaunchFailure": "could not start it",
    "InvalidAccount": "account is not valid", "InvalidQOS": "QoS is not valid", "AccountNotAllowed": "does not take jobs of its account",
    "QOSNotAllowed": "does not take its QoS", "Cleaning": "requeued",
}
# Limit: (whose, for what, whether waiting can help).
LIMITS = {
    "AssocGrpGRES": ("account lab", "all its jobs together", True), "AssocGrpCpuLimit": ("account lab", "all its jobs together", True),
    "AssocMaxJobsLimit": ("account lab", "one association", True), "AssocMaxGRESPerJob": ("account lab", "one job", False),
    "AssocMaxWallDurationPerJobLimit": ("account lab", "one job", False), "QOSGrpGRES": ("QoS normal", "all its jobs together", True),
    "QOSMaxGRESPerUser": ("QoS normal", "one user's jobs", True), "QOSMaxJobsPerUserLimit": ("QoS normal", "one user's jobs", True),
    "QOSMaxGRESPerNode": ("QoS normal", "on one node", False), "MaxGRESPerAccount": ("QoS normal", "one account's jobs", True),
    "MaxGRESRunMinsPerUser": ("QoS normal", "one user's jobs", True), "QOSMinGRES": ("QoS normal", "less than the minimum", False),
    "QOSGrpGRESMinutes": ("QoS normal", "all its jobs together", False),
    "AssocGrpWallLimit": ("account lab", "all its jobs together", False),
}
ERRORS = {
    "Invalid generic resource (gres) specification": "written wrongly",
    "Requested node configuration is not available": "can ever give that",
    "Invalid job array specification": "MaxArraySize",
    "Requested GRES option unsupported by configured SelectType plugin": "cons_tres",
    "Invalid account or account/partition combination specified": "no association",
    "Requested time limit is invalid (missing or exceeds some limit)": "EnforcePartLimits",
    "Invalid partition name specified": "no such partition",
    "Invalid qos specification": "no such QoS",
    "Invalid feature specification": "No node has that feature",
    "Invalid license specification": "no such license",
    "Invalid node name specified": "not there",
    "Requested reservation is invalid": "no such reservation",
    "Job dependency problem": "dependency",
    "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)": "refuses it at once",
    "Access/permission denied": "may not",
    "Unable to contact slurm controller (connect failure)": "does not answer",
}


def waiting(reason, **more):
    return Job(5, "train", "ann", "lab", "all", "normal", "PENDING", reason, **more)


def test_the_tables_here_have_all_that_is_claimed():
    assert set(REASONS) == {*causes.WAITING, *causes.COMPUTED}
    assert set(ERRORS) == set(causes.REFUSED)


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_has_its_cause_the_words_of_slurm_and_a_remedy(reason):
    diagnosis = why.job(Answers([waiting(reason)]), 5)
    assert diagnosis.known and REASONS[reason] in diagnosis.cause and diagnosis.remedy
    assert diagnosis.evidence[0] == f"job 5 (train) is PENDING, reason {reason}"
    assert "{" not in diagnosis.cause + diagnosis.remedy


@pytest.mark.parametrize("reason", LIMITS)
def test_a_limit_names_its_owner_its_scope_and_whether_waiting_helps(reason):
    owner, scope, helps = LIMITS[reason]
    diagnosis = why.job(Answers([waiting(reason)]), 5)
    assert diagnosis.known and owner in diagnosis.cause and scope in diagnosis.cause and reason in diagnosis.cause
    assert ("wait for jobs to end" in diagnosis.remedy) == helps


@pytest.mark.parametrize("reason", ["SomethingNew", "MaxPoweredUpNodes", "QOSUsageThreshold", ""])
def test_an_unknown_reason_is_not_guessed_at(reason):
    diagnosis = why.job(Answers([waiting(reason)]), 5)
    assert not diagnosis.known and diagnosis.cause == "I don't know." and diagnosis.evidence


@pytest.mark.parametrize("text", ERRORS)
def test_a_refusal_is_explained_from_what_sbatch_writes(text):
    for words in (f"sbatch: error: Batch job submission failed: {text}\n", f"allocation failure: {text}\n"):
        error = errors.from_command(words, "sbatch")
        assert error.text == text
        diagnosis = why.refusal(error)
        assert diagnosis.known and ERRORS[text] in diagnosis.cause and diagnosis.remedy and diagnosis.evidence[0] == text


def test_what_sbatch_itself_cannot_read():
    unread = errors.from_command("sbatch: error: Invalid --time specification\n", "sbatch")
    assert "--time" in why.refusal(unread).cause
    strange = errors.from_command("sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information\n", "sbatch")
    assert "--bogus" in why.refusal(strange).cause
    assert not why.refusal("sbatch: error: Batch job submission failed: Something quite new").known


ENDS = {"NODE_FAIL": "stopped answering", "TIMEOUT": "time limit", "OUT_OF_MEMORY": "more memory", "PREEMPTED": "higher priority",
        "BOOT_FAIL": "did not come up", "DEADLINE": "deadline", "COMPLETED": "nothing is wrong", "CANCELLED": "cancelled it"}


@pytest.mark.parametrize("state", ENDS)
def test_ends_are_explained_while_slurmctld_knows_them_and_from_accounting(state):
    assert set(causes.ENDED) < set(ENDS)
    assert ENDS[state] in why.job(Answers([Job(5, state=state)]), 5).cause
    forgotten = why.job(Answers(past=[PastJob(5, state=state)]), 5)
    assert ENDS[state] in forgotten.cause and "from accounting" in forgotten.evidence[0]


def test_failures():
    assert "error of its own" in why.job(Answers([Job(5, state="FAILED", exit_code=3)]), 5).cause
    refused = why.job(Answers([Job(5, state="FAILED", reason="BadConstraints")]), 5)
    assert "refused when it was submitted" in refused.cause
    assert not why.job(Answers([Job(5, state="FAILED")]), 5).known
    unread = why.job(Answers(past=[PastJob(5, state="FAILED", exit_code=None)]), 5)
    assert not unread.known and "no exit status" in unread.evidence[1]
    with pytest.raises(SlurmError, match="Invalid job id"):
        why.job(Answers(), 5)


ARRAY = [Job(9, "sweep", state="PENDING", reason="JobArrayTaskLimit", array_id=9, array_tasks="3-6%2"),
         Job(10, "sweep", state="RUNNING", array_id=9, array_task=1, nodes=("a",)),
         Job(11, "sweep", state="RUNNING", array_id=9, array_task=2, nodes=("b",))]


def test_an_array_has_one_answer_for_each_state_and_its_tasks_can_be_asked_for():
    answers = why.jobs(Answers(ARRAY), 9)
    assert [label for label, _ in answers] == ["9_[3-6%2]", "9_1"]
    assert "the same holds for 9_2" in answers[1][1].evidence
    assert [label for label, _ in why.jobs(Answers(ARRAY), "9_2")] == ["9_2"]
    assert [label for label, _ in why.jobs(Answers(ARRAY), "9_5")] == ["9_[3-6%2]"]
    with pytest.raises(SlurmError):
        why.jobs(Answers(ARRAY), "9_7")
    for wrong in ("train", "9_", "9.batch", ""):
        with pytest.raises(BadInput, match="no job id"):
            why.jobs(Answers(ARRAY), wrong)


def test_evidence_for_resources_counts_what_others_hold():
    node = Node("h", "MIXED", cpus=8, cpus_allocated=2, gres={"gpu:h100": 8})
    holder = Job(1, state="RUNNING", nodes=("h",), held=(Held("h", "gpu", "h100", 6),))
    wants = waiting("Resources", cpus=1, tres={"gres/gpu:h100": 4, "gres/gpu": 4}, node_count=1)
    client = Answers([holder, wants], [node, Node("c", "IDLE", cpus=8)], partitions=[Partition("all", nodes=("h", "c"))])
    evidence = why.job(client, 5).evidence
    assert evidence[1:] == ["it asks for 1 CPU, 4 gpu:h100 on 1 node(s) in all", "h: 6 of 8 CPUs free, 2 of 8 gpu:h100 free"]


@pytest.mark.parametrize(
    "node, words",
    [
        (Node("n", "DOWN", ("NOT_RESPONDING",), reason="Not responding"), "does not answer"),
        (Node("n", "IDLE", ("DRAIN", "INVALID_REG"), reason="gres/gpu count reported lower than configured (1 < 2)"), "other hardware"),
        (Node("n", "IDLE", ("DRAIN",), reason="Duplicate jobid"), "running already"),
        (Node("n", "IDLE", ("DRAIN",), reason="fan"), "drained"),
        (Node("n", "DOWN", reason="broken"), "is down"),
        (Node("n", "ALLOCATED", cpus=2, cpus_allocated=2), "All its CPUs are in use"),
        (Node("n", "IDLE", ("RESERVED",)), "reserved"),
        (Node("n", "MIXED"), "nothing is wrong"),
        (Node("n", "FUTURE"), "I don't know"),
    ],
)
def test_nodes_are_explained(node, words):
    assert words in why.node(Answers([], [node]), "n").cause
    assert why.broken(node) == (words not in ("All its CPUs are in use", "reserved", "nothing is wrong", "I don't know"))


def test_everything_is_what_waits_and_what_is_broken_from_one_look():
    jobs = [waiting("Dependency", dependency="afterok:4"), Job(6, state="RUNNING"), Job(7, state="COMPLETED"),
            *(Job(n, state="PENDING", reason="Resources", partition="all") for n in range(10, 60))]
    client = Answers(jobs, [Node("good", "IDLE"), Node("bad", "DOWN", reason="fan")])
    answers = why.everything(client)
    assert [target for target, _ in answers] == ["job/5", *(f"job/{n}" for n in range(10, 60)), "node/bad"]
    assert "afterok:4" in answers[0][1].cause
    assert len(client.asked) <= 4, "not one question a job"
    client = Answers([Job(n, state="PENDING", reason="Resources", user=f"user{n % 2}") for n in range(4)])
    assert [target for target, _ in why.everything(client, "user1")] == ["job/1", "job/3", "job/0", "job/2"]


def test_a_script_is_tested_and_what_the_test_leaves_out_is_said():
    taken = why.script(Answers(test="sbatch: Job 7 to start at …"), "#!/bin/sh\n")
    assert "nothing to refuse" in taken.cause and any("does not look at dependencies" in line for line in taken.evidence)
    refused = why.script(Answers(test=SlurmError("Requested node configuration is not available")), "#!/bin/sh\n")
    assert "can ever give that" in refused.cause and "EnforcePartLimits" in refused.evidence[1]
    assert not why.script(Answers(test=SlurmError("Something new")), "#!/bin/sh\n").known


# -- whose a target is


@pytest.mark.parametrize("target", ["job/7", "job/7_3", "job/7+1", "slurm/job/7", "node/a100-0", "slurm/node/a100-0"])
def test_numbers_are_slurm_jobs(target, monkeypatch):
    seen = []
    monkeypatch.setattr(whys.Slurm, "answer", lambda self, env, kind, name, namespace: seen.append((kind, name)))
    whys.ask(None, target)
    assert "/".join(seen[0]) == target.removeprefix("slurm/")


@pytest.mark.parametrize("target", ["slurm/job/train", "quota/x", "7", "job/", "/7", "slurm/job", "job/7/8", "other/job/7"])
def test_what_nobody_claims_is_refused_with_the_forms(target):
    with pytest.raises(BadInput, match="job/ID, job/ID_TASK, node/NAME"):
        whys.ask(None, target)


def test_answers_as_json_and_as_text():
    answer = whys.Answer("slurm", "job/5", why.job(Answers([waiting("JobHeldUser")]), 5))
    assert json.loads(json.dumps(answer.to_json())) == {
        "orchestrator": "slurm", "target": "job/5", "cause": "Its owner holds it.", "known": True, "remedy": "scontrol release 5",
        "evidence": ["job 5 (train) is PENDING, reason JobHeldUser"]}
    assert str(answer).splitlines() == ["job/5", "cause     Its owner holds it.", "evidence  job 5 (train) is PENDING, reason JobHeldUser",
                                        "remedy    scontrol release 5"]


def test_no_orchestrator_and_no_script(tmp_path):
    bare = SimpleNamespace(name="bare", record=SimpleNamespace(slurm="none", kubernetes="none", left_out={}))
    with pytest.raises(EnvironmentBroken, match="no Slurm or Kubernetes to ask"):
        whys.ask(bare)
    (tmp_path / "job.sh").write_text("#!/bin/sh\n")
    with pytest.raises(BadInput, match="only Kubernetes is asked"):
        whys.refused(bare, tmp_path / "job.sh", among=(whys.Kubernetes(),))


# -- the command line and the notebook


def test_the_command_prints_text_or_json_and_counts_what_is_too_much(monkeypatch):
    many = [whys.Answer("slurm", f"job/{n}", why.job(Answers([waiting("JobHeldUser")]), 5)) for n in range(40)]
    monkeypatch.setattr(Environment, "load", classmethod(lambda cls, name: None))
    monkeypatch.setattr(whys, "ask", lambda env, target, namespace, among: many if not target else many[:1])

    def run(*words):
        return CliRunner().invoke(cli.app, ["why", *words])

    assert run("job/0").stdout.splitlines()[:2] == ["job/0", "cause     Its owner holds it."]
    text = run().stdout
    assert "job/24\n" in text and "job/25\n" not in text and "and 15 more" in text and "    15  Its owner holds it." in text
    assert [answer["target"] for answer in json.loads(run("--json").stdout)] == [f"job/{n}" for n in range(40)]
    many.clear()
    assert run().stdout == "Nothing waits, and no node is out of service.\n"


def test_a_target_and_a_script_are_two_questions(tmp_path, monkeypatch):
    (tmp_path / "job.sh").write_text("#!/bin/sh\n")
    done = CliRunner().invoke(cli.app, ["why", "job/5", "-f", str(tmp_path / "job.sh")])
    assert isinstance(done.exception, BadInput) and "two questions" in str(done.exception)


def test_a_lab_asks_by_number_or_target(monkeypatch):
    asked = []
    monkeypatch.setattr(whys, "ask", lambda env, target, namespace: asked.append((env, target, namespace)) or [])
    lab = SlurmSide()
    lab.place = SimpleNamespace(env="here", namespace="lab-13")
    assert lab.why(7) == lab.why("node/a") == lab.why() == "nothing waits, and no node is out of service"
    assert asked == [("here", "job/7", "lab-13"), ("here", "node/a", "lab-13"), ("here", "", "lab-13")]
