"""What a notebook imports: `lab = Lab("01")`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from IPython import get_ipython

from orchlab import faults
from orchlab.course import added_engines, fleets, folder, kubectl, magics, manifests, pods, progress, slurm_side
from orchlab.course.answers import Answer, Text
from orchlab.course.place import Place
from orchlab.course.slurm_side import SlurmSide
from orchlab.environment import BACKENDS, Environment
from orchlab.errors import BadInput, TimeLimitReached
from orchlab.fleet_nodes import with_real_kubelet

# Processes that stand in for machines; all others are engines as their projects release them.
SIMULATED = {"kwok", "simulator", "gpu-operator"}
# Neither: it puts Kueue's webhooks into the cluster and takes them out.
OURS = {"kueue-webhooks"}
# What kubectl prints of each object: "deployment.apps/web serverside-applied".
_KUBECTL_DID = re.compile(r"(\S+)/(\S+) \S")


class Lab(SlurmSide):
    """One lab, attached to an environment: the one named, else $ORCHLAB_ENVIRONMENT, else "default".

    Makes the lab's namespace (and its fleet, if it has one) and leaves what is in it alone, so a restarted kernel attaches to the same
    state. Raises BadInput for an unknown lab, EnvironmentBroken if the environment is not up. Methods that wait take `seconds` and
    raise TimeLimitReached.
    """

    def __init__(self, which: str | int, environment: str | None = None, quiet: bool = False) -> None:
        self.folder = folder.lab(which)
        self.file = self.folder.file
        self.home = environment or os.environ.get("ORCHLAB_ENVIRONMENT") or "default"
        self.place = Place(self.home, self.folder.namespace)
        self._enter(self.place)
        changed = fleets.enter(self.folder, self.home)
        self._open(self.place)
        if changed:
            self.place = Place(self.home, self.folder.namespace)
        if shell := get_ipython():
            magics.register(shell, self)
        if not quiet:
            print(self.describe() + (f"\nnote         {changed}" if changed else ""))

    def _enter(self, place: Place) -> None:
        """Raises BadInput or EnvironmentBroken if the environment lacks what the lab is about."""
        for kind, backends in self.file.backends.items():
            backend = getattr(place.env.record, kind)
            if kind == "slurm":
                slurm_side.require(place.env)
            if backend not in backends:
                why = ": it changes its cluster, which orchlab never does to an existing one" if backend == "existing" else ""
                raise BadInput(kind, backend, f"lab {self.folder.number} does not run on it{why}", f"it runs on {', '.join(backends)}")

    def _open(self, place: Place) -> None:
        if "kubernetes" in self.file.backends:
            for space in self.folder.namespaces:
                Place(place.env.name, space).ensure_namespace()
        if "slurm" in self.file.backends:
            slurm_side.require(place.env)

    # -- where we are

    @property
    def number(self) -> str:
        return self.folder.number

    @property
    def namespace(self) -> str:
        return self.place.namespace

    @property
    def env(self):
        return self.place.env

    @property
    def client(self):
        return self.place.client

    def on(self, backend: str) -> bool:
        """Whether this environment's Kubernetes is that backend; where it is not, one line says so: `if lab.on("kind"): ...`. Raises
        BadInput for a backend that there is not."""
        if backend not in BACKENDS["kubernetes"]:
            raise BadInput("backend", backend, f"is not one of {', '.join(BACKENDS['kubernetes'])}")
        here = self.env.record.kubernetes
        if here != backend:
            print(f"Only on {backend}; environment {self.env.name} is {here}. To see it: orchlab up --name real --kubernetes {backend}, "
                  f'then Lab("{self.number}", "real").')
        return here == backend

    def describe(self) -> Text:
        """Which lab, environment and namespace this is; what is real and what is simulated."""
        env, nodes = self.env, self.env.fleet.nodes()
        gpus = sum(node.gpus for node in nodes)
        lines = [f"Lab {self.number}, {self.file.title}: about {self.file.minutes} minutes, {len(self.file.exercises)} exercises"]
        if "kubernetes" in self.file.backends:
            backend = env.record.kubernetes
            lines += [
                f"environment  {env.name}: Kubernetes {self.place.version}, backend {backend}, {len(nodes)} nodes, {gpus} GPUs",
                f"namespace{'s' if self.file.namespaces else ' '}   {', '.join(self.folder.namespaces)}",
                *_made_of(env),
            ]
            lines += [f"note         {note}" for note in self._others()]
        if "slurm" in self.file.backends:
            lines += slurm_side.banner(env, self.slurm.version())
        return Text("\n".join(lines))

    def _others(self) -> list[str]:
        """Other labs whose pods hold GPUs of this cluster: they change what fits."""
        held: dict[str, int] = {}
        for pod in self.place.list("pod", namespace=""):
            space = pod["metadata"]["namespace"]
            if (
                space not in self.folder.namespaces
                and space.startswith("lab-")
                and pod["spec"].get("nodeName")
                and pods.phase(pod) in ("Pending", "Running")
            ):
                held[space] = held.get(space, 0) + pods.gpus(pod)
        return [
            f"{space} holds {count} GPUs; `orchlab reset {space.removeprefix('lab-')[:2]}` frees them" for space, count in held.items() if count
        ]

    def use(self, environment: str | None = None) -> Text:
        """From here on %kubectl, %%apply and the rest speak to another environment; without an argument, to the lab's own again."""
        place = Place(environment or self.home, self.folder.namespace)
        self._open(place)
        self.place = place
        words = {"kubernetes": f"%kubectl and %%apply now speak to environment {place.env.name}, namespace {place.namespace}",
                 "slurm": f"%slurm and %%sbatch now speak to environment {place.env.name}"}
        return Text("\n".join(words[kind] for kind in self.file.backends))

    def at(self, environment: str) -> Place:
        """Another environment, without turning to it. Raises EnvironmentBroken if it is not there."""
        return Place(environment, self.folder.namespace)

    def path(self, name: str) -> Path:
        """A file of the lab's folder: the one beside the notebook (yours to edit) if there is one, else the original."""
        mine = Path.cwd() / self.folder.name / name
        found = mine if mine.exists() else self.folder.folder / name
        if not found.exists():
            raise BadInput("path", name, f"is not in labs/{self.folder.name}/")
        return found

    # -- doing

    def apply(self, text: str) -> int:
        """Applies YAML server-side, as written, and prints what kubectl says. Returns kubectl's exit status."""
        if magics.is_empty(text):
            print(magics.NOTHING)
            return 0
        return kubectl.run(
            self.env, self.namespace, ["apply", "--server-side", "--force-conflicts", f"--field-manager={self.manager}", "-f", "-"], text
        )

    @property
    def manager(self) -> str:
        """The field manager under which this lab applies; reset finds cluster-wide objects by it."""
        return f"orchlab-{self.folder.namespace}"

    def kubectl(self, *arguments: str, seconds: float = kubectl.SECONDS) -> Text:
        """What the real kubectl answers, as text."""
        lines: list[str] = []
        kubectl.run(self.env, self.namespace, arguments, None, seconds, lines.append)
        return Text("".join(lines).rstrip("\n"))

    def submit(self, source: str | Path) -> Text:
        """Applies a manifest of yours, a file or an http(s) address, and says where its pods went. Shows it first, as it is."""
        manifest = manifests.read(source, [Path.cwd(), self.folder.home])
        for line in manifest.notes:
            print(line)
        print(manifest.text.rstrip(), end="\n\n")
        verb = (
            ["create"] if manifest.generates_names else ["apply", "--server-side", "--force-conflicts", f"--field-manager={self.manager}"]
        )
        said: list[str] = []
        status = kubectl.run(self.env, self.namespace, [*verb, "-f", "-"], manifest.text, out=said.append)
        print("".join(said), end="")
        if status:
            return Text("nothing was placed: the API server refused it, in the words above")
        return self._placed({(word[1].split(".")[0], word[2]) for word in map(_KUBECTL_DID.match, said) if word})

    def _placed(self, made: set[tuple[str, str]], seconds: float = 15) -> Text:
        """Where the pods of these (kind, name) are, once they are settled."""
        if not any(kind in manifests.MAKE_PODS for kind, _ in made):
            return Text("it makes no pods by itself")
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = self.place.pods_of(made)
            return bool(found) and all(pods.settled(pod) for pod in found)

        try:
            self.place.until(look, seconds, "")
        except TimeLimitReached:
            return Text(f"{pods.table(found)}\n(after {seconds:g} s, not all of it is settled)")
        return pods.table(found)

    def fault(self, kind: str, target: str = "") -> Text:
        """Breaks something on purpose; healing leaves it broken until `mend` or `reset`. `orchlab fault list` lists the kinds."""
        return Text(f"{faults.cause(self.env, kind, target)}: {faults.KINDS[kind].shows}")

    def mend(self) -> Text:
        """Clears all faults of the environment that the lab speaks to."""
        return Text("cleared: " + (", ".join(map(str, faults.clear(self.env))) or "nothing was broken on purpose"))

    def add_engine(self, name: str) -> Text:
        """Adds an optional engine ("kueue" or "coscheduling") to the environment that the lab speaks to; one that is there is healed. It is built the first
        time, which takes minutes and is shown. `reset` removes it. Raises what `orchlab.kube.addons.add` raises."""
        return added_engines.add(self.env, name)

    def remove_engine(self, name: str) -> Text:
        """Removes it, with all its objects; Jobs and pods stay."""
        return added_engines.remove(self.env, name)

    def load(self, stem: str):
        """A Python file of the lab's folder, as a module: lab.load("parts") reads parts.py."""
        return self.folder.module(stem)

    def widget(self, name: str = "build", **options: Any):
        """The widget that a function of the lab's widget.py makes."""
        return getattr(self.folder.module("widget"), name)(self, **options)

    # -- looking

    def pods(self, selector: str = "") -> list[dict[str, Any]]:
        """The pods of the lab's namespace as the API has them, by name."""
        return self.place.list("pod", selector)

    def get(self, target: str) -> dict[str, Any] | None:
        """An object by "kind/name", or None."""
        return self.place.get(target)

    def show(self, selector: str = "") -> Text:
        """Where the pods are: one line each, and the scheduler's words for those that are pending."""
        return pods.table(self.pods(selector))

    def processes(self) -> Text:
        """The environment's processes for what the lab is about: the real engines, and those that stand in for machines."""
        about = {BACKENDS[kind][getattr(self.env.record, kind)] for kind in self.file.backends}
        names = set()
        for backend in (backend for backend in self.env.backends() if backend.__name__ in about):
            states = backend.health(self.env, probe=False) if hasattr(backend, "health") else []
            names |= {part.name for part in (*backend.processes(self.env), *states)}
        lines = [f"{'process':<24}  {'':<9}  {'state':<9}  memory"]
        for state in (state for state in self.env.health() if state.name in names):
            kind = "simulated" if state.name in SIMULATED else "orchlab" if state.name in OURS else "real"
            word = "healthy" if state.healthy else state.state.lower()
            lines.append(f"{state.name:<24}  {kind:<9}  {word:<9}  {state.memory // 2**20} MiB")
        return Text("\n".join(lines))

    def wait(self, target: str | int, state: str | None = None, seconds: float = 30) -> Text:
        """Waits for an object, "kind/name". For a pod: until it runs, has ended or was declared unschedulable, or until a phase; for others
        until a condition is True; "deleted" for all. For a Slurm job, by its number: see `wait_job`. Raises TimeLimitReached with what was
        last seen."""
        if isinstance(target, int):
            return self.wait_job(target, state, seconds)
        return self.place.wait(target, state, seconds)

    def until(self, look: Callable[[], Any], seconds: float = 30, what: str = "it did not happen") -> Any:
        """Calls `look` until it returns something true and returns that. Raises TimeLimitReached with `what`."""
        return self.place.until(look, seconds, what)

    # -- exercises

    def check(self, exercise: str) -> Answer:
        """Looks at the live cluster: passed, not yet (what is missing), wrong (why), environment broken (what to run)."""
        from orchlab.course import checks

        answer = checks.run(self, exercise)
        progress.note(self.folder, exercise, answer=answer)
        return answer

    def hint(self, exercise: str) -> Text:
        """The next hint of the exercise's ladder. Hints cost nothing; they are counted."""
        return next_hint(self.folder, exercise)

    def start(self, exercise: str) -> None:
        """Shows and applies what the exercise begins with. What is there already stays as it is. A .ipy file is carried out unseen: it
        breaks something, and finding out what is the exercise."""
        path = self.folder.folder / self.folder.exercise(exercise).start
        if not path.is_file():
            raise BadInput("exercise", exercise, "begins with nothing: there is nothing to apply")
        if path.suffix == ".ipy":
            self.break_for(exercise, path)
            return
        print(path.read_text(encoding="utf-8").rstrip(), end="\n\n")
        self.apply(path.read_text(encoding="utf-8"))

    def solve(self, exercise: str) -> Text:
        """Shows the solution and runs it."""
        from orchlab.course import solutions

        path = self.folder.solution(exercise)
        if self.folder.exercise(exercise).start:
            self.start(exercise)
        print(solutions.cell(path), end="\n\n")
        solutions.carry_out(self, path)
        progress.note(self.folder, exercise, solved=True)
        return Text(f'Now look at it: lab.check("{exercise}")')

    def reset(self) -> Text:
        """Brings the lab back to its start, however broken it is: daemons, nodes, namespace. Notebook and progress stay."""
        from orchlab.course import reset

        steps = reset.cluster(self.folder, self.home)
        self.place = Place(self.home, self.folder.namespace)
        return Text("\n".join(steps))

    def progress(self) -> Text:
        """What you have done in this lab."""
        return progress.table([self.folder], detailed=True)


def next_hint(lab: folder.LabFolder, exercise: str) -> Text:
    """The next hint of an exercise, counted; after the last one, the last one again. Raises BadInput for a name that there is not."""
    hints = lab.exercise(exercise).hints
    number = min(progress.of(lab, exercise)["hints"] + 1, len(hints))
    progress.note(lab, exercise, hints=number)
    last = f'\nThat was the last hint. lab.solve("{exercise}") shows the solution and runs it.' if number == len(hints) else ""
    return Text(f"Hint {number} of {len(hints)}: {hints[number - 1]}{last}")


def _made_of(env: Environment) -> list[str]:
    """What is real in the cluster of an environment and what is not."""
    decided = "real         the API server, etcd, the scheduler and the controllers: every decision is theirs"
    if env.record.kubernetes != "kind":
        return [decided, f"simulated    nodes, GPUs, containers and how long they run ({env.clock.describe()})"]
    real = ", ".join(node.name for node in with_real_kubelet(env.fleet.nodes()))
    return [decided, f"             the kubelets, containers and device plugins of {real}",
            f"simulated    all GPUs, the other nodes, and how long pods run ({env.clock.describe()})"]
