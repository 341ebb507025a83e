"""The Docker Engine as its commands show it: which docker and compose there are, the containers of an environment, what to do about refusals.

Containers, networks and volumes of an environment carry its id as a label; nothing without that label is ever touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from orchlab.errors import EngineUnavailable, EnvironmentBroken, TimeLimitReached

LABEL = "orchlab.environment"
PROJECT_LABEL = "com.docker.compose.project"  # set by Compose, v1 and v2
SERVICE_LABEL = "com.docker.compose.service"
SETTINGS = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY")
SECONDS = 30
COMPOSE_REMEDY = "install docker-compose-v2, docker-compose-plugin or (Debian 12) docker-compose"
OLDEST_COMPOSE_1 = (1, 27)  # the first that needs no file version and takes both older forms


@dataclass(frozen=True)
class Container:
    """One container. `health` is Docker's word (starting, healthy, unhealthy; "" without a health check), `since` seconds since 1970."""

    id: str
    service: str
    state: str
    health: str
    since: float
    pid: int
    exit_code: int
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Docker:
    """The docker command, and how Compose is called: ("docker", "compose") or ("docker-compose",). `settings` say which engine is meant."""

    program: str
    compose_words: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str, seconds: float = SECONDS, check: bool = True, text: str = "") -> subprocess.CompletedProcess[str]:
        """`docker WORDS`, with `text` as its input. Raises EnvironmentBroken with its words, or TimeLimitReached."""
        return self._run((self.program, *words), seconds, check, text)

    def compose(self, project: str, file: Path, *words: str, seconds: float) -> None:
        """Compose for one project. Raises EngineUnavailable without Compose, EnvironmentBroken, TimeLimitReached."""
        if not self.compose_words:
            raise EngineUnavailable("there is no Docker Compose", COMPOSE_REMEDY)
        self._run((*self.compose_words, "--project-name", project, "--file", str(file), "--project-directory", str(file.parent), *words), seconds, True)

    def _run(self, words: Sequence[str], seconds: float, check: bool, text: str = "") -> subprocess.CompletedProcess[str]:
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False, input=text,
                                  env=os.environ | dict(self.settings))
        except subprocess.TimeoutExpired:
            raise TimeLimitReached(f"{' '.join(words[:3])} did not end within {seconds:g} s", "see whether the Docker Engine answers: docker ps") from None
        if check and done.returncode:
            raise EnvironmentBroken(f"{Path(words[0]).name} {words[1]} failed: {_essence(done.stderr or done.stdout)}", _remedy(done.stderr))
        return done

    def containers(self, project: str) -> list[Container]:
        """All of a project, running or not, by service."""
        ids = self.run("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={PROJECT_LABEL}={project}").stdout.split()
        if not ids:
            return []
        # One may go between the two questions: what is still there is printed all the same.
        said = self.run("inspect", "--type", "container", *ids, check=False).stdout
        return sorted((container(item) for item in json.loads(said or "[]")), key=lambda container: container.service)

    def things(self, kind: str, label: str) -> dict[str, str]:
        """Networks or volumes with a label: the environment's id ("" for somebody else's) by name."""
        said = self.run(kind, "ls", "--filter", f"label={label}", "--format", "{{.Name}}|{{.Label \"" + LABEL + "\"}}").stdout
        return dict(line.split("|", 1) for line in said.splitlines() if "|" in line)


def find(settings: Mapping[str, str] | None = None) -> Docker:
    """The Docker that answers. Raises EngineUnavailable with the reason: not installed, not running, not permitted."""
    program = shutil.which("docker")
    if program is None:
        raise EngineUnavailable("there is no docker command", "install the Docker Engine (Debian, Ubuntu: sudo apt-get install docker.io docker-compose)")
    docker = Docker(program, (), {name: os.environ[name] for name in SETTINGS if name in os.environ} if settings is None else settings)
    try:
        done = docker.run("version", "--format", "{{.Server.Version}}", seconds=10, check=False)
    except TimeLimitReached as error:
        raise EngineUnavailable(str(error).splitlines()[0], "start the Docker Engine anew: sudo systemctl restart docker") from None
    if done.returncode:
        raise EngineUnavailable(*_refusal(done.stderr))
    return Docker(program, _compose(docker), docker.settings)


def engine_version(docker: Docker) -> str:
    return docker.run("version", "--format", "{{.Server.Version}}", seconds=10).stdout.strip()


def compose_version(docker: Docker) -> str:
    """"" if there is none."""
    if not docker.compose_words:
        return ""
    return docker._run((*docker.compose_words, "version", "--short"), 10, True).stdout.strip().lstrip("v")


def remove(docker: Docker, project: str, identity: str, volumes: bool) -> None:
    """Removes what carries the environment's label: containers, then networks, then (if asked) volumes. Raises EnvironmentBroken."""
    mine = f"label={LABEL}={identity}"
    found = [container.id for container in docker.containers(project) if container.labels.get(LABEL) == identity]
    if found:
        docker.run("rm", "--force", *found, seconds=60)
    for kind in ("network", *(["volume"] if volumes else [])):
        names = docker.run(kind, "ls", "--quiet", "--filter", mine, "--filter", f"label={PROJECT_LABEL}={project}").stdout.split()
        if names:
            docker.run(kind, "rm", *names, seconds=60)


def refuse_strangers(docker: Docker, project: str, identity: str) -> None:
    """Raises EnvironmentBroken if the project's name is used by another environment or by somebody else."""
    labels = {f"container {container.service}": container.labels.get(LABEL, "") for container in docker.containers(project)}
    for kind in ("network", "volume"):
        labels |= {f"{kind} {name}": owner for name, owner in docker.things(kind, f"{PROJECT_LABEL}={project}").items()}
    strange = sorted(name for name, owner in labels.items() if owner != identity)
    if strange:
        raise EnvironmentBroken(f"Docker's project {project} belongs to another environment: {', '.join(strange[:4])}",
                                "choose another --name, or remove them if nobody needs them (docker rm, docker network rm, docker volume rm)")


def _compose(docker: Docker) -> tuple[str, ...]:
    if docker.run("compose", "version", "--short", seconds=10, check=False).returncode == 0:
        return (docker.program, "compose")
    old = shutil.which("docker-compose")
    if old is None:
        return ()
    done = docker._run((old, "version", "--short"), 20, False)
    numbers = tuple(int(part) for part in done.stdout.strip().lstrip("v").split(".")[:2] if part.isdecimal())
    return (old,) if done.returncode == 0 and numbers >= OLDEST_COMPOSE_1 else ()


def container(item: dict) -> Container:
    """From `docker inspect`."""
    state, labels = item["State"], item["Config"].get("Labels") or {}
    return Container(item["Id"], labels.get(SERVICE_LABEL, item["Name"].lstrip("/")), state["Status"], (state.get("Health") or {}).get("Status", ""), _moment(state["StartedAt"]),
                     state["Pid"], state["ExitCode"], labels)


def _moment(text: str) -> float:
    """Docker's times have nanoseconds and end in Z; year 1 stands for never."""
    return 0.0 if text.startswith("0001") else datetime.fromisoformat(text[:19] + "+00:00").timestamp()


def _essence(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line.lower() or "cannot" in line.lower()]
    return " ".join(dict.fromkeys(wrong[-3:] or lines[-3:]))[:1000] or "it said nothing"


def _remedy(text: str) -> str:
    if "already allocated" in text or "address already in use" in text:
        return "stop what holds that port, or choose another: orchlab up --new-ports after orchlab down"
    if "no space left" in text:
        return "free space on the engine's disk: docker system df shows what takes it"
    if "cannot connect" in text.lower():
        return "start the Docker Engine (sudo systemctl start docker), then orchlab up heals, and orchlab down removes"
    return "docker ps -a and docker logs say more; orchlab doctor looks at the engine"


def _refusal(text: str) -> tuple[str, str]:
    """Why the engine does not answer, and what to do."""
    if "permission denied" in text.lower():
        return "you may not use the Docker Engine", "sudo usermod -aG docker $USER, then log in again (that group is as mighty as root); or run a rootless engine"
    if "cannot connect" in text.lower() or "no such file" in text.lower() or "connection refused" in text.lower():
        return "no Docker Engine is running", "start it: sudo systemctl start docker"
    return f"the Docker Engine does not answer: {_essence(text)}", "docker version shows the same"
