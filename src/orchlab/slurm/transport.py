"""What every way of talking to Slurm can be asked. A transport that cannot do something raises NotOffered; the client then asks another."""

from __future__ import annotations

from collections.abc import Sequence

from orchlab.slurm.errors import NotOffered
from orchlab.slurm.model import Job, Node, Partition, PastJob, Priority, Qos, Reservation, Share, Step
from orchlab.slurm.request import JobRequest


class Transport:
    """`seconds` limits every single call. Raises SlurmError with Slurm's own text when it refuses, TimeLimitReached, NotOffered."""

    name = ""

    def __init__(self, seconds: float = 20) -> None:
        self.seconds = seconds

    def _not_offered(self, what: str):
        raise NotOffered(f"{self.name} does not offer {what}", "the commands do; put Slurm's commands on PATH")

    def version(self) -> str:
        self._not_offered("the version")

    def submit(self, request: JobRequest) -> int:
        """The id of the new job."""
        self._not_offered("submission")

    def test(self, request: JobRequest) -> str:
        """What Slurm would do with it, in its words; nothing is submitted."""
        self._not_offered("a test of a script (sbatch --test-only)")

    def cancel(self, job: str, signal: str = "") -> None:
        """Ends a job, an array or one task ("7_3"); with `signal` (e.g. "USR1") sends that instead."""
        self._not_offered("cancelling")

    def hold(self, job: str) -> None:
        self._not_offered("holding")

    def release(self, job: str) -> None:
        self._not_offered("releasing")

    def requeue(self, job: str) -> None:
        self._not_offered("requeueing")

    def jobs(self) -> list[Job]:
        """All jobs that slurmctld knows, by id."""
        self._not_offered("jobs")

    def steps(self) -> list[Step]:
        """Steps that run now."""
        self._not_offered("steps")

    def nodes(self) -> list[Node]:
        self._not_offered("nodes")

    def partitions(self) -> list[Partition]:
        self._not_offered("partitions")

    def reservations(self) -> list[Reservation]:
        self._not_offered("reservations")

    def accounting(self, jobs: Sequence[str] = (), since: float | None = None) -> list[PastJob]:
        """Jobs from slurmdbd: those named, else those that ran or waited since then (default: one day)."""
        self._not_offered("accounting")

    def priorities(self) -> list[Priority]:
        self._not_offered("priorities")

    def shares(self) -> list[Share]:
        self._not_offered("fairshare")

    def qos(self) -> list[Qos]:
        self._not_offered("QoS")

    def close(self) -> None:
        """Ends what it keeps running."""


DAY = 86400.0
