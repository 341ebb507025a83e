"""How a lab is proved. Each function raises ProofFailed, which names the file and the cure; none of them knows a particular lab."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import slurm_proof

from orchlab import runner
from orchlab.course import checks, kernels, progress, reset, solutions
from orchlab.course.answers import BROKEN, PASSED
from orchlab.course.folder import LabFolder
from orchlab.course.lab import Lab
from orchlab.course.place import Place, running
from orchlab.environment import Environment
from orchlab.errors import OrchlabError

SANITIZE = Path(__file__).with_name("sanitize.cfg")
NBVAL_SECONDS = 420
# What comes and goes by itself.
PASSING = {"Event", "Lease", "LeaseCandidate", "PeerServerLease", "Node", "ComponentStatus", "IPAddress"}


class ProofFailed(AssertionError):
    def __init__(self, file: str, problem: str, cure: str) -> None:
        super().__init__(f"{file}: {problem}\n    cure: {cure}")


def stored_outputs(lab: LabFolder, environment: str, seconds: float = NBVAL_SECONDS, cell_seconds: int = runner.CELL_SECONDS,
                   all_cells: bool = True) -> None:
    """The untouched notebook gives the outputs that are stored in it (nbval): all, or those of the cells tagged nbval-check-output,
    which are the same on every backend."""
    reset.cluster(lab, environment)
    reset.others(lab, environment)
    with tempfile.TemporaryDirectory() as folder:
        variables = kernels.variables(Environment.load(environment)) | {
            "ORCHLAB_PROGRESS": f"{folder}/progress.json",
            "ORCHLAB_LABS": str(lab.home),
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--nbval" if all_cells else "--nbval-lax",
            f"--nbval-cell-timeout={cell_seconds}",
            f"--nbval-sanitize-with={SANITIZE}",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:timeout",
            "-o",
            "timeout=0",
            "-o",
            "addopts=",
            f"--rootdir={lab.home}",
            str(lab.notebook),
        ]
        try:
            done = subprocess.run(command, env=variables, cwd=lab.home, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise ProofFailed(
                f"labs/{lab.notebook.name}", f"nbval was not done within {seconds:g} s", "shorten the waits in its cells"
            ) from None
    if done.returncode:
        told = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
        raise ProofFailed(
            f"labs/{lab.notebook.name}",
            f"gives other outputs than those stored in it:\n{told[-6000:]}",
            f"if the new ones are right: scripts/execute-labs {lab.number}; if a value is meant to vary: tests/labs/sanitize.cfg",
        )


def solved_run(lab: LabFolder, environment: str, cell_seconds: int = runner.CELL_SECONDS, afresh: bool = True) -> runner.Report:
    """`orchlab run` passes: no cell fails or takes too long, and every check passes with the solutions in place. Without `afresh` on what
    an earlier run has left."""
    report = runner.run(lab.number, environment, cell_seconds=cell_seconds, afresh=afresh)
    how = "with the solutions in place" if afresh else "run a second time, with the solutions in place"
    bear = "" if afresh else "; let it bear what the first run has left"
    if report.error:
        raise ProofFailed(f"labs/{lab.notebook.name}", f"{how}, {report.error}", f"mend that cell, or the solution that it holds{bear}")
    for name, passed in report.passed.items():
        if not passed:
            said = _said(Path(report.notebook), name)
            raise ProofFailed(
                f"labs/{lab.name}/solutions/{lab.solution(name).name}",
                f"did not pass the check in the notebook, {how}, which said: {said}",
                f"mend the solution, or what later cells do to it{bear}",
            )
    return report


def untouched(lab: LabFolder, environment: str) -> None:
    """At the start, and with what an exercise begins with in place, no check passes."""
    _alone(lab, environment)
    opened = open_lab(lab, environment)
    for exercise in lab.file.exercises:
        for begun in (False, True) if exercise.start else (False,):
            if begun:
                opened.start(exercise.name)
            answer = checks.run(opened, exercise.name)
            if answer.status in (PASSED, BROKEN):
                raise ProofFailed(f"labs/{lab.name}/checks.py", f"{exercise.function} answers at the untouched start: {answer}",
                                  "let it ask for what only the learner can have done")


def wrong_answers(lab: LabFolder, environment: str) -> None:
    """Each wrong answer is refused, with the status and the words that its first line gives."""
    _alone(lab, environment)
    for exercise in lab.file.exercises:
        for path in lab.wrong(exercise.name):
            opened = _begin(lab, environment, exercise.name)
            _carry_out(opened, path)
            status, words = solutions.refusal(path)
            answer = checks.run(opened, exercise.name)
            if answer.status != status or words not in str(answer):
                raise ProofFailed(
                    f"labs/{lab.name}/wrong/{path.name}",
                    f"should be refused ({status}) with {words!r}, but the check answers: {answer}",
                    f"mend {exercise.function} in checks.py, or the first line of the wrong answer",
                )


def solutions_pass(lab: LabFolder, environment: str) -> None:
    """One after the other, each solution passes its check, and the earlier ones still do."""
    _alone(lab, environment)
    opened = open_lab(lab, environment)
    for exercise in lab.file.exercises:
        if exercise.start:
            opened.start(exercise.name)
        _carry_out(opened, lab.solution(exercise.name))
        answer = opened.check(exercise.name)
        if not answer.passed:
            raise ProofFailed(f"labs/{lab.name}/solutions/{lab.solution(exercise.name).name}", f"does not pass: {answer}",
                              f"mend the solution, or {exercise.function} in checks.py")


def run_twice_and_reset(lab: LabFolder, environment: str) -> None:
    """A learner's way: Run All as the notebook is gives its stored outputs; then, on what that has left, everything once more with the
    exercises solved. After that, and after the worst mess on top, reset gives back exactly the start."""
    reset.cluster(lab, environment)
    reset.others(lab, environment)
    before = snapshot(lab, environment)
    stored_outputs(lab, environment)
    solved_run(lab, environment, afresh=False)
    _compare(lab, environment, before, "two runs of the notebook")
    make_a_mess(lab, environment)
    _compare(lab, environment, before, "the worst mess (namespace and nodes deleted, a daemon killed)")


def make_a_mess(lab: LabFolder, environment: str) -> None:
    """The worst, of each orchestrator that the lab is about."""
    place = Place(environment, lab.namespace)
    if "slurm" in lab.file.backends:
        slurm_proof.make_a_mess(place.env)
    if "kubernetes" in lab.file.backends:
        _mess_of_kubernetes(place)


def _mess_of_kubernetes(place: Place) -> None:
    """Deletes the namespace and half of the nodes, spoils the others, kills a daemon."""
    place.client.create(f"/api/v1/namespaces/{place.namespace}/configmaps",
                        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "stuck", "finalizers": ["example.com/never"]}})
    place.client.delete(f"/api/v1/namespaces/{place.namespace}")
    for number, node in enumerate(place.list("node")):
        path = f"/api/v1/nodes/{node['metadata']['name']}"
        if number % 2:
            place.client.delete(path)
        else:
            place.client.patch(path, {"metadata": {"labels": {"nvidia.com/gpu.product": "mess", "mess": "yes"}},
                                      "spec": {"unschedulable": True, "taints": [{"key": "mess", "effect": "NoExecute"}]}})
    for state in place.env.health(probe=False):
        if state.name == "kube-scheduler" and state.pid:
            os.kill(state.pid, signal.SIGKILL)


def snapshot(lab: LabFolder, environment: str) -> dict[str, object]:
    """What a reset has to give back, of each orchestrator that the lab is about."""
    place = Place(environment, lab.namespace)
    seen = slurm_proof.snapshot(place.env, lab.namespace) if "slurm" in lab.file.backends else {}
    if "kubernetes" in lab.file.backends:
        seen |= _kubernetes(place)
        for space in lab.namespaces[1:]:
            seen |= {f"{kind} in {space}": names for kind, names in _kubernetes(Place(environment, space), namespaced=True).items()}
    return seen


def _kubernetes(place: Place, namespaced: bool = False) -> dict[str, object]:
    """Names of all cluster-wide objects, what is in the namespace, and the nodes with labels and taints; `namespaced`: what is in the
    namespace alone."""
    seen: dict[str, object] = {}
    for resource in place.resources():
        if "list" in resource.verbs and resource.kind not in PASSING and (resource.namespaced or not namespaced):
            items, _ = place.client.list(resource.path(place.namespace))
            names = {item["metadata"]["name"] for item in items}
            if resource.kind == "Namespace":
                names = {name for name in names if name == place.namespace or not name.startswith("lab-")}
            seen[f"{resource.kind} ({resource.api_version})"] = names
    for node in [] if namespaced else place.list("node"):
        labels = {key: value for key, value in node["metadata"]["labels"].items() if not key.startswith("beta.")}
        taints = sorted(
            f"{t['key']}:{t['effect']}" for t in node["spec"].get("taints", []) if not t["key"].startswith("node.kubernetes.io/not-ready")
        )
        seen[f"node {node['metadata']['name']}"] = (labels, taints, bool(node["spec"].get("unschedulable")))
    return seen


def _alone(lab: LabFolder, environment: str) -> None:
    """At its start, and no other lab's pods hold anything."""
    reset.cluster(lab, environment)
    reset.others(lab, environment)


def open_lab(lab: LabFolder, environment: str) -> Lab:
    """The lab as a notebook opens it, in this process."""
    return Lab(lab.number, environment, quiet=True)


def _compare(lab: LabFolder, environment: str, before: dict[str, object], after_what: str) -> None:
    reset.cluster(lab, environment)
    after = snapshot(lab, environment)
    changed = [
        f"{key}: {before.get(key)} → {after.get(key)}" for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)
    ]
    if changed:
        raise ProofFailed(
            f"labs/{lab.notebook.name}",
            f"after {after_what}, reset leaves a difference:\n  " + "\n  ".join(changed),
            "make cluster-wide objects with %%apply (reset finds them by its field manager), all others in the lab's namespace",
        )
    left = [name for name in lab.file.environments if running(name)]
    if left:
        raise ProofFailed(f"labs/{lab.name}/lab.toml", f"after reset, environments still run: {left}", "see that reset can take them down")


def _begin(lab: LabFolder, environment: str, exercise: str) -> Lab:
    reset.cluster(lab, environment)
    opened = open_lab(lab, environment)
    wanted = lab.exercise(exercise)
    for name in wanted.after:
        if lab.exercise(name).start:
            opened.start(name)
        _carry_out(opened, lab.solution(name))
    if wanted.start:
        opened.start(exercise)
    return opened


def _carry_out(opened: Lab, path: Path) -> None:
    try:
        solutions.carry_out(opened, path)
    except OrchlabError as error:
        folder = opened.folder.folder
        raise ProofFailed(
            f"labs/{folder.name}/{path.relative_to(folder)}", f"cannot be run: {error}", "mend the cell that it stands for"
        ) from error


def _said(notebook: Path, exercise: str) -> str:
    """What the check printed in an executed notebook."""
    for cell in reversed(nbformat.read(notebook, as_version=4).cells):
        if cell.cell_type == "code" and "lab.check" in cell.source and exercise in cell.source:
            return " ".join(output.get("data", {}).get("text/plain", output.get("text", "")) for output in cell.outputs)
    return f"(nothing; progress says {progress.load()})"
