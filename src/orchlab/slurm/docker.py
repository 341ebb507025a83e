"""The `docker` backend: the cluster of slurm-docker/compose.yaml, one container for each daemon and node, from the same templates as `local`.

Its commands run on the login node. The engine has to see this machine's files: configuration, keys and the labs' work folder are mounted.
Nothing here is supervisord's; what Docker restarts by itself and what `orchlab up` mends is all there is to healing.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import secrets
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from orchlab.environment import Environment, Progress
from orchlab.errors import EngineUnavailable, EnvironmentBroken, OrchlabError, TimeLimitReached
from orchlab.paths import private_folder, repository, state_home, write_private
from orchlab.processes import ProcessSpec
from orchlab.slurm import accounts, compose, containers, docker_daemons, faults, image, login, render, scripts
from orchlab.slurm.containers import LABEL, Container, Docker
from orchlab.slurm.layout import CLUSTER, Layout
from orchlab.slurm.render import Site
from orchlab.slurm.versions import Release, parse
from orchlab.supervisor import ProcessState

ENGINES = ()
PORTS = ("slurmrestd",)
FOLDER = "slurm-docker"
MOST_NODES = 64  # containers on one machine
SERVICE_USERS = ("slurm", "munge", "mysql", "slurmrestd")
UP_SECONDS, DOWN_SECONDS = 300, 120
STOP_SECONDS = 5


@dataclass(frozen=True)
class Chosen:
    """What the last `up` found: kept in chosen.json, so that later commands speak to the same engine."""

    docker: Docker
    image: str
    release: Release
    pyslurm: bool


# -- what environment.py calls


def acquire(env: Environment, say: Progress) -> None:
    """Finds the engine and Compose, and builds the image if it is not there. Raises EngineUnavailable: then the environment comes up without Slurm."""
    if len(env.fleet.nodes()) > MOST_NODES:
        raise EngineUnavailable(f"the fleet has {len(env.fleet.nodes())} nodes; with docker each is a container, at most {MOST_NODES}",
                                "use a smaller --fleet, or --slurm local")
    user()
    docker = containers.find()
    if not docker.compose_words:
        raise EngineUnavailable("there is no Docker Compose", containers.COMPOSE_REMEDY)
    tag, release = image.ensure(docker, say)
    layout = _layout(env.folder)
    private_folder(layout.folder)
    write_private(layout.folder / "chosen.json", json.dumps(
        {"program": docker.program, "compose": docker.compose_words, "settings": dict(docker.settings), "image": tag, "version": release.version,
         "pyslurm": image.has_pyslurm(docker, tag)}, indent=1) + "\n")
    env.record.engines["slurm"] = release.version


def user() -> pwd.struct_passwd:
    """The OS user whose cluster this is. Raises EngineUnavailable for one who cannot be a user in the containers."""
    try:
        found = pwd.getpwuid(os.geteuid())
    except KeyError:
        raise EngineUnavailable(f"user id {os.geteuid()} has no entry in /etc/passwd, which Slurm needs", "add one, or use another user") from None
    if found.pw_name in SERVICE_USERS:
        raise EngineUnavailable(f"user {found.pw_name} is one of the daemons' own in the image", "use another user")
    return found


def prepare(env: Environment) -> None:
    """Writes keys, configuration, the compose file and the commands. Keys are made once; everything else follows the fleet and the clock."""
    layout, chosen = _layout(env.folder), chosen_for(env.folder)
    for folder in (layout.folder, layout.etc, layout.keys, layout.bin, env.folder / "work"):
        private_folder(folder)
    for name, content in (("munge.key", secrets.token_bytes(128)), ("jwt.key", secrets.token_bytes(32)), ("database.password", secrets.token_hex(24))):
        if not (layout.keys / name).exists():
            write_private(layout.keys / name, content)
    files = render.files(site(env), env.fleet.nodes())
    strangers = faults.prepare(env)
    write_private(layout.keys / "slurmdbd.conf", files.pop("slurmdbd.conf"))
    # Readable by every user in the containers; on this machine the folders above are closed to others.
    layout.etc.chmod(0o755)
    # What a fault changes is read by `scontrol reconfigure` or a restart: no container is made anew for it.
    for name, text in (faults.configuration(env, files) | {"held": docker_daemons.held_file(env), "devices": files["gres.conf"]}).items():
        write_private(layout.etc / name, text).chmod(0o644)
    write_private(layout.etc / "orchlab-sleep", scripts.SLEEP.format(factor=f"{env.record.clock:g}")).chmod(0o755)
    write_private(layout.etc / "pyslurm_worker.py", Path(__file__).with_name("pyslurm_worker.py").read_bytes()).chmod(0o644)
    me, places = user(), shared(env)
    values = {"ORCHLAB_IMAGE": chosen.image, "ORCHLAB_ID": env.record.id, "ORCHLAB_FOLDER": str(layout.folder), "ORCHLAB_USER": f"{me.pw_name}:{me.pw_uid}:{me.pw_gid}",
              "ORCHLAB_REST_PORT": str(env.port("slurmrestd")), "ORCHLAB_TIMEZONE": _timezone(), "ORCHLAB_CONFIGURATION": _digest(files),
              "ORCHLAB_DATABASE_CONFIGURATION": _digest({"slurmdbd.conf": (layout.keys / "slurmdbd.conf").read_text()})}
    write_private(layout.folder / "compose.yaml", compose.render(env.name, values, env.fleet.nodes(), places, strangers))
    login.write(layout.bin, chosen.docker.program, chosen.docker.settings, compose.container(env.name, "login"), me.pw_name, f"/home/{me.pw_name}", places)


def site(env: Environment) -> Site:
    """This backend's part of the configuration; paths are those in the containers."""
    password = (_layout(env.folder).keys / "database.password").read_text()
    release = chosen_for(env.folder).release
    return Site(release=release, cluster=CLUSTER, user="slurm", slurmd_user="root", controller="ctld",
                controller_port=6817, slurmd_port=6818,
                dbd_hostname="dbd", dbd_host="dbd", dbd_port=6819, munge_socket="/run/munge/munge.socket.2", jwt_key="/run/slurm/jwt.key", state="/var/lib/slurm/state",
                spool="/var/spool/slurmd", run="/run/slurm", devices="/dev", database_host="db", database_user="slurm", database_extra=(f"StoragePass={password}",),
                # A container that was started anew may have another address. Slurm 24.11 keeps none and calls the setting defunct.
                extra=() if release.at_least(24, 11) else ("CommunicationParameters=NoAddrCache",))


def processes(env: Environment) -> list[ProcessSpec]:
    """None: containers are Docker's."""
    return []


def bring_up(env: Environment, say: Progress) -> None:
    """Creates and starts what is missing, and starts anew what Docker finds unhealthy. Containers that are as they should be stay untouched."""
    layout, docker, project = _layout(env.folder), chosen_for(env.folder).docker, compose.project(env.name)
    containers.refuse_strangers(docker, project, env.record.id)
    before = docker.containers(project)
    say("starting Slurm's containers")
    write_private(layout.folder / "up", "")
    docker.compose(project, layout.folder / "compose.yaml", "up", "--detach", "--no-build", "--remove-orphans", seconds=UP_SECONDS)
    down = docker_daemons.held_services(env)
    ill = [container.id for container in before if container.health == "unhealthy" and container.service not in down]
    still = {container.id for container in docker.containers(project)} & set(ill)
    if still:
        docker.run("restart", "--time", str(STOP_SECONDS), *still, seconds=60)


def settle(env: Environment, say: Progress, seconds: float = 90) -> None:
    """Makes the accounts, once for each database, and waits until every node can take jobs, except those that somebody has drained or
    a fault keeps down."""
    layout, docker = _layout(env.folder), chosen_for(env.folder).docker
    if env.held() & docker_daemons.SERVICES.keys() - {"slurmrestd"}:
        return
    deadline = time.monotonic() + seconds
    _wait_for_controller(env, docker, layout, deadline)
    as_slurm = {login.AS: "slurm"}
    wanted = f"{accounts.digest(user().pw_name)} {_database_made(docker, env)}"
    if not layout.registered.exists() or layout.registered.read_text() != wanted:
        say("making accounts")
        accounts.add_accounts(layout, user().pw_name, as_slurm)
        write_private(layout.registered, wanted)
    names = {node.name for node in env.fleet.nodes()} - docker_daemons.held_services(env).keys() - faults.unfit(env)
    while True:
        states = _node_states(docker, env)
        unfit = {name: states.get(name, "unknown to slurmctld") for name in names if not _usable(states.get(name, ""))}
        if not unfit:
            say(f"{len(names)} nodes are in Slurm")
            return
        if time.monotonic() > deadline:
            few = ", ".join(f"{name} {state}" for name, state in sorted(unfit.items())[:5])
            raise TimeLimitReached(f"{len(unfit)} of {len(names)} Slurm nodes are not usable after {seconds:.0f} s: {few}",
                                   f"docker logs {compose.container(env.name, min(unfit))}; sinfo -R gives slurmctld's reasons")
        time.sleep(0.2)


def clean(env: Environment) -> None:
    """Containers are stopped by `stop`: `down` has to do that for an environment whose record cannot be read as well."""


def variables(env: Environment) -> dict[str, str]:
    """For a shell that is to use this cluster."""
    return {"PATH": str(_layout(env.folder).bin)}


def health(env: Environment, probe: bool = True) -> list[ProcessState]:
    """One state per container; with `probe` those that Docker has not looked at yet are looked at now."""
    try:
        docker = chosen_for(env.folder).docker
        found = {container.service: container for container in docker.containers(compose.project(env.name)) if container.labels.get(LABEL) == env.record.id}
    except OrchlabError as error:
        found, docker, why = {}, None, str(error).splitlines()[0]
    else:
        why = "there is no such container"
    services = [*compose.PARTS, *(node.name for node in env.fleet.nodes())]
    with ThreadPoolExecutor(max_workers=8) as pool:
        states = list(pool.map(lambda service: _state(env, docker, service, found.get(service), why, probe), services))
    down = docker_daemons.held_services(env)
    cure = "held down: orchlab fault clear daemon-down"
    return [replace(state, healthy=False, detail=f"{cure} {down[state.name]}") if state.name in down else state for state in states]


def running(env: Environment) -> bool:
    """Whether any of the environment's containers runs."""
    try:
        found = chosen_for(env.folder).docker.containers(compose.project(env.name))
    except OrchlabError:
        return False
    return any(container.state == "running" and container.labels.get(LABEL) == env.record.id for container in found)


def log_tail(env: Environment, service: str, lines: int = 50) -> str | None:
    """The last lines that a container wrote; None if there is no such service."""
    if service not in (*compose.PARTS, *(node.name for node in env.fleet.nodes())):
        return None
    done = chosen_for(env.folder).docker.run("logs", "--tail", str(lines), compose.container(env.name, service))
    return done.stdout + done.stderr


def shell(env: Environment) -> list[str]:
    """The command for a shell on the login node; without a terminal it reads its commands from standard input."""
    terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    return [chosen_for(env.folder).docker.program, "exec", "--interactive", *terminal, "--user", user().pw_name, "--workdir", f"/home/{user().pw_name}",
            compose.container(env.name, "login"), *login.PLAIN.split(), "bash", "--login"]


def stop(name: str, folder: Path, purge: bool = False, progress: Progress | None = None) -> None:
    """Removes an environment's containers and networks, and with `purge` its volumes. Does nothing where there are none; needs no readable record.

    Raises EngineUnavailable or EnvironmentBroken if the engine keeps us from it."""
    layout = _layout(folder)
    if not ((layout.folder / "up").exists() or (purge and (layout.folder / "compose.yaml").exists())):
        return
    if progress:
        progress("stopping Slurm's containers")
    docker, project = containers.find(chosen_for(folder).docker.settings), compose.project(name)
    identity = _identity(layout)
    # Daemons end in order, so that slurmctld saves its state and the database closes: Compose knows who needs whom.
    if any(container.state == "running" and container.labels.get(LABEL) == identity for container in docker.containers(project)):
        try:
            docker.compose(project, layout.folder / "compose.yaml", "stop", "--timeout", str(STOP_SECONDS), seconds=DOWN_SECONDS)
        except OrchlabError as error:  # removing them ends them as well
            if progress:
                progress(f"stopping in order did not work: {str(error).splitlines()[0]}")
    containers.remove(docker, project, identity, purge)
    (layout.folder / "up").unlink(missing_ok=True)


# -- pieces


def _layout(folder: Path) -> Layout:
    return Layout(folder, FOLDER)


def chosen_for(folder: Path) -> Chosen:
    """Raises EnvironmentBroken before the first `up` with this backend."""
    try:
        data = json.loads((_layout(folder).folder / "chosen.json").read_text())
        return Chosen(Docker(data["program"], tuple(data["compose"]), data["settings"]), data["image"], parse(data["version"]), data["pyslurm"])
    except (OSError, ValueError, KeyError):
        raise EnvironmentBroken(f"environment {folder.name!r} has no Slurm in containers yet", f"orchlab up --slurm docker --name {folder.name}") from None


def _identity(layout: Layout) -> str:
    """The environment's id as its compose file has it."""
    import yaml

    return yaml.safe_load((layout.folder / "compose.yaml").read_text())["networks"]["cluster"]["labels"][LABEL]


def shared(env: Environment) -> dict[Path, bool]:
    """Folders that have the same path in the containers (True: read-only): the labs' work folder, the labs, and the learner's copies of them."""
    course = private_folder(state_home() / "_course")
    return {env.folder / "work": False, repository() / "labs": True, course: True}


def _digest(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]


def _timezone() -> str:
    """This machine's: Slurm writes and reads local times."""
    if given := os.environ.get("TZ"):
        return given.lstrip(":")
    return str(Path("/etc/localtime").resolve()).partition("/zoneinfo/")[2] or "UTC"


def _database_made(docker: Docker, env: Environment) -> str:
    return docker.run("volume", "inspect", "--format", "{{.CreatedAt}}", f"{compose.project(env.name)}_database").stdout.strip()


def _wait_for_controller(env: Environment, docker: Docker, layout: Layout, deadline: float) -> None:
    while True:
        done = docker.run("exec", compose.container(env.name, "login"), "timeout", "5", "scontrol", "ping", check=False)
        if done.returncode == 0 and "is UP" in done.stdout:
            return
        if time.monotonic() > deadline:
            late = [part for part in compose.PARTS[:3] if docker.run("exec", compose.container(env.name, part), "/usr/local/sbin/entrypoint", "check", check=False).returncode]
            part = (late or ["ctld"])[0]
            raise TimeLimitReached(f"{part} does not answer. Its last lines:\n{log_tail(env, part, 15)}", f"docker logs {compose.container(env.name, part)}")
        time.sleep(0.2)


def _node_states(docker: Docker, env: Environment) -> dict[str, str]:
    """State by node in sinfo's words; empty while slurmctld does not answer."""
    done = docker.run("exec", compose.container(env.name, "login"), "timeout", "5", "sinfo", "-h", "-N", "-o", "%N %T", check=False)
    return dict(line.split(None, 1) for line in done.stdout.splitlines() if " " in line)


def _usable(state: str) -> bool:
    # * not responding, # powering up, ~ powered down: none of these has a slurmd that was heard of.
    return state.rstrip("$@+") in ("idle", "mixed", "allocated", "completing", "reserved", "planned", "draining", "drained", "maint")


def _state(env: Environment, docker: Docker | None, service: str, container: Container | None, why: str, probe: bool) -> ProcessState:
    ports = {"slurmrestd": env.port("slurmrestd")} if service == "restd" else {}
    if container is None or docker is None:
        return ProcessState(service, "STOPPED", 0, 0, 0, ports, False, why)
    if container.state != "running":
        return ProcessState(service, container.state.upper(), container.since, 0, 0, ports, False, f"container {container.state}, exit status {container.exit_code}")
    detail = "its health check fails" if container.health == "unhealthy" else ""
    if probe and container.health != "healthy":
        done = docker.run("exec", container.id, "/usr/local/sbin/entrypoint", "check", check=False)
        detail = "" if done.returncode == 0 else f"its health check fails: {(done.stderr or done.stdout).strip()[-200:]}"
    return ProcessState(service, "RUNNING", container.since, container.pid, _memory(container.pid), ports, not detail, detail)


def _memory(pid: int) -> int:
    """Bytes resident in a container's processes; 0 where they are not this machine's to see."""
    import psutil

    total = 0
    try:
        for process in [(root := psutil.Process(pid)), *root.children(recursive=True)]:
            total += process.memory_info().rss
    except psutil.Error:
        pass
    return total
