"""One client for Slurm, the same whichever way it asks: the commands, slurmrestd or pyslurm."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from orchlab.environment import Environment
from orchlab.errors import BadInput, EnvironmentBroken, TimeLimitReached
from orchlab.slurm import layout as layouts
from orchlab.slurm import pyslurm_transport
from orchlab.slurm.commands import Commands
from orchlab.slurm.errors import NotOffered, SlurmError
from orchlab.slurm.layout import Layout
from orchlab.slurm.model import Job, Node, Partition, PastJob, Priority, Qos, Reservation, Share, Step
from orchlab.slurm.request import JobRequest
from orchlab.slurm.rest import TOKEN_SECONDS, Rest
from orchlab.slurm.transport import Transport

T = TypeVar("T")
TRANSPORTS = ("commands", "rest", "pyslurm")


class Client:
    """Asks the first of `transports` that offers what is wanted. Every call has a time limit. Raises SlurmError with Slurm's own text when
    it refuses, TimeLimitReached, EnvironmentBroken when Slurm cannot be reached. `note` hears of each job that is submitted.
    A context manager."""

    def __init__(self, transports: Sequence[Transport], note: Callable[[int], None] = lambda job: None) -> None:
        if not transports:
            raise EnvironmentBroken(
                "there is no way to reach Slurm: no commands on PATH, no slurmrestd, no pyslurm", "orchlab up --slurm local"
            )
        self.transports, self._note = list(transports), note

    @classmethod
    def of(cls, env: Environment, transport: str | None = None, seconds: float = 20) -> Client:
        """For an environment; `transport` (commands, rest, pyslurm) allows that one only. Raises EnvironmentBroken if it has no Slurm."""
        if env.record.slurm == "none" or "slurm" in env.record.left_out:
            why = env.record.left_out.get("slurm", "it was brought up without")
            raise EnvironmentBroken(f"environment {env.name!r} has no Slurm: {why}", f"orchlab up --name {env.name} --slurm local")
        if env.record.slurm == "existing":
            from orchlab.slurm import existing

            return cls(_choose(transport, existing.ways(env, seconds)), existing.note(env))
        layout = layouts.of(env)
        variables = layout.variables()
        variables["PATH"] = f"{variables['PATH']}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        commands = Commands(variables, seconds)
        return cls(
            _choose(
                transport,
                {
                    "commands": lambda: commands,
                    "rest": lambda: Rest(
                        f"http://127.0.0.1:{env.port('slurmrestd')}" if env.record.slurm == "docker" else f"unix:{layout.rest_socket}",
                        lambda: token(commands),
                        seconds=seconds,
                        environment=_job_environment(env, variables),
                    ),
                    "pyslurm": lambda: _pyslurm(env, variables, seconds),
                },
            )
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for transport in self.transports:
            transport.close()

    def _ask(self, operation: str, *arguments):
        refused: NotOffered | None = None
        for transport in self.transports:
            try:
                return getattr(transport, operation)(*arguments)
            except NotOffered as error:
                refused = refused or error
        raise refused

    def version(self) -> str:
        """Slurm's version (pyslurm: its own)."""
        return self._ask("version")

    def submit(self, script: str, **options) -> int:
        """Submits a batch script; options as in JobRequest. Returns the job's id. Raises BadInput for an option that there is not."""
        job = self._ask("submit", _request(script, options))
        self._note(job)
        return job

    def test(self, script: str, **options) -> str:
        """`sbatch --test-only`: what Slurm would do with a batch script, in its words. Submits nothing. Raises as `submit` does."""
        return self._ask("test", _request(script, options))

    def cancel(self, job: int | str, signal: str = "") -> None:
        """Ends a job, a whole array or one task ("7_3"); with `signal` (e.g. "USR1") sends that to it instead."""
        self._ask("cancel", str(job), signal)

    def hold(self, job: int | str) -> None:
        """Keeps a waiting job from starting (reason JobHeldUser)."""
        self._ask("hold", str(job))

    def release(self, job: int | str) -> None:
        """Lets a held job start."""
        self._ask("release", str(job))

    def requeue(self, job: int | str) -> None:
        """Puts a running or ended batch job back into the queue."""
        self._ask("requeue", str(job))

    def jobs(self, job: int | str | None = None) -> list[Job]:
        """Jobs that slurmctld knows: all, or those of one job id (an array's tasks, a heterogeneous job's parts)."""
        found: list[Job] = self._ask("jobs")
        return found if job is None else [item for item in found if _belongs(item, str(job))]

    def job(self, job: int | str) -> Job:
        """One job. Raises SlurmError with Slurm's words if slurmctld doesn't know it (any more)."""
        found = self.jobs(job)
        if not found:
            raise SlurmError("Invalid job id specified", f"slurmctld does not know job {job}", "ended jobs are in accounting")
        return next((item for item in found if str(item.id) == str(job)), found[0])

    def queue(self) -> list[Job]:
        """Jobs that wait or run, those that run first, then by falling priority: squeue's list with its reasons."""
        active = [job for job in self.jobs() if not job.ended_for_good]
        return sorted(active, key=lambda job: (job.state == "PENDING", -(job.priority or 0), job.id))

    def steps(self, job: int | str | None = None) -> list[Step]:
        """Steps that run now; one job's if it is named."""
        return [step for step in self._ask("steps") if job is None or step.id.split(".")[0].split("_")[0] == str(job)]

    def nodes(self) -> list[Node]:
        return self._ask("nodes")

    def partitions(self) -> list[Partition]:
        return self._ask("partitions")

    def reservations(self) -> list[Reservation]:
        return self._ask("reservations")

    def accounting(self, jobs: Sequence[int | str] = (), since: float | None = None) -> list[PastJob]:
        """Jobs from accounting: those named (an array's id gives its tasks), else all since then (seconds since 1970; default: one day)."""
        return self._ask("accounting", [str(job) for job in jobs], since)

    def priorities(self) -> list[Priority]:
        """The parts of each waiting job's priority."""
        return self._ask("priorities")

    def shares(self) -> list[Share]:
        """Fairshare by account and user."""
        return self._ask("shares")

    def qos(self) -> list[Qos]:
        return self._ask("qos")

    def wait(
        self, job: int | str, condition: Callable[[list[Job]], T] | None = None, seconds: float = 60, stop: threading.Event | None = None
    ) -> T | list[Job]:
        """Asks about once a second, for at most `seconds`, until `condition(jobs)` is true (default: all have ended), and returns its
        value or
        the jobs. Raises TimeLimitReached with the last states and reasons."""
        deadline = time.monotonic() + seconds
        pause = 0.2
        while True:
            found = self.jobs(job)
            done = condition(found) if condition else (found and all(item.ended_for_good for item in found))
            if done:
                return done if condition else found
            if time.monotonic() > deadline or (stop and stop.is_set()):
                seen = (
                    ", ".join(f"{item.label} {item.state}{f' ({item.reason})' if item.reason else ''}" for item in found[:6])
                    or "slurmctld does not know it"
                )
                raise TimeLimitReached(
                    f"job {job} after {seconds:g} s: {seen}", "squeue shows the queue; orchlab logs slurmctld what Slurm did"
                )
            (stop.wait if stop else time.sleep)(pause)
            pause = min(1.0, pause * 1.5)


def _request(script: str, options: dict) -> JobRequest:
    try:
        return JobRequest(script, **options)
    except TypeError:
        unknown = next(name for name in options if name not in JobRequest.__dataclass_fields__)
        raise BadInput(
            unknown, options[unknown], "is not an option of a job", f"use one of {', '.join(JobRequest.__dataclass_fields__)}"
        ) from None


def _job_environment(env: Environment, variables: dict[str, str]) -> dict[str, str]:
    """What a job here needs to call Slurm's commands; in containers they are at home."""
    return variables | Layout(env.folder).programs().environment if env.record.slurm == "local" else {}


class PySlurmIfThere(pyslurm_transport.PySlurm):
    """Asked only where a pyslurm is installed."""

    def _ask(self, operation: str, **arguments):
        if self._worker is None and not pyslurm_transport.installed():
            raise NotOffered("pyslurm is not installed", "orchlab doctor says which one goes with this Slurm")
        return super()._ask(operation, **arguments)


def _pyslurm(env: Environment, variables: dict[str, str], seconds: float) -> Transport:
    if env.record.slurm == "docker":
        from orchlab.slurm.pyslurm_docker import PySlurmInLogin

        return PySlurmInLogin(env, seconds)
    return PySlurmIfThere(variables, seconds)


def token(commands: Commands) -> str:
    """A JSON web token for the caller, made by slurmctld."""
    return commands.run("scontrol", "token", f"lifespan={TOKEN_SECONDS}").strip().removeprefix("SLURM_JWT=")


def _choose(transport: str | None, ways: dict[str, Callable[[], Transport]]) -> list[Transport]:
    if transport is None:
        return [make() for make in ways.values()]
    if transport not in TRANSPORTS:
        raise BadInput("transport", transport, "is not a way to reach Slurm", f"use one of {', '.join(TRANSPORTS)}")
    if transport not in ways:
        raise EnvironmentBroken(f"this cluster offers no {transport}", f"it offers {', '.join(ways)}")
    return [ways[transport]()]


def _belongs(job: Job, wanted: str) -> bool:
    return wanted in (str(job.id), str(job.array_id), str(job.het_id), job.label)
