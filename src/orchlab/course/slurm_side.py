"""What a Lab can do with Slurm. Everything goes to the environment that the lab speaks to at the moment."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orchlab import faults
from orchlab import why as whys
from orchlab.course.answers import Text
from orchlab.environment import Environment
from orchlab.errors import BadInput, EnvironmentBroken, TimeLimitReached
from orchlab.paths import private_folder
from orchlab.slurm import daemons, existing, feed, notebook
from orchlab.slurm import layout as layouts
from orchlab.slurm.client import Client
from orchlab.slurm.model import Job, PastJob

if TYPE_CHECKING:
    from orchlab.course.folder import LabFolder
    from orchlab.course.place import Place

NOTHING = "nothing to submit: there is no script here yet"
REAL = ("slurmctld, slurmdbd with MariaDB, munged, slurmrestd, a slurmd per node: every decision is theirs. "
        "Your scripts really run, on this machine")
SIMULATED = "nodes, their CPUs, memory and GPUs; what orchlab-sleep stands for"
# Slurm has no watches: one question a second and view, however often a cell is run again.
_feeds: dict[str, feed.Feed] = {}
_SUBMITTED = re.compile(r"^(?:Submitted batch job )?(\d+)(?:;\S+)?$", re.MULTILINE)


def work_folder(env: Environment, lab: LabFolder) -> Path:
    """Where the lab's jobs are submitted and write their output. Its `scripts` is the lab's own folder of that name: the learner's copy
    beside the notebook if there is one and jobs can see it, else the original."""
    folder = private_folder(private_folder(env.folder / "work") / lab.namespace)
    mine = Path.cwd() / lab.name / "scripts"
    wanted, link = mine if mine.is_dir() and daemons.sees(env, mine) else lab.folder / "scripts", folder / "scripts"
    if wanted.is_dir() and not (link.is_symlink() and link.readlink() == wanted):
        link.unlink(missing_ok=True)
        link.symlink_to(wanted)
    return folder


def first_job(env: Environment, lab: LabFolder) -> int:
    """The lowest job id that belongs to the lab's present attempt: earlier ones are from before the last reset."""
    try:
        return int((env.folder / "work" / lab.namespace / ".first-job").read_text())
    except (OSError, ValueError):
        return 1


def require(env: Environment) -> None:
    """Raises EnvironmentBroken, with what to do, if the environment is without Slurm."""
    again = "" if env.name == "default" else f" --name {env.name}"
    if why := env.record.left_out.get("slurm"):
        raise EnvironmentBroken(f"environment {env.name!r} came up without its Slurm: {why}",
                                f"orchlab doctor --fix, then orchlab up{again}")
    if env.record.slurm == "none":
        raise EnvironmentBroken(f"environment {env.name!r} has no Slurm", f"orchlab up{again} --slurm local")


class Reasons(Text):
    """Answers to "why" as text; a notebook shows them as HTML."""

    answers: tuple[whys.Answer, ...] = ()

    @classmethod
    def of(cls, answers: list[whys.Answer]) -> Reasons:
        text = cls("\n\n".join(map(str, answers)) or "nothing waits, and no node is out of service")
        text.answers = tuple(answers)
        return text

    def _repr_html_(self) -> str | None:
        return "".join(answer.to_html() for answer in self.answers) or None


class SlurmSide:
    """A part of Lab. Methods that wait take `seconds` and raise TimeLimitReached."""

    folder: LabFolder
    place: Place

    @property
    def slurm(self) -> Client:
        """orchlab's client for this Slurm: lab.slurm.nodes(), .job(7), .accounting([7]) …"""
        env = self.place.env
        known: dict[str, Client] = self.__dict__.setdefault("_slurm_clients", {})
        if env.record.id not in known:
            known[env.record.id] = Client.of(env)
        return known[env.record.id]

    def slurm_feed(self, key: str, only: Callable[[Job], bool] | None = None) -> feed.Feed:
        """A running feed for a view; an earlier one with the same key is stopped."""
        if earlier := _feeds.pop(key, None):
            earlier.stop()
        env = self.place.env
        ours = env.record.slurm != "existing"
        _feeds[key] = feed.Feed(Client.of(env), env.fleet.nodes() if ours else [], only, simulated="all" if ours else "").start()
        return _feeds[key]

    @property
    def work(self) -> Path:
        """The folder in which %slurm and %%sbatch work."""
        return work_folder(self.place.env, self.folder)

    def command(self, line: str, seconds: float = notebook.SECONDS, text: str | None = None) -> Text:
        """What one of Slurm's commands prints, as %slurm would show it."""
        return Text(notebook.slurm(self.place.env, line, self.work, seconds, text).rstrip("\n"))

    def sbatch(self, script: str, options: str = "") -> int | None:
        """Submits a script as %%sbatch does, prints sbatch's own words, and returns the job's id; None if sbatch refused."""
        if all(not line.strip() or line.lstrip().startswith("#") for line in script.splitlines()):
            print(NOTHING)
            return None
        if {"--wait", "-W"} & set(options.split()):
            raise BadInput("%%sbatch", options, "would block the notebook", "leave --wait out and wait with lab.wait(job, \"ended\")")
        said = self.command(f"sbatch {options}", text=script if script.startswith("#!") else f"#!/bin/bash\n{script}")
        print(said)
        found = _SUBMITTED.search(said)
        return int(found[1]) if found else None

    def jobs(self, name: str = "") -> list[Job]:
        """The jobs of this attempt (since the last reset) that slurmctld knows, by id; with a name those of that name only, from accounting
        where slurmctld has forgotten them (after MinJobAge): without limit, restarts and reason."""
        first = first_job(self.place.env, self.folder)
        found = [job for job in self.slurm.jobs() if (job.array_id or job.het_id or job.id) >= first and name in ("", job.name)]
        if found or not name:
            return found
        return [_remembered(job) for job in self.slurm.accounting() if (job.array_id or job.id) >= first and name == job.name]

    def wait_job(self, job: int | str, state: str | None = None, seconds: float = 60) -> Text:
        """Waits for a job, by its id. `state`: one of Slurm's states or reasons (RUNNING, Dependency …), "ended", or None: until it runs,
        has ended, or waits for a reason. Returns one sentence."""
        def there(found: list[Job]) -> bool:
            if state == "ended":
                return bool(found) and all(one.ended_for_good for one in found)
            if state:
                return any(state in (one.state, one.reason) for one in found)
            return bool(found) and all(one.state != "PENDING" or one.reason not in ("", "None") for one in found)

        self.slurm.wait(job, there, seconds)
        return sentence(self.slurm.jobs(job))

    def why(self, target: str | int = "") -> Reasons:
        """Cause, evidence and remedy: of a pod, Job, Deployment or ReplicaSet ("pod/train", in the lab's namespace; "pod/train -n NAMESPACE" in
        another), of a Slurm job ("job/7", or its number) or node ("node/a100-0"), or of all that waits or is broken."""
        return Reasons.of(whys.ask(self.place.env, f"job/{target}" if isinstance(target, int) else target, self.place.namespace))

    def output(self, job: int | str, seconds: float = 5) -> Text:
        """What a job has written to its standard output; an array's tasks one after the other."""
        def look() -> list[Path]:
            said = notebook.slurm(self.place.env, f"scontrol show job -o {job}")
            return [path for path in map(Path, re.findall(r" StdOut=(\S+)", said)) if path.is_file()]

        try:
            files = self.place.until(look, seconds, "")
        except TimeLimitReached:
            return Text(f"job {job} has written nothing yet")
        return Text("\n".join(path.read_text(errors="replace").rstrip("\n") for path in dict.fromkeys(sorted(files, key=_task_last))))

    def conf(self, name: str) -> Path:
        """One of Slurm's files: slurm.conf, gres.conf, munge.key … On a cluster of several machines each has a copy of its own."""
        layout = layouts.of(self.place.env)
        for folder in (layout.etc, layout.keys):
            if (folder / name).is_file():
                return folder / name
        known = sorted(path.name for folder in (layout.etc, layout.keys) for path in folder.glob("*.*"))
        raise BadInput("conf", name, "is none of Slurm's files", f"one of: {', '.join(known)}")

    def log(self, process: str, pattern: str, lines: int = 5) -> Text:
        """The last lines of a daemon's log that match a regular expression."""
        found = [line for line in daemons.log(self.place.env, process, 2000).splitlines() if re.search(pattern, line)]
        return Text("\n".join(found[-lines:]) or f"{process} has said nothing like that")

    def break_for(self, exercise: str, path: Path) -> None:
        """Carries out what an exercise begins with, once until the next reset: what was mended since stays mended."""
        from orchlab.course import solutions

        if not self.broken_for(exercise):
            solutions.carry_out(self, path)
            (self.work / f".broken-{exercise}").touch()
        print("Something is broken now.")

    def broken_for(self, exercise: str) -> bool:
        """Whether lab.start has broken something for that exercise since the last reset."""
        return (self.work / f".broken-{exercise}").exists()

    def restart(self, process: str) -> Text:
        """Restarts a daemon, or starts it if it is down: what systemctl restart does on a machine of its own."""
        env = Environment.load(self.place.env.name)
        if process in env.held():
            faults.clear(env, "daemon-down", process)
        else:
            daemons.restart(env, process)
        return Text(f"{process} was started")


def banner(env: Environment, version: str) -> list[str]:
    """Lab.describe's lines about Slurm."""
    if env.record.slurm == "existing":
        return existing.banner(env, version)
    nodes = env.fleet.nodes()
    gpus = sum(node.gpus for node in nodes)
    return [f"environment  {env.name}: Slurm {version}, backend {env.record.slurm}, {len(nodes)} nodes, {gpus} GPUs",
            f"real         {REAL}", f"simulated    {SIMULATED} ({env.clock.describe()})"]


def sentence(found: list[Job]) -> Text:
    """For example "job 17 (train) RUNNING on h100-1" or "job 20: 4 RUNNING, 20 PENDING (JobArrayTaskLimit)"."""
    if not found:
        return Text("slurmctld does not know it")
    if len(found) > 1 or found[0].array_tasks:
        states: Counter[str] = Counter()
        for job in found:
            states[job.state + _why(job)] += len(feed.tasks(job.array_tasks)) if job.array_tasks else 1
        first = min(job.array_id or job.het_id or job.id for job in found)
        return Text(f"job {first} ({found[0].name}): " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    job = found[0]
    where = f" on {', '.join(job.nodes)}" if job.nodes else ""
    code = f", exit status {job.exit_code}" if job.exit_code else ""
    return Text(f"job {job.label} ({job.name}) {job.state}{_why(job)}{code}{where}")


def _remembered(job: PastJob) -> Job:
    return Job(job.id, job.name, job.user, job.account, job.partition, job.qos, job.state, array_id=job.array_id, array_task=job.array_task,
               nodes=job.nodes, node_count=len(job.nodes), tres=job.tres, submitted=job.submitted, started=job.started, ended=job.ended,
               exit_code=job.exit_code or 0, exit_signal=job.exit_signal)


def _why(job: Job) -> str:
    return f" ({job.reason})" if job.state == "PENDING" and job.reason not in ("", "None") else ""


def _task_last(path: Path) -> list:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]
