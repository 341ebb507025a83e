"""What the tests of the docker backend share."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

import psutil

from orchlab.slurm import compose, containers


def run(*words: str, seconds: float = 600, **more) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=seconds, **more).stdout


def traces(engine: containers.Docker, name: str) -> list[str]:
    """Everything of an environment that Docker still has."""
    mine = ["--filter", f"label={containers.PROJECT_LABEL}={compose.project(name)}"]
    asked = (["ps", "--all", "--format", "{{.Names}}"], ["network", "ls", "--format", "{{.Name}}"], ["volume", "ls", "--format", "{{.Name}}"])
    return [line for words in asked for line in engine.run(*words, *mine).stdout.split()]


def until(condition, seconds: float = 60):
    """The first true value of `condition`, asked twice a second."""
    deadline = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.5)


def daemon_pid(name: str, service: str, daemon: str) -> int:
    """The process number of a daemon in a container, seen from outside. Its command line names it: one that `scontrol reconfigure` has
    started anew (from 23.11 on) bears another process name. What else runs there comes and goes while one looks."""
    root = psutil.Process(int(run("docker", "inspect", "--format", "{{.State.Pid}}", compose.container(name, service))))
    for process in root.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if Path((process.cmdline() or [""])[0]).name == daemon:
                return process.pid
    raise AssertionError(f"no {daemon} in {service}")
