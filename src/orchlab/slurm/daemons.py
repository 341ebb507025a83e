"""One of an environment's daemons, whichever backend runs it: stop, start, restart, its log; and programs run on a node."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchlab.environment import Environment
from orchlab.errors import BadInput
from orchlab.slurm import compose, docker_daemons
from orchlab.slurm.layout import Layout

SECONDS = 30


def names(env: Environment) -> list[str]:
    """All that can be stopped and started, of both orchestrators."""
    return [spec.name for spec in env.specs()] + (docker_daemons.names(env) if in_containers(env) else [])


def held_states(env: Environment) -> set[str]:
    """The names of the states in `Environment.health` that a fault accounts for: containers go by their service."""
    return {*env.held(), *(docker_daemons.held_services(env) if in_containers(env) else ())}


def in_containers(env: Environment) -> bool:
    return env.record.slurm == "docker" and "slurm" not in env.record.left_out


def stop(env: Environment, name: str) -> None:
    """Stops one for good: the record says so already."""
    if _contained(env, name):
        docker_daemons.stop(env, name)
    else:
        env.supervisor.stop_process(name)


def start(env: Environment, name: str, seconds: float = SECONDS) -> None:
    """Starts what was stopped and waits until it works. Raises TimeLimitReached."""
    if _contained(env, name):
        docker_daemons.start(env, name, seconds)
        return
    env.supervisor.start_process(name)
    env.supervisor.wait_ready([spec for spec in env.specs() if spec.name == name], seconds)


def restart(env: Environment, *which: str, seconds: float = SECONDS) -> None:
    """What systemctl restart does on a machine of its own, side by side for several. Raises BadInput for an unknown name, or
    TimeLimitReached."""
    known = names(env)
    for name in which:
        if name not in known:
            raise BadInput("process", name, "is no process of this environment", f"one of: {', '.join(known)}")
    contained = [name for name in which if _contained(env, name)]
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(lambda name: docker_daemons.restart(env, name, seconds), contained))
    ours = [name for name in which if name not in contained]
    for name in ours:
        env.supervisor.stop_process(name)
    for name in ours:
        env.supervisor.start_process(name)
    if ours:
        env.supervisor.wait_ready([spec for spec in env.specs() if spec.name in ours], seconds)


def log(env: Environment, name: str, lines: int) -> str:
    """The last lines of a daemon's log; in containers, of what its container wrote. Raises BadInput for an unknown name."""
    if not in_containers(env):
        return env.supervisor.log_tail(name, lines)
    from orchlab.slurm import docker

    if (said := docker.log_tail(env, docker_daemons.service(name), lines)) is None:
        raise BadInput("process", name, "is no process of this environment", f"one of: {', '.join(names(env))}")
    return said


def sees(env: Environment, folder: Path) -> bool:
    """Whether jobs see a folder of this machine."""
    if not in_containers(env):
        return True
    from orchlab.slurm import docker

    return any(folder.resolve().is_relative_to(shared.resolve()) for shared in docker.shared(env))


def run_on(env: Environment, node: str, program: str, *arguments: str, text: str = "", seconds: float = 10) -> str:
    """What a program writes on a node ("": where the cluster's commands run), both streams. On `local` a munge or unmunge goes to the
    node's own munged if a fault has given it one, else to the cluster's. Raises TimeLimitReached or subprocess.TimeoutExpired."""
    if in_containers(env):
        from orchlab.slurm import docker

        words = ("exec", "--interactive", compose.container(env.name, node or "login"), program, *arguments)
        done = docker.chosen_for(env.folder).docker.run(*words, seconds=seconds, check=False, text=text)
        return done.stdout + done.stderr
    layout = Layout(env.folder)
    if program in ("munge", "unmunge"):
        own = layout.run / f"munge.{node}.socket"
        arguments = (*arguments, "--socket", str(own if node and own.exists() else layout.munge_socket))
    done = subprocess.run([layout.bin / program, *arguments], input=text, capture_output=True, text=True, timeout=seconds, check=False,
                          env={"SLURM_CONF": str(layout.conf), "PATH": os.defpath} | layout.programs().environment)
    return done.stdout + done.stderr


def _contained(env: Environment, name: str) -> bool:
    return in_containers(env) and name in docker_daemons.names(env)
