"""The cache of engine binaries: cache_home()/engines/NAME/VERSION-KEY/{NAME, engine.json}, outside the repository.

KEY is a digest of everything that decides what the binary is, so a changed go.sum or linker flag asks for a new one. An entry appears by
renaming a finished folder; all unfinished work is in .work/, which belongs to whoever holds the group's lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from orchlab.engines.events import Progress, Report
from orchlab.engines.spec import Engine, system
from orchlab.errors import OrchlabError, TimeLimitReached
from orchlab.paths import cache_home

RECORD = "engine.json"
SCHEMA = 1


@dataclasses.dataclass
class Entry:
    """A binary that is there. `path` is in the cache, or the user's own file when `source` is "path".

    `sha256` is of the binary; `size` in bytes, `mtime_ns` in nanoseconds; `made` in ISO 8601 UTC; `detail` is the address it came from,
    the Go version that built it, or empty.
    """

    schema: int
    name: str
    version: str
    source: str  # path | download | build
    path: str
    sha256: str
    size: int
    mtime_ns: int
    made: str
    detail: str


def home() -> Path:
    """The folder of all entries and of .work, made if they are missing. Raises OrchlabError if it cannot be."""
    folder = cache_home() / "engines"
    try:
        (folder / ".work").mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OrchlabError(f"{folder} cannot be written: {error.strerror}", "set ORCHLAB_CACHE to a folder you can write") from None
    return folder


def key(engine: Engine, source: str) -> str:
    """Twelve hexadecimal digits that stand for all that decides what `source` gives for this engine on this machine."""
    parts: list[object] = [SCHEMA, engine.name, engine.version, source, system()]
    if source == "path":
        parts.append(engine.version_module or engine.version_command)
    if source == "download" and engine.download:
        parts.append(dataclasses.astuple(engine.download))
    if source == "build" and engine.build:
        parts += [engine.build.package, engine.build.ldflags]
        module = engine.folder / engine.build.module
        parts += [hashlib.sha256(file.read_bytes()).hexdigest() for file in (module / "go.mod", module / "go.sum") if file.exists()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def slot(engine: Engine, source: str) -> Path:
    """The folder where an entry of this engine from `source` belongs."""
    return cache_home() / "engines" / engine.name / f"{engine.version}-{key(engine, source)}"


def read(folder: Path) -> Entry | None:
    """The entry recorded in `folder`; None if there is none or the record is unreadable (it is then made anew)."""
    try:
        entry = Entry(**json.loads((folder / RECORD).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return entry if entry.schema == SCHEMA else None


def find(engine: Engine, sources: tuple[str, ...]) -> Entry | None:
    """A sound entry from one of `sources`, or None. Quick: compares size and time; only if they differ, the content is read."""
    for source in sources:
        folder = slot(engine, source)
        entry = read(folder)
        if entry and sound(entry, folder):
            return entry
    return None


def sound(entry: Entry, folder: Path, thorough: bool = False) -> bool:
    """Is the binary still the one that was recorded? `thorough` reads all of it.

    A binary whose time changed but not its content (a copied cache) is recorded anew.
    """
    file = Path(entry.path)
    try:
        status = file.stat()
        if status.st_size != entry.size or not os.access(file, os.X_OK):
            return False
        if thorough or status.st_mtime_ns != entry.mtime_ns:
            if digest(file) != entry.sha256:
                return False
            if status.st_mtime_ns != entry.mtime_ns:
                with contextlib.suppress(OSError):  # a cache that cannot be written is still good to read
                    _write_record(folder, dataclasses.replace(entry, mtime_ns=status.st_mtime_ns))
    except OSError:
        return False
    return True


def digest(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def add(engine: Engine, source: str, binary: Path, detail: str, work: Path) -> Entry:
    """Puts a finished binary into the cache: from `work` by one rename, or, for source "path", as a record of where it is."""
    final, fresh = slot(engine, source), Path(tempfile.mkdtemp(dir=work))
    if source != "path":
        os.replace(binary, fresh / engine.name)
        (fresh / engine.name).chmod(0o755)
        binary = fresh / engine.name
    status = binary.stat()
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    path = binary if source == "path" else final / engine.name
    sha256, size_now = digest(binary), status.st_size
    entry = Entry(SCHEMA, engine.name, engine.version, source, str(path), sha256, size_now, status.st_mtime_ns, now, detail)
    _write_record(fresh, entry)
    fresh.chmod(0o755)
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.exists():  # damaged, or it would have been used; whoever still runs it keeps its file open
        os.replace(final, work / f"old-{engine.name}-{final.name}")
    os.replace(fresh, final)
    return entry


def _write_record(folder: Path, entry: Entry) -> None:
    temporary = folder / f".{RECORD}.{os.getpid()}"
    temporary.write_text(json.dumps(dataclasses.asdict(entry), indent=1) + "\n")
    os.replace(temporary, folder / RECORD)


@contextlib.contextmanager
def lock(group: str, report: Report, names: str, limit: float) -> Iterator[Path]:
    """Holds the group's lock and gives an empty folder to work in, removed afterwards.

    Waits up to `limit` seconds for another process, reporting so; raises TimeLimitReached. The lock goes with the process, however
    it ends; what it left in .work/ is removed by the next holder.
    """
    work = home() / ".work"
    with (work / f"{group}.lock").open("a+") as file:
        end, told = time.monotonic() + limit, 0.0
        while not _try_lock(file):
            if time.monotonic() > end:
                raise TimeLimitReached(
                    f"another orchlab (process {_holder(file)}) has been preparing {names} for {limit / 60:.0f} minutes",
                    f"see what it does, or end it: kill {_holder(file)}",
                )
            if time.monotonic() - told >= 15:
                told = time.monotonic()
                report(Progress(names, "waiting", None, f"another orchlab (process {_holder(file)}) is preparing {names}; waiting for it"))
            time.sleep(0.2)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        clean(group)
        folder = Path(tempfile.mkdtemp(prefix=f"{group}@", dir=work))
        try:
            yield folder
        finally:
            remove(folder)


@contextlib.contextmanager
def idle(group: str) -> Iterator[bool]:
    """Holds the group's lock if nobody else does; tells whether it was got."""
    with (home() / ".work" / f"{group}.lock").open("a+") as file:
        yield _try_lock(file)


def clean(group: str) -> int:
    """Removes what dead processes left in the group's work folders; only for the holder of its lock. Returns bytes freed."""
    return sum(remove(folder) for folder in (home() / ".work").glob(f"{group}@*"))


def remove(folder: Path) -> int:
    """Removes a folder, read-only parts (Go's module cache) included. Returns the bytes that it held."""
    freed = size(folder)
    for root, _, _ in os.walk(folder):
        if not os.access(root, os.W_OK):
            os.chmod(root, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
    return freed


def size(folder: Path) -> int:
    """Bytes in all files under `folder`."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def _try_lock(file: object) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[arg-type]
    except BlockingIOError:
        return False
    return True


def _holder(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    return file.read().strip() or "unknown"  # type: ignore[attr-defined]
