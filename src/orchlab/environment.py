"""A named lab environment: its state folder, ports, credentials, lock; and how it comes up and goes down.

What it runs is declared by its backends (orchlab.kube.local and its siblings); this module only carries that out.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType

from orchlab.errors import BadInput, EnvironmentBroken, OrchlabError
from orchlab.locks import locked
from orchlab.paths import cache_home, private_folder, state_home, write_private
from orchlab.supervisor import MARK, ProcessState, Supervisor

SCHEMA = 1
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")
DISK_NEEDED = 500 * 1024 * 1024
BACKENDS = {"kubernetes": {"local": "orchlab.kube.local", "kind": "orchlab.kube.kind"}, "slurm": {"local": "orchlab.slurm.local", "docker": "orchlab.slurm.docker",
                                                                         "existing": "orchlab.slurm.existing"}}
COMING = {"kubernetes": ("existing",), "slurm": ()}

Progress = Callable[[str], None]


@dataclass
class Record:
    """environment.json. `clock` is simulated seconds per real second; `engines` the binaries that `up` chose, by engine; `faults` what
    orchlab.faults broke on purpose, as {"kind", "target"}; `left_out` says why an
    orchestrator that was asked for could not be had at the last `up`; `addons` the optional engines that orchlab.kube.addons added."""

    id: str
    name: str
    created: float
    kubernetes: str = "local"
    slurm: str = "local"
    clock: float = 60.0
    ports: dict[str, int] = field(default_factory=dict)
    fleet: dict = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    faults: list[dict[str, str]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    addons: list[str] = field(default_factory=list)
    schema: int = SCHEMA


class Environment:
    """One environment as recorded on disk. Get it by `Environment.load` or `up`."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.name = record.name
        self.folder = state_home() / record.name
        self.slurm_access: tuple[str | None, str] = (None, "")  # what `up` was given for an existing Slurm: address and token

    @classmethod
    def load(cls, name: str = "default") -> Environment:
        """Raises EnvironmentBroken if there is none of that name, or if its record cannot be read."""
        path = _folder(name) / "environment.json"
        try:
            data = json.loads(path.read_text())
        except FileNotFoundError:
            raise EnvironmentBroken(f"there is no environment {name!r}", f"orchlab up --name {name}") from None
        except (OSError, ValueError) as error:
            raise EnvironmentBroken(f"{path} cannot be read: {error}", f"orchlab down --purge --name {name}, then orchlab up --name {name}") from None
        if data.get("schema") != SCHEMA:
            raise EnvironmentBroken(f"environment {name!r} has schema {data.get('schema')}; this orchlab knows {SCHEMA}",
                                    f"use the orchlab that made it, or orchlab down --purge --name {name}")
        known = {f.name for f in fields(Record)}
        return cls(Record(**{key: value for key, value in data.items() if key in known}))

    def save(self) -> None:
        write_private(self.folder / "environment.json", json.dumps(asdict(self.record), indent=1) + "\n")

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig. Nothing is ever written to ~/.kube/config."""
        return self.folder / "kubeconfigs" / "admin.kubeconfig"

    @property
    def clock(self):
        from orchlab.clock import Clock

        return Clock(self.record.clock)

    @property
    def fleet(self):
        from orchlab.fleet import from_data

        return from_data(self.record.fleet)

    @cached_property
    def supervisor(self) -> Supervisor:
        return Supervisor(self.folder)

    def port(self, name: str) -> int:
        return self.record.ports[name]

    def client(self, connections: int = 16):
        """A raw client with the administrator's certificate."""
        from orchlab.kube.client import Client

        if not self.kubeconfig.exists():
            raise EnvironmentBroken(f"environment {self.name!r} has no Kubernetes", f"orchlab up --name {self.name}")
        return Client.from_kubeconfig(self.kubeconfig, connections=connections)

    def backends(self) -> list[ModuleType]:
        chosen = (("kubernetes", self.record.kubernetes), ("slurm", self.record.slurm))
        return [importlib.import_module(BACKENDS[kind][name]) for kind, name in chosen if name != "none" and kind not in self.record.left_out]

    def nodes(self) -> list:
        """The fleet's nodes (FleetNode) with the labels that the Kubernetes backend gives them. Raises EnvironmentBroken without one."""
        if self.record.kubernetes == "none":
            raise EnvironmentBroken(f"environment {self.name!r} has no Kubernetes", f"orchlab up --name {self.name} --kubernetes local")
        return importlib.import_module(BACKENDS["kubernetes"][self.record.kubernetes]).nodes(self)

    def specs(self) -> list:
        """What this environment runs. Raises EnvironmentBroken before the first `up`."""
        if not self.record.engines:
            raise EnvironmentBroken(f"environment {self.name!r} has not been started yet", f"orchlab up --name {self.name}")
        return [spec for backend in self.backends() for spec in backend.processes(self)]

    def running(self) -> bool:
        """Whether any of its processes or containers runs."""
        return self.supervisor.running() or any(backend.running(self) for backend in self.backends() if hasattr(backend, "running"))

    def held(self) -> frozenset[str]:
        """Processes that a fault keeps down: healing leaves them so."""
        return frozenset(fault["target"] for fault in self.record.faults if fault["kind"] == "daemon-down")

    def health(self, probe: bool = True) -> list[ProcessState]:
        """One state per process, and per container."""
        held = self.held()
        states = self.supervisor.states(self.specs(), self.record.ports, probe)
        states += [state for backend in self.backends() if hasattr(backend, "health") for state in backend.health(self, probe)]
        return [replace(state, detail=f"held down: orchlab fault clear daemon-down {state.name}") if state.name in held else state for state in states]

    def variables(self) -> dict[str, str]:
        """What a shell needs to use this environment; PATH is to be put in front of the user's own."""
        variables = {"ORCHLAB_ENVIRONMENT": self.name, "PATH": str(Path(sys.executable).parent)}
        if self.record.kubernetes != "none":
            variables["KUBECONFIG"] = str(self.kubeconfig)
        for backend in self.backends():
            more = backend.variables(self) if hasattr(backend, "variables") else {}
            variables |= more | ({"PATH": f"{more['PATH']}:{variables['PATH']}"} if "PATH" in more else {})
        return variables

    @contextlib.contextmanager
    def lock(self, seconds: float = 120, progress: Progress | None = None) -> Iterator[None]:
        """Held while the environment changes. Raises TimeLimitReached when another process keeps it longer than `seconds`."""
        with locked(self.name, seconds, progress):
            yield


def names() -> list[str]:
    """All environments, by name."""
    home = state_home()
    return sorted(path.parent.name for path in home.glob("*/environment.json")) if home.is_dir() else []


def up(name: str = "default", kubernetes: str | None = None, slurm: str | None = None, fleet: Path | dict | None = None, clock: float | None = None,
       progress: Progress | None = None, new_ports: bool = False, slurm_url: str | None = None, slurm_token: str = "") -> Environment:
    """Brings an environment up, or heals it; idempotent. What is not given stays as it was (at first: both local, default fleet, factor 60).

    `slurm_url` and `slurm_token` lead to an existing Slurm's slurmrestd; "none" is for the commands on PATH.

    Raises BadInput, EngineUnavailable, EnvironmentBroken or TimeLimitReached. When it raises on an environment that was not running, nothing is
    left running.
    """
    say = progress or (lambda text: None)
    _known("--kubernetes", "kubernetes", kubernetes)
    _known("--slurm", "slurm", slurm)
    folder = _folder(name)
    with _explained(folder):
        private_folder(state_home())
        with locked(name, 120, progress):
            private_folder(folder)
            _check_disk(folder)
            environment = _load_or_make(name)
            record = environment.record
            _choose(record, kubernetes, slurm, fleet, clock)
            if slurm_url and record.slurm != "existing":
                raise BadInput("--slurm-url", slurm_url, f"is for an existing Slurm, and this one is {record.slurm}", "add --slurm existing")
            environment.slurm_access = ("" if slurm_url == "none" else slurm_url, slurm_token)
            return _bring_up(environment, say, new_ports)


def _bring_up(environment: Environment, say: Progress, new_ports: bool) -> Environment:
    from orchlab import engines, ports, starting

    record, supervisor = environment.record, environment.supervisor
    record.left_out = {}
    wanted = [engine for backend in environment.backends() for engine in starting.engine_names(backend, environment)]
    binaries = engines.ensure(wanted, progress=say.engine if hasattr(say, "engine") else None)
    record.engines = {engine: str(path) for engine, path in binaries.items()}
    starting.acquire(environment, say)
    backends = environment.backends()
    running = supervisor.running()
    ports.assign(environment, [port for backend in backends for port in starting.port_names(backend, environment)], new_ports and not running)
    environment.save()
    for backend in backends:
        backend.prepare(environment)
    specs = environment.specs()
    ports.check(environment, specs, running)
    fresh = not running
    say("starting the processes")
    try:
        supervisor.start(specs, base_variables(environment.folder), environment.held())
        starting.side_by_side(environment, backends, say)
        if environment.record.left_out:
            supervisor.start(environment.specs(), base_variables(environment.folder), environment.held())
            environment.save()
        _stop_containers(environment.name, environment.folder, keep=environment)
    except BaseException:
        if fresh:
            say("stopping what was started")
            starting.before_stop(environment)
            supervisor.stop(specs)
            _stop_containers(environment.name, environment.folder)
        raise
    return environment


def down(name: str = "default", purge: bool = False, progress: Progress | None = None) -> bool:
    """Stops everything of an environment; with `purge` its folder goes too. Returns whether there was anything. Safe to repeat."""
    from orchlab import starting

    folder = _folder(name)
    if not folder.exists():
        return False
    with _explained(folder), locked(name, 120, progress):
        supervisor = Supervisor(folder)
        try:
            environment = Environment.load(name)
            specs = environment.specs()
        except OrchlabError:  # an unreadable record or an `up` that was cut short must not keep us from cleaning up
            environment, specs = None, []
        if progress:
            progress("stopping the processes")
        if specs:
            starting.before_stop(environment)
        supervisor.stop(specs)
        left = supervisor.kill_leftovers()
        if left:
            raise EnvironmentBroken(f"processes {left} of environment {name!r} do not end", "stop them by hand: kill -9 " + " ".join(map(str, left)))
        # After the processes: an engine that does not answer must not keep those.
        _stop_containers(name, folder, purge, progress)
        for backend in environment.backends() if environment else []:
            backend.clean(environment)
            if purge and hasattr(backend, "leave"):
                backend.leave(environment, progress)
        if environment and environment.record.faults:
            environment.record.faults.clear()
            environment.save()
        if purge:
            shutil.rmtree(folder)
    return True


def _stop_containers(name: str, folder: Path, purge: bool = False, progress: Progress | None = None, keep: Environment | None = None) -> None:
    """Containers are not supervisord's: those of an environment that is to have none (any more) are removed; those that `keep` has stay."""
    for kind, backend, left in (("slurm", "docker", "slurm-docker"), ("kubernetes", "kind", "kind")):
        kept = keep is not None and getattr(keep.record, kind) == backend and kind not in keep.record.left_out
        if not kept and (folder / left).is_dir():
            importlib.import_module(BACKENDS[kind][backend]).stop(name, folder, purge, progress)


# -- pieces of up


def _known(option: str, kind: str, value: str | None) -> None:
    if value in (None, "none", *BACKENDS[kind]):
        return
    if value in COMING[kind]:
        raise BadInput(option, value, "this backend is not there yet", f"use {' or '.join(['none', *BACKENDS[kind]])}")
    raise BadInput(option, value, f"is not one of {', '.join(['none', *BACKENDS[kind], *COMING[kind]])}")


def _folder(name: str) -> Path:
    if not NAME.fullmatch(name):
        raise BadInput("--name", name, "may have lower-case letters, digits and inner dashes only, 30 at most", "for example: --name team-a")
    return state_home() / name


def _load_or_make(name: str) -> Environment:
    if (_folder(name) / "environment.json").exists():
        return Environment.load(name)
    return Environment(Record(id=str(uuid.uuid4()), name=name, created=time.time()))


def _choose(record: Record, kubernetes: str | None, slurm: str | None, fleet: Path | dict | None, clock: float | None) -> None:
    from orchlab import fleet as fleets
    from orchlab.clock import Clock

    record.kubernetes = kubernetes or record.kubernetes
    record.slurm = slurm or record.slurm
    record.clock = Clock(record.clock if clock is None else clock).factor
    if record.kubernetes == "none" and record.slurm == "none":
        raise BadInput("--kubernetes", "none", "with no Slurm either there is nothing to bring up")
    if isinstance(fleet, dict):
        record.fleet = fleets.from_data(fleet).model_dump(mode="json")
    elif fleet is not None or not record.fleet:
        record.fleet = fleets.load(fleet).model_dump(mode="json")


def base_variables(folder: Path) -> dict[str, str]:
    """A clean environment: no proxies, no PYTHONPATH, no Kubernetes settings of the user's."""
    kept = {name: os.environ[name] for name in ("HOME", "USER", "LOGNAME", "LANG", "TZ", "ORCHLAB_HOME", "ORCHLAB_CACHE", "XDG_STATE_HOME", "XDG_CACHE_HOME")
            if name in os.environ}
    temporary = private_folder(folder / "tmp")
    return kept | {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(temporary), MARK: str(folder)}


def _check_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < DISK_NEEDED:
        raise EnvironmentBroken(f"only {free // 2**20} MiB are free in {folder}; {DISK_NEEDED // 2**20} MiB are needed",
                                "free space there, or set ORCHLAB_HOME to a folder on another disk; orchlab engines --prune frees the cache")


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turns what the operating system refuses into a sentence with a remedy."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EnvironmentBroken(f"the disk is full: {where}", "free space there, or set ORCHLAB_HOME to a folder on another disk") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            raise EnvironmentBroken(f"{where} cannot be written: {error.strerror}",
                                    f"make it yours (ls -ld {where}), or set ORCHLAB_HOME (state) or ORCHLAB_CACHE (now {cache_home()}) to a folder of yours") from error
        raise
