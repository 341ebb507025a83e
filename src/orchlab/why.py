"""Which orchestrator a "why" is about, and its answer: the one door for `orchlab why` and `lab.why`.

A target is KIND/NAME; `slurm/` or `kubernetes/` in front of it says outright whose it is, a namespace that it is Kubernetes'. Without that a
job's number is a Slurm job's: job/7, job/7_3; job/train is Kubernetes'.
Each orchestrator is one entry of ORCHESTRATORS, which says what it claims and how it answers.
"""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from pathlib import Path

from orchlab.diagnosis import Diagnosis, unknown
from orchlab.environment import Environment
from orchlab.errors import BadInput, EnvironmentBroken
from orchlab.kube import why as kubernetes
from orchlab.kube.client import Client as KubeClient
from orchlab.slurm import existing
from orchlab.slurm import why as slurm
from orchlab.slurm.client import Client


@dataclass(frozen=True)
class Answer:
    """`target` as it can be asked for again: job/7, node/a100-0, pod/train -n team-a, or the path of a script."""

    orchestrator: str
    target: str
    diagnosis: Diagnosis

    def __str__(self) -> str:
        return f"{self.target}\n{self.diagnosis}"

    def to_json(self) -> dict:
        """Plain JSON values: orchestrator, target, cause, evidence, remedy, known."""
        return {"orchestrator": self.orchestrator, "target": self.target} | asdict(self.diagnosis)

    def to_html(self) -> str:
        """A fragment; all words are escaped, for they come from the cluster."""
        found = self.diagnosis
        seen = "".join(f"<li>{html.escape(line)}</li>" for line in found.evidence)
        remedy = f"<p>→ {html.escape(found.remedy)}</p>" if found.remedy else ""
        return (f'<section style="border-left:6px solid {"#0072B2" if found.known else "#999999"};padding:2px 10px;margin:6px 0">'
                f"<code>{html.escape(self.target)}</code><p><b>{html.escape(found.cause)}</b></p><ul>{seen}</ul>{remedy}</section>")

    def _repr_html_(self) -> str:
        return self.to_html()


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

    def answer(self, env: Environment, kind: str, name: str, namespace: str = "") -> list[Answer]:
        with Client.of(env) as client:
            if kind == "node":
                return [Answer(self.name, f"node/{name}", slurm.node(client, name))]
            return [Answer(self.name, f"job/{label}", diagnosis) for label, diagnosis in slurm.jobs(client, name)]

    def everything(self, env: Environment, namespace: str = "") -> list[Answer]:
        # On a cluster of many one looks for one's own.
        user = existing.user(env) if env.record.slurm == "existing" else ""
        with Client.of(env) as client:
            return [Answer(self.name, target, diagnosis) for target, diagnosis in slurm.everything(client, user)]

    @staticmethod
    def reads(text: str) -> bool:
        return text.startswith("#!")

    def refused(self, env: Environment, path: Path, text: str, namespace: str = "") -> list[Answer]:
        with Client.of(env) as client:
            return [Answer(self.name, str(path), slurm.script(client, text))]


class Kubernetes:
    """Pods, their controllers and nodes: of an environment, or of a cluster that a client of one's own leads to."""

    name = "kubernetes"
    forms = kubernetes.FORMS

    def __init__(self, client: KubeClient | None = None) -> None:
        self._client = client

    def there(self, env: Environment) -> bool:
        return self._client is not None or (env.record.kubernetes != "none" and "kubernetes" not in env.record.left_out)

    @staticmethod
    def claims(kind: str, name: str) -> bool:
        return kind in kubernetes.KINDS

    def answer(self, env: Environment, kind: str, name: str, namespace: str = "") -> list[Answer]:
        return self._all(kubernetes.ask(self._client or env.client(), kind, name, namespace))

    def everything(self, env: Environment, namespace: str = "") -> list[Answer]:
        return self._all(kubernetes.everything(self._client or env.client(), namespace))

    @staticmethod
    def reads(text: str) -> bool:
        return not text.startswith("#!")

    def refused(self, env: Environment, path: Path, text: str, namespace: str = "") -> list[Answer]:
        return self._all(kubernetes.refused(self._client or env.client(), text, str(path), namespace or "default"))

    def _all(self, found: kubernetes.Answers) -> list[Answer]:
        return [Answer(self.name, target, diagnosis) for target, diagnosis in found]


ORCHESTRATORS = (Slurm(), Kubernetes())


def ask(env: Environment | None, target: str = "", namespace: str = "", among: tuple = ORCHESTRATORS) -> list[Answer]:
    """Answers about one target, or without one about all that waits or is out of service. A `namespace` ("-n NAME" behind the target too)
    narrows Kubernetes' part, and makes a target Kubernetes'. `among`: the orchestrators to ask. Raises BadInput for a target that nobody
    claims, and what the orchestrators' clients raise."""
    target, _, given = target.partition(" -n ")
    namespace = given.strip() or namespace
    if target:
        orchestrator, kind, name = _claimed(env, target, bool(given), among)
        return orchestrator.answer(env, kind, name, namespace)
    there = [one for one in among if one.there(env)]
    if not there:
        raise EnvironmentBroken(f"environment {env.name!r} has no {' or '.join(one.name.capitalize() for one in among)} to ask",
                                f"orchlab up --name {env.name}")
    answers = []
    for one in there:
        try:
            answers += one.everything(env, namespace)
        except EnvironmentBroken as error:
            if len(there) == 1:
                raise
            answers.append(Answer(one.name, one.name, unknown([str(error)], "orchlab status")))
    return answers


def refused(env: Environment | None, path: Path, namespace: str = "", among: tuple = ORCHESTRATORS) -> list[Answer]:
    """What would be refused of a file: a batch script begins with #!, a manifest is YAML or JSON, with an answer for each object. Nothing is
    submitted. Raises BadInput."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("-f", str(path), f"cannot be read: {error}") from None
    for one in among:
        if one.reads(text):
            return one.refused(env, path, text, namespace)
    raise BadInput("-f", str(path), "is a batch script, and only Kubernetes is asked", "leave --kubeconfig and --context out")


def elsewhere(kubeconfig: Path, context: str | None = None) -> tuple[Kubernetes]:
    """The cluster of a kubeconfig that is somebody else's, for `among`: it is only looked at. Raises BadInput."""
    if not kubeconfig.is_file():
        raise BadInput("--kubeconfig", str(kubeconfig), "there is no such file", "give its path, or set KUBECONFIG")
    return (Kubernetes(KubeClient.from_kubeconfig(kubeconfig, context)),)


def _claimed(env: Environment | None, target: str, namespaced: bool, among: tuple) -> tuple[Slurm | Kubernetes, str, str]:
    words = target.split("/")
    named = [one for one in among if one.name == words[0]]
    rest = words[1:] if named else words
    if len(rest) == 2 and all(rest):
        claiming = [one for one in named or among if one.claims(rest[0], rest[1])]
        # One that is not there is asked only if nobody else could be meant: it says itself that it is not there.
        there = [one for one in claiming if env is None or one.there(env)] or claiming
        if namespaced:
            there = [one for one in there if one.name == Kubernetes.name]
        if there:
            return there[0], rest[0], rest[1]
    forms = "; ".join(f"{one.name.capitalize()}: {', '.join(one.forms)}" for one in among)
    raise BadInput("target", target, "is nothing that can be asked about", f"write it as one of {forms}")
