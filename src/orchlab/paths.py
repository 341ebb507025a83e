"""Where orchlab keeps things. State and caches live outside the repository; labs, engines and templates are read from it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from orchlab.errors import OrchlabError


def repository() -> Path:
    """The checkout that this (editable) install runs from. Raises OrchlabError if labs/ and engines/ are not beside the package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "engines").is_dir() or not (root / "labs").is_dir():
        raise OrchlabError(f"{root} has no labs/ and engines/ folders", "install orchlab from a clone: pip install -e .")
    return root


def interpreter() -> str:
    """The Python that runs this, under one name however it was called (python, python3, python3.11): what is declared by it must not look
    changed, and be restarted, only because another command declares it."""
    own = Path(sys.prefix) / "bin" / "python"
    return str(own) if own.exists() and own.resolve() == Path(sys.executable).resolve() else sys.executable


def state_home() -> Path:
    """Folder with one folder per environment: $ORCHLAB_HOME, else $XDG_STATE_HOME/orchlab, else ~/.local/state/orchlab."""
    if given := os.environ.get("ORCHLAB_HOME"):
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "orchlab"


def cache_home() -> Path:
    """Folder with engines and build caches: $ORCHLAB_CACHE, else $XDG_CACHE_HOME/orchlab, else ~/.cache/orchlab."""
    if given := os.environ.get("ORCHLAB_CACHE"):
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "orchlab"


def private_folder(path: Path) -> Path:
    """Makes `path` (0700) if it is missing and tightens it if it is not; parents keep their modes."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


def write_private(path: Path, content: str | bytes) -> Path:
    """Writes a file (0600) so that a reader sees the old or the new content, never half of it."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
