"""The image of what runs on real kubelets (orchlab.standin), built once for each content: the package, its dependencies, KWOK, the base."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from orchlab.errors import EngineUnavailable, EnvironmentBroken
from orchlab.paths import repository
from orchlab.slurm import image
from orchlab.slurm.containers import Docker

NAME = "orchlab/standin"
# What the simulator, the device plugin and the stand-ins import, all of it in requirements.lock.
PACKAGES = ("grpcio", "protobuf", "psutil", "pyyaml", "typing-extensions", "urllib3")
BUILD_SECONDS = 900


def ensure(docker: Docker, kwok: Path, say: Callable[[str], None]) -> str:
    """The image's tag; builds it if it is not there. Raises EngineUnavailable with the build's last words."""
    base = image.base(docker)
    tag = f"{NAME}:{_digest(base, kwok)}"
    if image.there(docker, tag):
        return tag
    say(f"building the image {tag} from {base}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        package = repository() / "src" / "orchlab"
        shutil.copytree(package, folder / "orchlab", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        shutil.copy2(kwok, folder / "kwok")
        _wheels(folder / "site", _python_version(docker, base))
        image.build(docker, tag, folder, base, package / "standin" / "Dockerfile")
    return tag


def _digest(base: str, kwok: Path) -> str:
    total = hashlib.sha256(f"{base}\0{kwok.parent.name}\0".encode())
    total.update((repository() / "requirements.lock").read_bytes())
    package = repository() / "src" / "orchlab"
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            total.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]


def _python_version(docker: Docker, base: str) -> str:
    """Of the Python that the base's packages have, e.g. "3.13"."""
    words = ("run", "--rm", base, "sh", "-c", "apt-get update -qq >/dev/null && apt-cache policy python3-minimal")
    said = docker.run(*words, seconds=120).stdout
    found = re.search(r"Candidate: (\d+\.\d+)", said)
    if found is None:
        raise EngineUnavailable(f"{base} has no package python3-minimal", "use a Debian or Ubuntu base: ORCHLAB_SLURM_BASE")
    return found[1]


def _wheels(target: Path, version: str) -> None:
    """Unpacks the packages of requirements.lock for that Python, their hashes checked."""
    lock = (repository() / "requirements.lock").read_text(encoding="utf-8")
    blocks = re.findall(r"^([a-z0-9-]+)==[^\n]*(?:\n    [^\n]*)*", lock, re.M)
    texts = dict(zip(blocks, (found[0] for found in re.finditer(r"^[a-z0-9-]+==[^\n]*(?:\n    [^\n]*)*", lock, re.M)), strict=True))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        # A marker that names platforms is settled by what is asked for below.
        file.write("\n".join(re.sub(r" ; [^\\\n]*", " ", texts[name]) for name in PACKAGES) + "\n")
        file.flush()
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(target), "--no-deps", "--only-binary=:all:",
                 "--implementation", "cp", "--python-version", version, *(f"--platform=manylinux{kind}_{platform.machine()}" for kind in ("2014", "_2_28", "_2_17")),
                 "--require-hashes", "--requirement", file.name]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise EngineUnavailable("the image's Python packages did not arrive in time", "see whether pip works here: pip download urllib3") from None
    if done.returncode:
        raise EnvironmentBroken(f"pip cannot fetch the image's Python packages: {(done.stderr.strip().splitlines() or ['it did not say why'])[-1]}",
                                "see whether pip works here: pip download urllib3")
