"""Room on the Docker Engine: removes images of the `docker` backend that no environment uses."""

from __future__ import annotations

import json
import os
import shutil

from orchlab.errors import OrchlabError
from orchlab.paths import state_home
from orchlab.slurm import image
from orchlab.slurm.containers import SETTINGS, Docker

LABEL = "orchlab=slurm"  # set by slurm-docker/Dockerfile
SECONDS = 3  # for an engine that may not be there


def prune() -> list[str]:
    """Removes them and returns their names; [] where no engine answers at once. Others' images that were built upon ours carry the label as
    well, so the name counts too; what a container uses Docker keeps."""
    program = shutil.which("docker")
    if program is None:
        return []
    docker = Docker(program, (), {name: os.environ[name] for name in SETTINGS if name in os.environ})
    try:
        words = ("image", "ls", "--filter", f"label={LABEL}", "--format", "{{.Repository}}:{{.Tag}}", image.NAME)
        said = docker.run(*words, seconds=SECONDS).stdout
        unused = sorted({name for name in said.split() if name.startswith(f"{image.NAME}:") and not name.endswith(":<none>")} - _used())
        return [name for name in unused if docker.run("image", "rm", name, check=False).returncode == 0]
    except OrchlabError:
        return []


def _used() -> set[str]:
    """What the environments' last `up` chose, whether they run or not."""
    found = set()
    for path in state_home().glob("*/slurm-docker/chosen.json"):
        try:
            found.add(json.loads(path.read_text())["image"])
        except (OSError, ValueError, KeyError):
            continue
    return found
