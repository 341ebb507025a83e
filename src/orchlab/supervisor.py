"""Runs an environment's processes under supervisord: one supervisord per environment, spoken to over a unix socket in its folder.

supervisord restarts what dies. Should it be killed itself, launch.py has bound each process's life to it, and the next `up` starts anew.
"""

from __future__ import annotations

import http.client
import os
import shlex
import signal
import socket
import subprocess
import time
import xmlrpc.client
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchlab import launch
from orchlab.errors import BadInput, EnvironmentBroken, TimeLimitReached
from orchlab.paths import interpreter, private_folder, write_private
from orchlab.processes import NotReady, ProcessSpec, levels

MARK = "ORCHLAB_ENVIRONMENT_FOLDER"
RETRIES = 6
LOG_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True)
class ProcessState:
    """One process as it is now. `state` is supervisord's word (RUNNING, STOPPED, BACKOFF, FATAL …); `since` seconds since the epoch; memory in bytes."""

    name: str
    state: str
    since: float
    pid: int
    memory: int
    ports: dict[str, int]
    healthy: bool
    detail: str


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = str(path)

    def make_connection(self, host):

        connection = http.client.HTTPConnection("localhost", timeout=30)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(30)
        connection.sock.connect(self._path)
        return connection


class Supervisor:
    """supervisord of the environment in `folder`; all its processes carry that path in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.identity = folder / "supervisor", str(folder)
        self.logs = folder / "logs"
        self.socket = self.folder / "sock"
        if len(str(self.socket)) > 100:  # the kernel's limit for a unix socket's path is 107 bytes, supervisord adds a pid for a moment
            raise BadInput("ORCHLAB_HOME", str(folder.parent), "is too long a path for a unix socket", "set ORCHLAB_HOME to a shorter folder")

    # -- what runs

    def running(self) -> bool:
        return self._ask("getState", default=None) is not None

    def states(self, specs: Iterable[ProcessSpec], ports: dict[str, int], probe: bool = True) -> list[ProcessState]:
        """One state per spec, asked side by side."""
        infos = {info["name"]: info for info in self._ask("getAllProcessInfo", default=[])}
        with ThreadPoolExecutor(max_workers=16) as pool:
            return list(pool.map(lambda spec: self._state(spec, infos.get(spec.name), ports, probe), specs))

    def _state(self, spec: ProcessSpec, info: dict | None, ports: dict[str, int], probe: bool) -> ProcessState:
        mine = {name: ports[name] for name in spec.ports if name in ports}
        # STARTING is supervisord's word for the first second; the probe knows better.
        if info is None or not info["pid"] or info["statename"] not in ("RUNNING", "STARTING"):
            word = info["statename"] if info else "STOPPED"
            detail = f"exit status {info['exitstatus']}" if info and info["exitstatus"] else (info or {}).get("spawnerr", "")
            return ProcessState(spec.name, word, info["stop"] if info else 0, 0, 0, mine, False, detail)
        try:
            memory = psutil.Process(info["pid"]).memory_info().rss
        except psutil.Error:
            memory = 0
        detail = ""
        if probe:
            try:
                spec.probe.check()
            except NotReady as error:
                detail = str(error)
        return ProcessState(spec.name, "RUNNING", info["start"], info["pid"], memory, mine, not detail, detail)

    def log_tail(self, name: str, lines: int = 15) -> str:
        """The last lines that a process wrote."""
        try:
            with (self.logs / f"{name}.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 64 * 1024))
                return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(it wrote nothing)"

    # -- start and stop

    def start(self, specs: list[ProcessSpec], base_env: dict[str, str], held: frozenset[str] = frozenset()) -> bool:
        """Starts or heals: what isn't running is started, what has changed is restarted, the rest is left alone. `held` names processes that
        a fault keeps down: they stay so. Returns whether supervisord itself was started."""
        self._configure(specs, base_env, held)
        fresh = not self.running()
        if fresh:
            self.kill_leftovers()
            self._spawn(base_env)
        else:
            self._reload(held)
        return fresh

    def _spawn(self, base_env: dict[str, str]) -> None:
        self.socket.unlink(missing_ok=True)
        (self.folder / "pid").unlink(missing_ok=True)
        command = [interpreter(), "-m", "supervisor.supervisord", "-n", "-c", str(self.folder / "supervisord.conf")]
        with write_private(self.logs / "supervisord.out", "").open("ab") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/",
                                       env=base_env, umask=0o077)
        deadline = time.monotonic() + 20
        while not self.running():
            if process.poll() is not None:
                raise EnvironmentBroken(f"supervisord ended with status {process.returncode}:\n{self._own_log()}", "orchlab doctor")
            if time.monotonic() > deadline:
                process.kill()
                raise TimeLimitReached(f"supervisord did not answer within 20 s:\n{self._own_log()}", "orchlab doctor")
            time.sleep(0.02)

    def _own_log(self) -> str:
        return self.log_tail("supervisord") if (self.logs / "supervisord.log").exists() else (self.logs / "supervisord.out").read_text()[-2000:]

    def _reload(self, held: frozenset[str]) -> None:
        [[added, changed, removed]] = self._ask("reloadConfig")
        for name in [*changed, *removed]:
            self._quietly("stopProcess", name, True)
            self._quietly("removeProcessGroup", name)
        for name in [*added, *changed]:
            self._quietly("addProcessGroup", name)
        for info in self._ask("getAllProcessInfo"):
            if info["statename"] in ("STOPPED", "EXITED", "FATAL", "BACKOFF") and info["name"] not in held:
                self._quietly("startProcess", info["name"], False)

    def start_process(self, name: str) -> None:
        self._quietly("startProcess", name, False)

    def stop_process(self, name: str) -> None:
        """Stops one process and keeps it stopped (supervisord doesn't restart what it was told to stop)."""
        self._quietly("stopProcess", name, True)

    def wait_ready(self, specs: list[ProcessSpec], seconds: float = 90, progress: Callable[[str], None] | None = None) -> None:
        """Waits until every probe succeeds. Raises EnvironmentBroken when a process has given up, TimeLimitReached otherwise; both with its log."""
        deadline = time.monotonic() + seconds
        waiting = {spec.name: spec for spec in specs}
        last: dict[str, str] = {}
        next_look = time.monotonic() + 0.5
        with ThreadPoolExecutor(max_workers=len(specs) or 1) as pool:
            while waiting:
                for name, seen in pool.map(_try_probe, list(waiting.values())):
                    if seen is None:
                        del waiting[name]
                        if progress:
                            progress(name)
                    else:
                        last[name] = seen
                if waiting and time.monotonic() > next_look:
                    self.raise_if_given_up(waiting)
                    next_look = time.monotonic() + 0.5
                if waiting and time.monotonic() > deadline:
                    name = next(iter(waiting))
                    raise TimeLimitReached(f"{', '.join(waiting)} not ready within {seconds:.0f} s ({last[name]}).\nLast lines of {name}:\n{self.log_tail(name)}",
                                           f"orchlab logs {name}")
                if waiting:
                    time.sleep(0.03)

    def raise_if_given_up(self, waiting: Iterable[str]) -> None:
        """Raises EnvironmentBroken with the log of the first of `waiting` that supervisord has given up, or that cannot be executed."""
        if not self.running():
            raise EnvironmentBroken(f"supervisord is gone:\n{self.log_tail('supervisord')}", "orchlab up starts it again")
        for info in self._ask("getAllProcessInfo"):
            name, state = info["name"], info["statename"]
            hopeless = state == "BACKOFF" and self.log_tail(name, 1).startswith(launch.CANNOT_EXECUTE)
            if name in waiting and (state == "FATAL" or hopeless):
                raise EnvironmentBroken(f"{name} does not start. Its last lines:\n{self.log_tail(name)}",
                                        f"orchlab logs {name} shows all of them; orchlab doctor looks for the usual causes")

    def stop(self, specs: list[ProcessSpec]) -> None:
        """Stops all processes, dependants first, then supervisord; kills what does not go. Leaves no socket, pid file or process."""
        if self.running():
            for level in reversed(levels(specs)):
                with ThreadPoolExecutor(max_workers=len(level)) as pool:
                    list(pool.map(lambda name: self._quietly("stopProcess", name, True), level))
            pid = self._ask("getPID", default=0)
            self._quietly("shutdown")
            self._wait_gone(pid, 15)
        self.kill_leftovers()
        for path in (self.socket, self.folder / "pid", *self.folder.glob("sock.*")):
            path.unlink(missing_ok=True)

    def kill_leftovers(self) -> list[int]:
        """Ends processes of this environment that no supervisord looks after. They are known by a variable in their environment."""
        mine = leftovers(self.identity)
        for number, wait in ((signal.SIGTERM, 3), (signal.SIGKILL, 5)):
            for process in mine:
                try:
                    process.send_signal(number)
                except psutil.Error:
                    continue
            _, mine = psutil.wait_procs(mine, timeout=wait)
            mine = [process for process in mine if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
            if not mine:
                break
        return [process.pid for process in mine]

    def _wait_gone(self, pid: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while pid and psutil.pid_exists(pid) and time.monotonic() < deadline:
            try:
                if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                    return
            except psutil.NoSuchProcess:
                return
            time.sleep(0.02)

    # -- supervisord's own matters

    def _configure(self, specs: list[ProcessSpec], base_env: dict[str, str], held: frozenset[str]) -> None:
        private_folder(self.folder)
        private_folder(self.logs)
        by_name = {spec.name: spec for spec in specs}
        sections = [f"[unix_http_server]\nfile={_escape(self.socket)}\nchmod=0600",
                    "[rpcinterface:supervisor]\nsupervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
                    f"[supervisord]\nlogfile={_escape(self.logs / 'supervisord.log')}\nlogfile_maxbytes={LOG_BYTES}\nlogfile_backups=1\nloglevel=info\n"
                    f"pidfile={_escape(self.folder / 'pid')}\nnodaemon=true\nsilent=true\numask=077\nminfds=1024\nminprocs=64\nidentifier=orchlab"
                    + ("\nuser=root" if os.geteuid() == 0 else "")]
        for spec in specs:
            text = spec.launch_json(by_name, base_env)
            path = write_private(self.folder / f"{spec.name}.json", text)
            command = shlex.join([interpreter(), "-I", "-S", launch.__file__, str(path), spec.digest(text)])
            sections.append(f"[program:{spec.name}]\ncommand={_escape(command)}\nautostart={str(spec.name not in held).lower()}\nautorestart=true\nstartsecs=1\nstartretries={RETRIES}\n"
                            f"stopsignal=TERM\nstopwaitsecs={spec.stop_seconds}\nstopasgroup=true\nkillasgroup=true\nredirect_stderr=true\n"
                            f"stdout_logfile={_escape(_escape(self.logs / f'{spec.name}.log'))}\nstdout_logfile_maxbytes={LOG_BYTES}\nstdout_logfile_backups=1")
        write_private(self.folder / "supervisord.conf", "\n\n".join(sections) + "\n")
        for path in self.folder.glob("*.json"):
            if path.stem not in by_name:
                path.unlink()

    def _ask(self, method: str, *arguments, default: object = ...):
        try:
            proxy = xmlrpc.client.ServerProxy("http://localhost", transport=_UnixTransport(self.socket))
            return getattr(proxy.supervisor, method)(*arguments)
        except (OSError, xmlrpc.client.ProtocolError) as error:
            if default is not ...:
                return default
            raise EnvironmentBroken(f"supervisord does not answer: {error}", "orchlab up heals it") from error

    def _quietly(self, method: str, *arguments) -> None:
        """For calls that may find the work done already (NOT_RUNNING, ALREADY_STARTED, BAD_NAME)."""
        try:
            self._ask(method, *arguments, default=None)
        except xmlrpc.client.Fault:
            pass


def _try_probe(spec: ProcessSpec) -> tuple[str, str | None]:
    try:
        spec.probe.check()
    except NotReady as error:
        return spec.name, str(error)
    return spec.name, None


def leftovers(identity: str) -> list[psutil.Process]:
    """Processes that carry `identity`, supervisord among them, except the caller."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == identity:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _escape(value: object) -> str:
    """supervisord expands %(…)s in its configuration (twice in the name of a log)."""
    return str(value).replace("%", "%%")
