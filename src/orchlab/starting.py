"""How the backends of an environment are started side by side, and what happens when Slurm cannot be had beside Kubernetes.

A cluster whose Slurm is missing is of use still: it comes up, `environment.json` keeps the reason, and the command line tells.
"""

from __future__ import annotations

import importlib
import queue
import threading
from types import ModuleType

from orchlab.environment import BACKENDS, Environment, Progress
from orchlab.errors import OrchlabError
from orchlab.processes import ProcessSpec, levels


def acquire(environment: Environment, say: Progress) -> None:
    """Gets what is no engine of ours. Slurm comes as packages that not every machine can have: Kubernetes does without it then."""
    kubernetes = environment.record.kubernetes
    if kubernetes != "none" and hasattr(backend := importlib.import_module(BACKENDS["kubernetes"][kubernetes]), "acquire"):
        backend.acquire(environment, say)
    slurm = environment.record.slurm
    if slurm == "none":
        return
    try:
        importlib.import_module(BACKENDS["slurm"][slurm]).acquire(environment, say)
    except OrchlabError as error:
        if environment.record.kubernetes == "none":
            raise
        environment.record.left_out["slurm"] = str(error)


def port_names(backend: ModuleType, environment: Environment) -> list[str]:
    """The ports that a backend needs: its PORTS, or as many as the fleet asks for; and those of engines that were added."""
    own = list(backend.PORTS) if hasattr(backend, "PORTS") else backend.ports(environment)
    return own + (backend.added_ports(environment) if hasattr(backend, "added_ports") else [])


def engine_names(backend: ModuleType, environment: Environment) -> list[str]:
    """The engines that a backend needs, and those that were added to the environment."""
    return [*backend.ENGINES, *(backend.added_engines(environment) if hasattr(backend, "added_engines") else ())]


def before_stop(environment: Environment) -> None:
    """Lets backends end what their daemons have started and supervisord doesn't know of."""
    for backend in environment.backends():
        if hasattr(backend, "before_stop"):
            backend.before_stop(environment)


def _expected(specs: list[ProcessSpec], held: frozenset[str]) -> list[ProcessSpec]:
    """Without what a fault keeps down, and without what cannot start before it."""
    missing = set(held)
    for level in levels(specs):
        missing |= {spec.name for spec in specs if spec.name in level and missing & set(spec.needs)}
    return [spec for spec in specs if spec.name not in missing]


def side_by_side(environment: Environment, backends: list[ModuleType], say: Progress) -> None:
    """Starts all backends at once. A Slurm that does not come up beside Kubernetes is left out, and noted; the first other failure is
    raised at once, while the rest may still be waiting for what the caller is about to stop."""
    ended: queue.Queue[tuple[ModuleType, BaseException | None]] = queue.Queue()

    def start(backend: ModuleType) -> None:
        try:
            backend.bring_up(environment, say)
            environment.supervisor.wait_ready(
                _expected(backend.processes(environment), environment.held()), progress=lambda ready: say(f"{ready} is ready")
            )
            backend.settle(environment, say)
            ended.put((backend, None))
        except BaseException as error:
            ended.put((backend, error))

    # Daemon threads: after an interruption nobody has to wait for them.
    for backend in backends:
        threading.Thread(target=start, args=(backend,), name=backend.__name__, daemon=True).start()
    for _ in backends:
        backend, error = ended.get()
        if error is None:
            continue
        if not (isinstance(error, OrchlabError) and len(backends) > 1 and backend.__name__ in BACKENDS["slurm"].values()):
            raise error
        environment.record.left_out["slurm"] = str(error)
