"""Which orchestrator a "why" is about, and its answer: the one door for `orchlab why` and `lab.why`.

A target is KIND/NAME; `slurm/` in front of it says outright whose it is. Without that a job's number is a Slurm job's: job/7, job/7_3.
Each orchestrator is one entry of ORCHESTRATORS, which says what it claims and how it answers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from orchlab.diagnosis import Diagnosis
from orchlab.environment import Environment
from orchlab.errors import BadInput, EnvironmentBroken
from orchlab.slurm import existing
from orchlab.slurm import why as slurm
from orchlab.slurm.client import Client


@dataclass(frozen=True)
class Answer:
    """`target` as it can be asked for again: job/7, node/a100-0, or the path of a script."""

    orchestrator: str
    target: str
    diagnosis: Diagnosis

    def __str__(self) -> str:
        return f"{self.target}\n{self.diagnosis}"

    def to_json(self) -> dict:
        """Plain JSON values: orchestrator, target, cause, evidence, remedy, known."""
        return {"orchestrator": self.orchestrator, "target": self.target} | asdict(self.diagnosis)


class Slurm:
    """Jobs and nodes of the environment's Slurm, whichever backend it has."""

    name = "slurm"
    forms = ("job/ID", "job/ID_TASK", "node/NAME")

    @staticmethod
    def there(env: Environment) -> bool:
        return env.record.slurm != "none" and "slurm" not in env.record.left_out

    @staticmethod
    def claims(kind: str, name: str) -> bool:
        return kind == "node" or (kind == "job" and slurm.JOB.fullmatch(name) is not None)

    def answer(self, env: Environment, kind: str, name: str) -> list[Answer]:
        with Client.of(env) as client:
            if kind == "node":
                return [Answer(self.name, f"node/{name}", slurm.node(client, name))]
            return [Answer(self.name, f"job/{label}", diagnosis) for label, diagnosis in slurm.jobs(client, name)]

    def everything(self, env: Environment) -> list[Answer]:
        # On a cluster of many one looks for one's own.
        user = existing.user(env) if env.record.slurm == "existing" else ""
        with Client.of(env) as client:
            return [Answer(self.name, target, diagnosis) for target, diagnosis in slurm.everything(client, user)]

    @staticmethod
    def reads(text: str) -> bool:
        return text.startswith("#!")

    def refused(self, env: Environment, path: Path, text: str) -> Answer:
        with Client.of(env) as client:
            return Answer(self.name, str(path), slurm.script(client, text))


ORCHESTRATORS = (Slurm(),)


def ask(env: Environment, target: str = "") -> list[Answer]:
    """Answers about one target, or without one about all that waits or is out of service. Raises BadInput for a target that nobody claims,
    and what the orchestrators' clients raise."""
    if target:
        orchestrator, kind, name = _claimed(target)
        return orchestrator.answer(env, kind, name)
    there = [one for one in ORCHESTRATORS if one.there(env)]
    if not there:
        raise EnvironmentBroken(f"environment {env.name!r} has no {' or '.join(one.name.capitalize() for one in ORCHESTRATORS)} to ask",
                                f"orchlab up --name {env.name} --slurm local")
    return [answer for one in there for answer in one.everything(env)]


def refused(env: Environment, path: Path) -> Answer:
    """What would be refused of a file: a batch script begins with #!. Nothing is submitted. Raises BadInput."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("-f", str(path), f"cannot be read: {error}") from None
    for one in ORCHESTRATORS:
        if one.reads(text):
            return one.refused(env, path, text)
    raise BadInput("-f", str(path), "is no batch script: it does not begin with #!", "the first line names the interpreter: #!/bin/bash")


def _claimed(target: str) -> tuple[Slurm, str, str]:
    words = target.split("/")
    named = [one for one in ORCHESTRATORS if one.name == words[0]]
    rest = words[1:] if named else words
    if len(rest) == 2 and all(rest):
        for one in named or ORCHESTRATORS:
            if one.claims(rest[0], rest[1]):
                return one, rest[0], rest[1]
    forms = ", ".join(form for one in ORCHESTRATORS for form in one.forms)
    raise BadInput("target", target, "is nothing that can be asked about", f"write it as one of: {forms}")
