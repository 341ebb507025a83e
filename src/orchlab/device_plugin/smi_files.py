"""What `nvidia-smi` prints in a container, as files that its kubelet mounts: a folder for each set of devices that was given out.

FOLDER/<digest of the device ids>/ has the script nvidia-smi and texts/, which holds its answers: table, list, lgip, lgi as printed, and
query, a piece of shell with all values.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import threading
import time
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from orchlab.gpu_operator.readings import Readings
from orchlab.gpu_operator.smi import HEADER
from orchlab.gpus import smi

# What --query-gpu knows there: all that gpus.smi does but a few of the aliases.
FIELDS = ("index", "name", "uuid", "count", "driver_version", "pci.bus_id", "pci.device_id", "persistence_mode", "compute_mode", "compute_cap",
          "pstate", "mig.mode.current", "mig.mode.pending", "memory.total", "memory.used", "memory.free", "utilization.gpu",
          "utilization.memory", "temperature.gpu", "power.draw", "power.limit", "clocks.sm", "clocks.mem", "gpu_name", "gpu_uuid")
SCRIPT, TEXTS = "nvidia-smi", "texts"
# A folder that no container holds is kept for so long (s): kubelet says nothing of containers that have not started, nor of init containers.
KEEP = 3600.0


def digest(ids: Iterable[str]) -> str:
    """The name of the folder for these device ids."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:16]


def texts(found: Readings) -> dict[str, str]:
    """The files by name, for a container that sees these GPUs."""
    seen = found.inventory
    return {"table": smi.table(seen, found.holders, found.loads, header=HEADER), "list": smi.listing(seen, header=HEADER),
            "lgip": smi.instance_profiles(seen, header=HEADER), "lgi": smi.instances(seen, header=HEADER), "query": _query(found)}


def _query(found: Readings) -> str:
    """Shell that sets `header`, `failure` (what there is to say instead of values, or ""), `rows` (the number of GPUs) and `known`, and
    defines `get FIELD ROW`: sets `value` for row 0 (the title) and the GPUs 1 to `rows`, each also as ROW-plain without its unit."""
    seen, cases = found.inventory, []
    failure = "" if seen.driver_ok and seen.gpus else smi.listing(seen).rstrip("\n")
    for field in FIELDS:
        for suffix, nounits in (("", False), ("-plain", True)):
            lines = [field] if failure else smi.query(seen, field, found.holders, found.loads, nounits=nounits).splitlines()
            cases += [f"    {field}:{row}{suffix}) value={shlex.quote(text)} ;;" for row, text in enumerate(lines)]
    settings = {"header": HEADER, "failure": failure, "rows": str(len(seen.gpus)), "known": ", ".join(FIELDS)}
    return "\n".join([*(f"{name}={shlex.quote(value)}" for name, value in settings.items()), "get() {", '  case "$1:$2" in', *cases,
                      "    *) return 1 ;;", "  esac", "}", ""])


class Folders:
    """The folders under `root`. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._written: dict[str, dict[str, str]] = {}
        self._seen: dict[str, float] = {}

    def write(self, ids: Iterable[str], found: Readings) -> Path:
        """The folder for these devices with what is to be seen there now. Raises OSError."""
        name = digest(ids)
        folder, wanted = self.root / name, texts(found)
        with self._lock:
            self._seen[name] = time.monotonic()
            if self._written.get(name) != wanted or not folder.exists():
                (folder / TEXTS).mkdir(parents=True, exist_ok=True)
                for part, text in wanted.items():
                    _put(folder / TEXTS / part, text)
                _put(folder / SCRIPT, resources.files(__package__).joinpath("nvidia_smi.sh").read_text(encoding="utf-8"), 0o755)
                self._written[name] = wanted
        return folder

    def sweep(self, held: set[str]) -> None:
        """Removes the folders that are not in `held` (names) and have not been for KEEP seconds."""
        now = time.monotonic()
        with self._lock:
            for folder in self.root.iterdir() if self.root.is_dir() else ():
                if folder.name in held:
                    self._seen[folder.name] = now
                elif now - self._seen.setdefault(folder.name, now) >= KEEP:
                    shutil.rmtree(folder, ignore_errors=True)
                    self._seen.pop(folder.name, None)
                    self._written.pop(folder.name, None)


def _put(path: Path, text: str, mode: int = 0o644) -> None:
    """Replaces a file that a container may be reading; leaves one that is right alone, because a mount holds on to the very file."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.chmod(mode)
    os.replace(new, path)
