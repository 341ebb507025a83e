"""The image of the `docker` backend, built from slurm-docker/Dockerfile: once for each content of that folder and each base."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from orchlab.errors import BadInput, EngineUnavailable, EnvironmentBroken
from orchlab.paths import repository
from orchlab.slurm import versions
from orchlab.slurm.containers import Docker
from orchlab.slurm.versions import Release

DEFAULT_BASE = "debian:trixie-slim"
OWN_BASE = "orchlab-slurm-base:trixie"  # made by scripts/build-slurm-base
NAME = "orchlab-slurm"
BUILD_SECONDS = 1800
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def ensure(docker: Docker, say: Callable[[str], None]) -> tuple[str, Release]:
    """The image's tag and the release of Slurm in it; builds it if it is not there. $ORCHLAB_SLURM_BASE names another base, $ORCHLAB_SLURM_PYSLURM a
    pyslurm to put in. Raises EngineUnavailable with the build's last words."""
    base, pyslurm = _base(docker), os.environ.get("ORCHLAB_SLURM_PYSLURM", "")
    tag = f"{NAME}:{_digest(base, pyslurm)}"
    if not _there(docker, tag):
        say(f"building the image {tag} from {base}")
        _build(docker, tag, base, pyslurm)
    said = docker.run("run", "--rm", "--network", "none", "--entrypoint", "slurmctld", tag, "-V", seconds=60).stdout
    return tag, versions.parse(said)


def has_pyslurm(docker: Docker, tag: str) -> bool:
    return docker.run("run", "--rm", "--network", "none", "--entrypoint", "test", tag, "-x", "/opt/pyslurm/bin/python", seconds=60, check=False).returncode == 0


def _there(docker: Docker, tag: str) -> bool:
    return docker.run("image", "inspect", "--format", "{{.Id}}", tag, check=False).returncode == 0


def _base(docker: Docker) -> str:
    if given := os.environ.get("ORCHLAB_SLURM_BASE"):
        if given.startswith("-"):
            raise BadInput("ORCHLAB_SLURM_BASE", given, "is no name of an image", f"for example {DEFAULT_BASE}")
        return given
    return OWN_BASE if _there(docker, OWN_BASE) else DEFAULT_BASE


def _digest(base: str, pyslurm: str) -> str:
    folder = repository() / "slurm-docker"
    total = hashlib.sha256(f"{base}\0{pyslurm}\0".encode())
    for name in ("Dockerfile", "entrypoint"):
        total.update((folder / name).read_bytes())
    return total.hexdigest()[:12]


def _build(docker: Docker, tag: str, base: str, pyslurm: str) -> None:
    words = ["build", "--tag", tag, "--build-arg", f"BASE_IMAGE={base}", "--build-arg", f"PYSLURM={pyslurm}"]
    # Docker knows these names and keeps them out of the image.
    words += [word for name in PROXIES if name in os.environ for word in ("--build-arg", name)]
    try:
        docker.run(*words, str(repository() / "slurm-docker"), seconds=BUILD_SECONDS)
    except EnvironmentBroken as error:
        why = str(error).splitlines()[0]
        if base == DEFAULT_BASE and not _there(docker, base):
            raise EngineUnavailable(f"{base} cannot be pulled: {why}", "make a base from Debian's packages: sudo scripts/build-slurm-base, then orchlab up again") from None
        raise EngineUnavailable(f"the image cannot be built: {why}", f"docker build slurm-docker --build-arg BASE_IMAGE={base} shows the whole log") from None
