"""One kind cluster, by kind's own command and Docker's: made, started anew, loaded with an image, deleted. Raises OrchlabErrors only."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from orchlab.engines import running
from orchlab.errors import EngineUnavailable, EnvironmentBroken, TimeLimitReached
from orchlab.paths import private_folder, repository, write_private
from orchlab.slurm import containers
from orchlab.slurm.containers import Container, Docker

if TYPE_CHECKING:
    from orchlab.environment import Environment

FOLDER = "kind"
CREATED = "created"
CLUSTER_LABEL = "io.x-k8s.kind.cluster"
NODE_IMAGE = "orchlab/kind-node"  # made by scripts/build-node-image
CREATE_SECONDS, LOAD_SECONDS, DELETE_SECONDS = 600, 300, 120
SYS_RESOURCE = 24
QUIET_SECONDS = 3
# The node image, the stand-ins' in each node, and what four nodes write (bytes).
DISK = 3 * 2**30


@dataclass(frozen=True)
class Kind:
    """The cluster `cluster` of the engine behind `docker`; `folder` is the environment's for kind, `node_image` "" for kind's default."""

    docker: Docker
    program: str
    cluster: str
    node_image: str
    folder: Path

    @property
    def network(self) -> str:
        return self.cluster

    def containers(self) -> list[Container]:
        """The nodes' containers, running or not."""
        ids = self.docker.run("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={CLUSTER_LABEL}={self.cluster}").stdout.split()
        if not ids:
            return []
        said = self.docker.run("inspect", "--type", "container", *ids, check=False).stdout
        return sorted((containers.container(item) for item in json.loads(said or "[]")), key=lambda one: one.service)

    def bring_up(self, config: Path, kubelets: list[str], say: Callable[[str], None]) -> bool:
        """Makes the cluster with these nodes (their names are kept for `made_with`), or starts containers of it that have stopped. What an
        interrupted creation has left is deleted first. Returns whether it is new."""
        there = self.containers()
        done = self.folder / CREATED
        if there and not done.exists():
            say("deleting what an interrupted start has left")
            self.delete()
            there = []
        if there:
            stopped = [one.id for one in there if one.state != "running"]
            if stopped:
                say(f"starting {len(stopped)} nodes anew")
                self.docker.run("start", *stopped, seconds=120)
            return False
        say("creating the kind cluster; the node image is pulled first if it is not here")
        self._kind("create", "cluster", "--name", self.cluster, "--config", str(config), "--kubeconfig", str(self.folder / "kubeconfig"), "--wait", "0s",
                   seconds=CREATE_SECONDS)
        write_private(done, "\n".join(kubelets))
        return True

    def load(self, image: str, say: Callable[[str], None]) -> None:
        """Puts an image of Docker's into every node that lacks it."""
        missing = [one.service for one in self.containers() if not self._has(one.id, image)]
        if missing:
            say(f"loading the image into {len(missing)} nodes")
            self._kind("load", "docker-image", image, "--name", self.cluster, "--nodes", ",".join(missing), seconds=LOAD_SECONDS)

    def read(self, path: str) -> str:
        """A file of the control plane's container."""
        return self.docker.run("exec", f"{self.cluster}-control-plane", "cat", path).stdout

    def restart_kubelet(self, worker: int) -> None:
        """Of the worker with that number, from 0, in the order of kind's configuration."""
        self.docker.run("exec", self.worker(worker), "systemctl", "restart", "kubelet", seconds=60)

    def worker(self, number: int) -> str:
        """The name of a worker's container."""
        return f"{self.cluster}-worker{number + 1 if number else ''}"

    def log_tail(self, identity: str, lines: int) -> str:
        done = self.docker.run("logs", "--tail", str(lines), identity)
        return done.stdout + done.stderr

    def memory(self, ids: list[str]) -> dict[str, int]:
        """Bytes that running containers take, by id."""
        if not ids:
            return {}
        said = self.docker.run("stats", "--no-stream", "--no-trunc", "--format", "{{.ID}} {{.MemUsage}}", *ids, check=False).stdout
        return {words[0]: _bytes(words[1]) for words in map(str.split, said.splitlines()) if len(words) > 1}

    def delete(self) -> None:
        """The cluster's containers, their volumes, its network. Safe to repeat."""
        # Where a creation did not come to its end, what the engine was asked for may still come: it finishes a request whose caller is gone.
        cut = self._end_strays() or not (self.folder / CREATED).exists()
        if Path(self.program).exists():
            self._kind("delete", "cluster", "--name", self.cluster, "--kubeconfig", str(self.folder / "kubeconfig"), seconds=DELETE_SECONDS)
        quiet = time.monotonic() + (QUIET_SECONDS if cut else 0)
        while (left := [one.id for one in self.containers()]) or time.monotonic() < quiet:
            if left:
                self.docker.run("rm", "--force", "--volumes", *left, seconds=DELETE_SECONDS)
            time.sleep(0.3)
        if self.docker.run("network", "ls", "--quiet", "--filter", f"name=^{self.network}$").stdout.split():
            self.docker.run("network", "rm", self.network, seconds=60)
        (self.folder / CREATED).unlink(missing_ok=True)

    def _end_strays(self) -> bool:
        """Ends the docker commands of a kind that was killed: they would make nodes after everything has been deleted. Returns whether there
        were any."""
        found = False
        for process in psutil.process_iter(["cmdline"]):
            if f"{CLUSTER_LABEL}={self.cluster}" in (process.info["cmdline"] or []):
                with contextlib.suppress(psutil.Error):
                    process.kill()
                    found = True
        return found

    def _has(self, container: str, image: str) -> bool:
        said = self.docker.run("exec", container, "ctr", "--namespace", "k8s.io", "images", "ls", "--quiet", check=False).stdout
        return f"docker.io/{image}" in said.split()

    def _kind(self, *words: str, seconds: float) -> None:
        paths = [_wrapper(self.folder), str(Path(self.docker.program).parent), os.environ.get("PATH", "")]
        variables = os.environ | dict(self.docker.settings) | {"KIND_EXPERIMENTAL_DOCKER_NETWORK": self.network, "KIND_EXPERIMENTAL_PROVIDER": "docker",
                                                               "PATH": ":".join(filter(None, paths))}
        lines: list[str] = []
        # It ends with us: nobody would know of a cluster that came up after an `up` that was killed.
        status, _ = running.run([self.program, *words], self.folder, variables, seconds, lines.append)
        if status is None:
            raise TimeLimitReached(f"kind {' '.join(words[:2])} did not end within {seconds:g} s", "see whether the Docker Engine answers: docker ps")
        if status:
            said = "\n".join(lines)
            try:
                containers.find(self.docker.settings)
            except EngineUnavailable as error:
                raise EngineUnavailable(f"kind {' '.join(words[:2])} failed: {error.args[0]}", f"{error.remedy}; then orchlab down removes what is left") from None
            raise EnvironmentBroken(f"kind {' '.join(words[:2])} failed: {_essence(said)}", _remedy(said))


def name(env: Environment) -> str:
    """Of an environment's cluster. Its id makes it unlike the clusters of other users and folders."""
    return f"orchlab-{env.name}-{env.record.id[:6]}"


def of(folder: Path) -> Kind:
    """What the last `up` has chosen. Raises EnvironmentBroken before the first one."""
    try:
        data = json.loads((folder / "chosen.json").read_text())
        return Kind(Docker(data["program"], (), data["settings"]), data["kind"], data["cluster"], data["node_image"], folder)
    except (OSError, ValueError, KeyError):
        raise EnvironmentBroken(f"environment {folder.parent.name!r} has no kind cluster yet", f"orchlab up --kubernetes kind --name {folder.parent.name}") from None


def made_with(folder: Path) -> list[str] | None:
    """The names of the nodes with a kubelet of a cluster that is there; None without one. `folder` is the environment's for kind."""
    return (folder / CREATED).read_text(encoding="utf-8").split() if (folder / CREATED).exists() else None


def find() -> Docker:
    """The Docker that answers, as far as kind can use it. Raises EngineUnavailable with what is missing."""
    if platform.system() != "Linux":
        raise EngineUnavailable("the kind backend needs Linux: simulator and image are built for it", "use a Linux virtual machine or --kubernetes local")
    return containers.find()


def check_disk(docker: Docker) -> None:
    """Raises EnvironmentBroken when the engine's disk has no room for a cluster. An engine on another machine is not asked."""
    root = docker.run("info", "--format", "{{.DockerRootDir}}", check=False).stdout.strip()
    if root and Path(root).is_dir() and (free := shutil.disk_usage(root).free) < DISK:
        raise EnvironmentBroken(f"the engine's disk has {free / 2**30:.1f} GiB left (at {root}); a kind cluster needs {DISK / 2**30:.0f} GiB",
                                "docker system df shows what takes the space, docker system prune frees what nothing uses")


def node_image(docker: Docker) -> str:
    """$ORCHLAB_KIND_IMAGE, else one that scripts/build-node-image has made here (the newest), else "": kind's own default."""
    if given := os.environ.get("ORCHLAB_KIND_IMAGE"):
        return given
    said = docker.run("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", NODE_IMAGE).stdout.split()
    return said[0] if said else ""


def cgroup_v1(docker: Docker) -> bool:
    return docker.run("info", "--format", "{{.CgroupVersion}}", check=False).stdout.strip() == "1"


def cpus(docker: Docker) -> int:
    """How many the engine's computer has."""
    said = docker.run("info", "--format", "{{.NCPU}}", check=False).stdout.strip()
    return max(1, int(said)) if said.isdecimal() else 1


def lacks_sys_resource(status: str | None = None) -> bool:
    """Whether this process may never get CAP_SYS_RESOURCE, without which `docker run --privileged` is refused. `status`: /proc/self/status."""
    text = Path("/proc/self/status").read_text(encoding="ascii") if status is None else status
    bounding = next((line.split()[1] for line in text.splitlines() if line.startswith("CapBnd:")), "")
    return os.geteuid() == 0 and bool(bounding) and not int(bounding, 16) >> SYS_RESOURCE & 1


def _wrapper(folder: Path) -> str:
    """A folder with a `docker` for kind that asks for less, on machines that lack the capability only; else ""."""
    if not lacks_sys_resource():
        return ""
    link = private_folder(folder / "bin") / "docker"
    target = repository() / "node-image" / "docker-without-sys-resource"
    if not link.is_symlink() or link.readlink() != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return str(link.parent)


def _bytes(text: str) -> int:
    units: Mapping[str, float] = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
    for unit, size in units.items():
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * size)
    return 0


def _essence(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith((" ✓", " •"))]
    wrong = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
    return " ".join(wrong)[:1000] or "it said nothing"


def _remedy(text: str) -> str:
    if "failed to pull image" in text or "manifest unknown" in text:
        return "check the connection, or make the node image from packages: sudo scripts/build-node-image"
    if "port is already allocated" in text or "address already in use" in text:
        return "orchlab down, then orchlab up --new-ports"
    if "too many open files" in text:
        return "raise inotify's limits: sudo sysctl fs.inotify.max_user_instances=512 fs.inotify.max_user_watches=524288"
    if "no space left" in text:
        return "free space on the engine's disk: docker system df shows what takes it"
    return "orchlab doctor looks at the engine; orchlab down removes what is left"

