"""A feed's timeline when slurmctld forgets jobs: their ends come from accounting, or are uncertain."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from orchlab.slurm import feed as feeds
from orchlab.slurm.errors import SlurmError
from orchlab.slurm.model import Held, Job, Node, PastJob


class Cluster:
    """A client whose answers a test changes."""

    def __init__(self):
        self.known, self.past, self.asked = [], [], []

    def nodes(self):
        return [Node("a", "IDLE", gres={"gpu:t4": 2})]

    def jobs(self):
        return self.known

    def accounting(self, jobs):
        self.asked.append(list(jobs))
        if self.past is None:
            raise SlurmError("Problem talking to the database")
        return self.past


@pytest.fixture
def at(monkeypatch):
    """Sets the time that the feed sees."""
    def set_time(seconds: float) -> None:
        monkeypatch.setattr(feeds, "time", SimpleNamespace(time=lambda: seconds))

    return set_time


def running(number: int, **more) -> Job:
    return Job(number, "train", account="lab", partition="all", state="RUNNING", nodes=("a",), held=(Held("a", "gpu", "t4", 2, (0, 1)),),
               tres={"gres/gpu": 2, "gres/gpu:t4": 2}, submitted=100, started=101, **more)


def looked(cluster, feed, jobs) -> dict:
    cluster.known = jobs
    feed._ask(False)
    return {record.id: record for record in feed.timeline.records()}


def test_a_forgotten_job_ends_when_accounting_says(at):
    cluster = Cluster()
    feed = feeds.Feed(cluster)
    at(101.5)
    assert looked(cluster, feed, [running(7), running(8)])["7"].ended is None
    cluster.past = [PastJob(7, "train", state="COMPLETED", ended=160)]
    at(1000)
    record = looked(cluster, feed, [running(8)])["7"]
    assert (record.ended, record.outcome, record.removed) == (160, "COMPLETED", True)
    assert (record.holds[0].end, record.runs[0].end, record.holds[0].uncertain, record.wanted) == (160, 160, False, {"gpu:t4": 2})
    assert record.device_seconds(1000) == pytest.approx(2 * (160 - 101.5))
    at(1001)
    assert looked(cluster, feed, [running(8)])["8"].ended is None
    assert cluster.asked == [["7"]], "accounting is asked once, and only for what is missing"


@pytest.mark.parametrize("past", [None, [], [PastJob(7, state="RUNNING", ended=None)]], ids=["no database", "unknown", "late"])
def test_without_an_end_in_accounting_it_is_uncertain(at, past):
    cluster = Cluster()
    feed = feeds.Feed(cluster)
    at(101.5)
    looked(cluster, feed, [running(7)])
    cluster.past = past
    at(500)
    record = looked(cluster, feed, [])["7"]
    assert (record.ended, record.outcome, record.holds[0].uncertain) == (500, "deleted", True)
    assert not feed.timeline.goes_on()


def test_tasks_of_an_array_are_forgotten_one_by_one(at):
    cluster = Cluster()
    feed = feeds.Feed(cluster)
    at(101.5)
    looked(cluster, feed, [running(9, array_id=9, array_task=0), running(10, array_id=9, array_task=1)])
    cluster.past = [PastJob(10, state="TIMEOUT", array_id=9, array_task=1, ended=130),
                    PastJob(9, state="FAILED", array_id=9, array_task=0, ended=120)]
    at(900)
    records = looked(cluster, feed, [])
    assert {id: (record.ended, record.outcome) for id, record in records.items()} == {"9_0": (120, "FAILED"), "9_1": (130, "TIMEOUT")}
    assert cluster.asked == [["9"]]


def test_a_task_that_slurm_does_not_write_is_not_gone(at):
    cluster = Cluster()
    feed = feeds.Feed(cluster)
    waiting = {"name": "sweep", "partition": "all", "state": "PENDING", "array_id": 9, "submitted": 100}
    at(101.5)
    looked(cluster, feed, [Job(9, array_tasks="1-3,8", **waiting)])
    at(102.5)
    records = looked(cluster, feed, [Job(9, array_tasks="1-3,...", **waiting)])
    assert [record.ended for record in records.values()] == [None] * 4 and cluster.asked == []
    at(103.5)
    records = looked(cluster, feed, [running(12, array_id=9, array_task=8)])
    assert records["9_8"].ended is None and records["9_8"].runs and records["9_2"].ended == 103.5


def test_an_end_that_was_seen_late_has_its_own_time(at):
    cluster = Cluster()
    feed = feeds.Feed(cluster)
    at(101.5)
    looked(cluster, feed, [running(7)])
    at(300)
    ended = Job(7, "train", partition="all", state="COMPLETED", nodes=("a",), submitted=100, started=101, ended=160)
    record = looked(cluster, feed, [ended])["7"]
    assert (record.ended, record.holds[0].end, record.runs[0].end, record.outcome) == (160, 160, 160, "COMPLETED")
    at(900)
    assert looked(cluster, feed, [])["7"].outcome == "COMPLETED" and cluster.asked == []
