"""Slurm by its commands: --json where the release has it for that command, else output that is meant for parsing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from orchlab.errors import EnvironmentBroken, TimeLimitReached
from orchlab.slurm import errors, shapes, versions
from orchlab.slurm.model import Job, Node, Partition, PastJob, PastStep, Priority, Qos, Reservation, Share, Step
from orchlab.slurm.request import JobRequest, minutes
from orchlab.slurm.transport import DAY, Transport

# Settings of the caller that would change what a command does or prints.
_MEDDLING = re.compile(
    r"(SBATCH|SQUEUE|SINFO|SACCT|SCANCEL|SPRIO|SSHARE|SCONTROL|SLURM_TIME_FORMAT|SLURM_JOB|SLURM_TASK|SLURM_STEP|SLURM_CLUSTERS)"
)


_PAST = (
    "JobIDRaw",
    "JobID",
    "JobName",
    "User",
    "Account",
    "Partition",
    "QOS",
    "State",
    "NodeList",
    "AllocTRES",
    "Submit",
    "Start",
    "End",
    "ElapsedRaw",
    "ExitCode",
)


class Commands(Transport):
    """`environment` comes on top of the caller's; its PATH says where the commands are (default: the caller's PATH)."""

    name = "commands"

    def __init__(self, environment: Mapping[str, str] | None = None, seconds: float = 20) -> None:
        super().__init__(seconds)
        kept = {name: value for name, value in os.environ.items() if not _MEDDLING.match(name)}
        self._environment = kept | {"SLURM_TIME_FORMAT": "%s"} | dict(environment or {})

    def run(
        self,
        command: str,
        *arguments: str,
        text: str | None = None,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
        all_of_it: bool = False,
    ) -> str:
        """What a command prints, with `all_of_it` its messages too. Raises SlurmError, EnvironmentBroken if there is no such command, TimeLimitReached."""
        path = shutil.which(command, path=self._environment.get("PATH"))
        if path is None:
            raise EnvironmentBroken(f"there is no {command} on PATH", 'eval "$(orchlab env)" puts Slurm\'s commands there')
        if folder and not Path(folder).is_dir():
            raise EnvironmentBroken(f"{folder} is not a folder", "make it, or give another working directory")
        try:
            done = subprocess.run(
                [path, *arguments],
                input=text or "",
                capture_output=True,
                text=True,
                timeout=self.seconds,
                check=False,
                cwd=folder,
                env=self._environment | dict(environment or {}),
            )
        except subprocess.TimeoutExpired:
            raise TimeLimitReached(
                f"{command} got no answer within {self.seconds:g} s", "see whether the daemons run: orchlab status"
            ) from None
        if done.returncode or (command == "scancel" and "scancel: error:" in done.stderr):
            raise errors.from_command(done.stderr or done.stdout, command)
        return done.stdout + done.stderr if all_of_it else done.stdout

    def _json(self, command: str, *arguments: str) -> dict:
        answer = json.loads(self.run(command, "--json", *arguments))
        for error in answer.get("errors") or []:
            raise errors.from_words(error.get("error") or error.get("description") or "unknown error", error.get("description") or "")
        return answer

    def _rows(self, command: str, *arguments: str) -> list[list[str]]:
        return [line.split("|") for line in self.run(command, *arguments).splitlines() if "|" in line]

    def _records(self, *arguments: str) -> list[dict[str, str]]:
        """scontrol's KEY=VALUE words, one object a line. A value may hold blanks: it ends where the next key begins."""
        lines = self.run("scontrol", "--oneliner", *arguments).splitlines()
        return [dict(re.findall(r"(\w+)=(.*?)(?=\s+\w+=|\s*$)", line)) for line in lines if "=" in line]

    @cached_property
    def _release(self) -> versions.Release:
        return versions.parse(self.version())

    def version(self) -> str:
        return self.run("sinfo", "--version").split()[-1]

    def submit(self, request: JobRequest) -> int:
        # The job's environment is the caller's; sbatch reads the script from its input and its #SBATCH lines itself.
        folder = request.chdir or None
        said = self.run("sbatch", "--parsable", *request.options(), text=request.script, folder=folder, environment=request.environment)
        return int(said.strip().split(";")[0])

    def test(self, request: JobRequest) -> str:
        words = ("--test-only", *request.options())
        environment = {"SLURM_TIME_FORMAT": "standard"} | dict(request.environment)
        return self.run("sbatch", *words, text=request.script, folder=request.chdir or None, environment=environment, all_of_it=True)

    def cancel(self, job: str, signal: str = "") -> None:
        # Only with -v does it say that it found no such job; its status is 0 all the same.
        self.run("scancel", "-v", *([f"--signal={signal}"] if signal else []), str(job))

    def hold(self, job: str) -> None:
        self.run("scontrol", "hold", str(job))

    def release(self, job: str) -> None:
        self.run("scontrol", "release", str(job))

    def requeue(self, job: str) -> None:
        self.run("scontrol", "requeue", str(job))

    def jobs(self) -> list[Job]:
        return sorted((shapes.job(item) for item in self._json("squeue", "--all", "--states=all")["jobs"]), key=lambda job: job.id)

    def steps(self) -> list[Step]:
        rows = self._rows("squeue", "--all", "--noheader", "--steps", "-o", "%i|%j|%N|%S")
        return [
            Step(label, name, "RUNNING", shapes.hosts(nodes), float(start) if start.isdecimal() else None)
            for label, name, nodes, start in rows
        ]

    def nodes(self) -> list[Node]:
        if "scontrol" in versions.json_commands(self._release):
            return [shapes.node(item) for item in self._json("scontrol", "show", "nodes")["nodes"]]
        return [shapes.node(item) for item in self._json("sinfo")["nodes"]]

    def partitions(self) -> list[Partition]:
        return [
            Partition(
                found["PartitionName"],
                found.get("State", ""),
                shapes.hosts(found.get("Nodes", "")),
                _limit(found.get("MaxTime")),
                _limit(found.get("DefaultTime")),
                int(found["MaxNodes"]) if found.get("MaxNodes", "").isdecimal() else None,
                int(found.get("PriorityTier", 0)),
            )
            for found in self._records("show", "partition")
        ]

    def reservations(self) -> list[Reservation]:
        return [
            Reservation(
                found["ReservationName"],
                shapes.hosts(found.get("Nodes", "")),
                _names(found.get("Users")),
                _names(found.get("Accounts")),
                _moment(found.get("StartTime")),
                _moment(found.get("EndTime")),
                _names(found.get("Flags")),
            )
            for found in self._records("show", "reservation")
            if "ReservationName" in found
        ]

    def accounting(self, jobs: Sequence[str] = (), since: float | None = None) -> list[PastJob]:
        # Not --json: 22.05 gives every exit code as 0 there, and the times that it writes down for itself need the standard format.
        begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since if since is not None else time.time() - DAY))
        which = [f"--jobs={','.join(map(str, jobs))}"] if jobs else []
        text = self.run(
            "sacct",
            "--allusers",
            "--noheader",
            "--parsable2",
            f"--starttime={begin}",
            f"--format={','.join(_PAST)}",
            *which,
            environment={"SLURM_TIME_FORMAT": "standard"},
        )
        return past_jobs(dict(zip(_PAST, line.split("|"), strict=False)) for line in text.splitlines() if line)

    def priorities(self) -> list[Priority]:
        rows = self._rows("sprio", "--noheader", "-o", "%i|%u|%Y|%A|%F|%J|%P|%Q")
        return [Priority(job.strip(), user.strip(), *(float(part) for part in parts)) for job, user, *parts in rows]

    def shares(self) -> list[Share]:
        rows = self._rows(
            "sshare", "--all", "--noheader", "--parsable2", "--format=Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare"
        )
        return [
            Share(account.strip(), user, raw, _float(norm), int(usage or 0), _float(effective), _float(fair))
            for account, user, raw, norm, usage, effective, fair in rows
        ]

    def qos(self) -> list[Qos]:
        rows = self._rows(
            "sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name,priority,preempt,preemptmode,maxtrespu,grptres"
        )
        return [
            Qos(name, int(priority or 0), tuple(shapes.words(preempt)), mode, per_user, group)
            for name, priority, preempt, mode, per_user, group in rows
        ]


def past_jobs(rows: Iterable[Mapping[str, str]]) -> list[PastJob]:
    """sacct's rows, by its field names: a job, then its steps (JobIDRaw has a dot)."""
    found: dict[str, dict] = {}
    steps: dict[str, list[PastStep]] = {}
    for row in rows:
        number, _, step = row["JobIDRaw"].partition(".")
        code, signal = (int(part) for part in (row["ExitCode"] or "0:0").split(":"))
        state = shapes.state(row["State"].split(" ")[0])[0]  # CANCELLED by 1000
        if step:
            steps.setdefault(number, []).append(
                PastStep(f"{number}.{step}", row["JobName"], state, _stamp(row["Start"]), _stamp(row["End"]), code)
            )
            continue
        array = re.fullmatch(r"(\d+)_(\d+)", row["JobID"])
        found[number] = {
            "id": int(number),
            "name": row["JobName"],
            "user": row["User"],
            "account": row["Account"],
            "partition": row["Partition"],
            "qos": row["QOS"],
            "state": state,
            "array_id": int(array[1]) if array else None,
            "array_task": int(array[2]) if array else None,
            "nodes": shapes.hosts(row["NodeList"]),
            "tres": shapes.tres(row["AllocTRES"]),
            "submitted": _stamp(row["Submit"]),
            "started": _stamp(row["Start"]),
            "ended": _stamp(row["End"]),
            "elapsed": int(row["ElapsedRaw"] or 0),
            "exit_code": code,
            "exit_signal": signal,
        }
    return [PastJob(**job, steps=tuple(steps.get(number, ()))) for number, job in found.items()]


def _stamp(text: str) -> float | None:
    """A local time as Slurm writes it; None for Unknown."""
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")) if text[:1].isdigit() else None


def _limit(text: str | None) -> int | None:
    return None if text in (None, "", "NONE", "UNLIMITED", "INFINITE") else minutes(text) * 60


def _moment(text: str | None) -> float | None:
    return float(text) if text and text.isdecimal() else None


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(word for word in (text or "").split(",") if word and word != "(null)")


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
