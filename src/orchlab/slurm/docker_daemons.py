"""Single daemons in the containers of the `docker` backend: held down by a fault, started, restarted.

They bear the names that they have on `local`: slurmctld, slurmdbd, mariadbd, slurmrestd, slurmd.NODE; and munged.NODE, since each machine
has its own. What is held stands in etc/held, which the entrypoint reads: the container goes on, as a machine does whose daemon is down.
"""

from __future__ import annotations

import time

from orchlab.environment import Environment
from orchlab.errors import TimeLimitReached
from orchlab.paths import write_private
from orchlab.slurm import compose
from orchlab.slurm.layout import of

# The daemon that is a container's main process, and the service that it is.
SERVICES = {"slurmctld": "ctld", "slurmdbd": "dbd", "mariadbd": "db", "slurmrestd": "restd"}
NODE_DAEMONS = ("slurmd", "munged")
STOP_SECONDS = 5
SECONDS = 30


def names(env: Environment) -> list[str]:
    """Every daemon that can be held down or restarted."""
    return [*SERVICES, *(f"{daemon}.{node.name}" for daemon in NODE_DAEMONS for node in env.fleet.nodes())]


def service(name: str) -> str:
    """The service in whose container a daemon runs."""
    return SERVICES.get(name) or name.partition(".")[2]


def held_services(env: Environment) -> dict[str, str]:
    """The daemon that a fault keeps down, by service: their health checks fail meanwhile."""
    known = set(names(env))
    return {service(name): name for name in sorted(env.held()) if name in known}


def held_file(env: Environment) -> str:
    """Lines HOSTNAME DAEMON, for the entrypoint."""
    known = set(names(env))
    return "".join(f"{service(name)} {name.partition('.')[0]}\n" for name in sorted(env.held()) if name in known)


def stop(env: Environment, name: str) -> None:
    """Ends a daemon that the record says is held: it stays so."""
    _tell(env)
    _end(env, name)


def start(env: Environment, name: str, seconds: float = SECONDS) -> None:
    """Lets a daemon go that is held no more, and waits until it works. Raises TimeLimitReached."""
    _tell(env)
    _await(env, name, seconds)


def restart(env: Environment, name: str, seconds: float = SECONDS) -> None:
    """Ends a daemon, which is started again, and waits until it works. Raises TimeLimitReached."""
    _end(env, name)
    _await(env, name, seconds)


def _docker(env: Environment):
    from orchlab.slurm import docker

    return docker.chosen_for(env.folder).docker


def _tell(env: Environment) -> None:
    write_private(of(env).etc / "held", held_file(env)).chmod(0o644)


def _end(env: Environment, name: str) -> None:
    container, docker = compose.container(env.name, service(name)), _docker(env)
    if name in SERVICES:
        docker.run("restart", "--time", str(STOP_SECONDS), container, seconds=60)
        return
    # A process that has gone already is as good. The whole name: slurmstepd, which carries the jobs, is not slurmd, which is slurmd-wlm in
    # Debian's packages once `scontrol reconfigure` has started it anew.
    program = f"'{name.partition('.')[0]}(-wlm)?'"
    gone = f"for i in $(seq 50); do pgrep -x {program} >/dev/null || break; sleep 0.1; done"
    docker.run("exec", container, "sh", "-c", f"pkill -x {program}; {gone}", check=False)


def _await(env: Environment, name: str, seconds: float) -> None:
    check = ["munge", "-n", "-o", "/dev/null"] if name.startswith("munged.") else ["/usr/local/sbin/entrypoint", "check"]
    container, docker, deadline = compose.container(env.name, service(name)), _docker(env), time.monotonic() + seconds
    while docker.run("exec", container, "timeout", "5", *check, check=False).returncode:
        if time.monotonic() > deadline:
            raise TimeLimitReached(f"{name} is not ready after {seconds:g} s", f"docker logs {container}")
        time.sleep(0.2)
