"""`orchlab lab`: JupyterLab on loopback, with a token, on a working copy of the labs."""

from __future__ import annotations

import getpass
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchlab import environment
from orchlab.course import folder, kernels, working
from orchlab.errors import BadInput, EnvironmentBroken, TimeLimitReached
from orchlab.paths import private_folder, write_private

START_SECONDS = 90
STOP_SECONDS = 10
# The server dies with this process, however that ends; kernels notice by themselves that their server is gone.
SERVER = "from orchlab.launch import die_with_parent; die_with_parent(); from jupyterlab.labapp import main; main()"


@dataclass(frozen=True)
class Server:
    """A running JupyterLab. Only `address` opens it: it holds the token."""

    process: subprocess.Popen
    port: int
    token: str
    log: Path

    def address(self, notebook: str = "") -> str:
        where = f"/tree/{notebook}" if notebook else ""
        return f"http://127.0.0.1:{self.port}/lab{where}?token={self.token}"

    def stop(self) -> None:
        """Ends the server with its kernels and terminals."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(timeout=STOP_SECONDS)


def serve(name: str = "default", port: int = 8888, which: str | None = None, browser: bool | None = None,
          say: Callable[[str], None] = print) -> int:
    """Brings the environment up if it is not, renews the working copy, runs JupyterLab until it is interrupted. `which`: the lab to open;
    without it the first one, or what was open last time. `browser`: None opens one where there is a display and no ssh. Returns the exit
    status. Raises what `start` raises."""
    notebook = folder.lab(which).notebook.name if which else _first_notebook()
    env = environment.up(name)
    for sentence in working.update():
        say(sentence)
    server = start(env, port)

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        say(f"JupyterLab runs; the labs are in {working.folder()}")
        say(f"  open   {server.address(notebook)}")
        say(f"  from another machine, first: ssh -N -L {server.port}:127.0.0.1:{server.port} {getpass.getuser()}@{_host()}")
        say("  stop   Ctrl-C here (the environment stays up; orchlab down stops it)")
        if browser if browser is not None else _has_display():
            webbrowser.open(server.address(notebook))
        return server.process.wait()
    except KeyboardInterrupt:
        say("stopping JupyterLab")
        return 0
    finally:
        server.stop()
        signal.signal(signal.SIGTERM, before)


def start(env: environment.Environment, port: int = 8888, seconds: float = START_SECONDS) -> Server:
    """Starts JupyterLab on 127.0.0.1, on `port` or the next free one, and waits until it answers. Raises EnvironmentBroken with its log if
    it ends, TimeLimitReached if it does not answer."""
    if not 1024 <= port <= 65000:
        raise BadInput("--port", port, "must be from 1024 to 65000")
    variables = kernels.variables(env)
    token = secrets.token_urlsafe(24)
    # On the command line other users of the machine could read it.
    variables["JUPYTER_TOKEN"] = token
    runtime = Path(variables["JUPYTER_RUNTIME_DIR"])
    log = runtime.parent / f"jupyterlab-{env.name}.log"
    log.unlink(missing_ok=True)
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out:
        process = subprocess.Popen([sys.executable, "-c", SERVER, *_options(env, port)], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                   env=variables, cwd=working.folder(), start_new_session=True)
    information = runtime / f"jpserver-{process.pid}.json"
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise EnvironmentBroken(f"JupyterLab ended with status {process.returncode}:\n{_tail(log)}", "orchlab doctor")
            if found := _port(information):
                if _answers(found, token):
                    return Server(process, found, token, log)
            time.sleep(0.1)
        raise TimeLimitReached(f"JupyterLab did not answer within {seconds:g} s:\n{_tail(log)}", "orchlab doctor")
    except BaseException:
        process.kill()
        process.wait(timeout=STOP_SECONDS)
        raise


def _first_notebook() -> str:
    """The first lab for who comes for the first time; later JupyterLab opens what was open."""
    workspaces = kernels.jupyter_folder() / "workspaces"
    labs = folder.labs()
    return "" if workspaces.is_dir() and any(workspaces.iterdir()) or not labs else labs[0].notebook.name


def _options(env: environment.Environment, port: int) -> list[str]:
    base = kernels.jupyter_folder()
    settings = private_folder(base / "settings")
    _default_setting(settings, "notification", {"fetchNews": "false", "checkForUpdates": False})
    return [
        "--no-browser",
        f"--ServerApp.root_dir={working.folder()}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=50",
        "--ServerApp.allow_remote_access=False",
        "--ServerApp.allow_root=True",
        "--ServerApp.use_redirect_file=False",
        "--ServerApp.open_browser=False",
        f"--LabServerApp.user_settings_dir={settings}",
        f"--LabServerApp.workspaces_dir={private_folder(base / 'workspaces')}",
        f"--ServerApp.terminado_settings={json.dumps({'shell_command': kernels.terminal(env)})}",
        # Looking for language servers, it would run npm, which writes into the user's home.
        "--LanguageServerManager.autodetect=False",
        # Nothing is fetched from the network: no announcements, no look for a newer version, no catalogue of extensions.
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
        "--MappingKernelManager.default_kernel_name=python3",
        "--MappingKernelManager.transport_encryption=auto",
        "--Application.log_level=WARN",
    ]


def _default_setting(settings: Path, name: str, values: dict) -> None:
    """Written once: a setting that the learner changes afterwards stays theirs."""
    path = private_folder(private_folder(settings / "@jupyterlab") / "apputils-extension") / f"{name}.jupyterlab-settings"
    if not path.exists():
        write_private(path, json.dumps(values, indent=2) + "\n")


def _port(information: Path) -> int | None:
    try:
        return int(json.loads(information.read_text())["port"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _answers(port: int, token: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/api/status", headers={"Authorization": f"token {token}"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def _has_display() -> bool:
    return not os.environ.get("SSH_CONNECTION") and bool(
        sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def _host() -> str:
    """How the learner's own machine reaches this one: the address that their ssh came in by, else the host's name."""
    arrived = os.environ.get("SSH_CONNECTION", "").split()
    return arrived[2] if len(arrived) == 4 else socket.gethostname()
