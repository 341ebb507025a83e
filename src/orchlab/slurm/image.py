"""The image of the `docker` backend, built from slurm-docker/Dockerfile: once for each content of that folder and each base."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

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
    chosen, pyslurm = base(docker), os.environ.get("ORCHLAB_SLURM_PYSLURM", "")
    tag = f"{NAME}:{_digest(chosen, pyslurm)}"
    if not there(docker, tag):
        say(f"building the image {tag} from {chosen}")
        build(docker, tag, repository() / "slurm-docker", chosen, PYSLURM=pyslurm)
    said = docker.run("run", "--rm", "--network", "none", "--entrypoint", "slurmctld", tag, "-V", seconds=60).stdout
    return tag, versions.parse(said)


def has_pyslurm(docker: Docker, tag: str) -> bool:
    return docker.run("run", "--rm", "--network", "none", "--entrypoint", "test", tag, "-x", "/opt/pyslurm/bin/python", seconds=60, check=False).returncode == 0


def there(docker: Docker, tag: str) -> bool:
    return docker.run("image", "inspect", "--format", "{{.Id}}", tag, check=False).returncode == 0


def base(docker: Docker) -> str:
    """The image that others are built on."""
    if given := os.environ.get("ORCHLAB_SLURM_BASE"):
        if given.startswith("-"):
            raise BadInput("ORCHLAB_SLURM_BASE", given, "is no name of an image", f"for example {DEFAULT_BASE}")
        return given
    return OWN_BASE if there(docker, OWN_BASE) else DEFAULT_BASE


def _digest(base: str, pyslurm: str) -> str:
    folder = repository() / "slurm-docker"
    total = hashlib.sha256(f"{base}\0{pyslurm}\0".encode())
    for name in ("Dockerfile", "entrypoint"):
        total.update((folder / name).read_bytes())
    return total.hexdigest()[:12]


def build(docker: Docker, tag: str, folder: Path, base: str, file: Path | None = None, **arguments: str) -> None:
    """Builds an image on `base` from the files of `folder`. Raises EngineUnavailable with the build's last words."""
    words = ["build", "--tag", tag, *(("--file", str(file)) if file else ()), "--build-arg", f"BASE_IMAGE={base}"]
    words += [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    # Docker knows these names and keeps them out of the image.
    words += [word for name in PROXIES if name in os.environ for word in ("--build-arg", name)]
    try:
        docker.run(*words, str(folder), seconds=BUILD_SECONDS)
    except EnvironmentBroken as error:
        why = str(error).splitlines()[0]
        if base == DEFAULT_BASE and not there(docker, base):
            raise EngineUnavailable(f"{base} cannot be pulled: {why}", "make a base from Debian's packages: sudo scripts/build-slurm-base, then orchlab up again") from None
        raise EngineUnavailable(f"the image cannot be built: {why}", f"docker build {folder} --build-arg BASE_IMAGE={base} shows the whole log") from None
