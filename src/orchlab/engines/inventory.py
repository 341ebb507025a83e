"""What the cache holds, and making room in it."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from orchlab.engines import cache
from orchlab.engines.spec import Engine, group, load, names
from orchlab.paths import cache_home

SOURCES = ("path", "download", "build")


@dataclasses.dataclass(frozen=True)
class EngineState:
    """One line of `orchlab engines`.

    `state`: ready | missing | corrupt (not what was recorded; the next `ensure` makes it anew) | unused (no engine.toml asks for it).
    `source`: path | download | build, `detail` the address or Go version it came from; `sha256` of the binary; `size` in bytes.
    What is missing has empty texts, no path and size 0.
    """

    name: str
    version: str
    state: str
    source: str = ""
    path: Path | None = None
    sha256: str = ""
    size: int = 0
    made: str = ""
    detail: str = ""


def listing(folder: Path | None = None) -> list[EngineState]:
    """Every engine (optional ones if they are there), then what is in the cache unused. Reads each binary in full; the record of a corrupt one
    is dropped."""
    engines = [load(name, folder) for name in names(folder)]
    found = [(engine, _state(engine)) for engine in engines]
    states = [state for engine, state in found if not (engine.optional and state.state == "missing")]
    for place in _unused(engines):
        if entry := cache.read(place):
            states.append(_describe(entry, "unused"))
    return states


def prune(everything: bool = False, folder: Path | None = None) -> int:
    """Removes what no engine.toml asks for and what interrupted runs left; with `everything` also our Go caches. Returns bytes freed.

    Leaves alone what a daemon is running from and what another orchlab is working on. The user's own Go caches are never touched.
    """
    engines = [load(name, folder) for name in names(folder)]
    running, freed = _in_use(), 0
    unused = [place for place in _unused(engines) if place.resolve() not in running]
    with contextlib.ExitStack() as stack:
        groups = {group(engine) for engine in engines} | {file.stem for file in (cache.home() / ".work").glob("*.lock")}
        busy = {name for name in groups if not stack.enter_context(cache.idle(name))}
        freed += sum(cache.clean(name) for name in groups - busy)
        if not busy:
            freed += sum(cache.remove(place) for place in unused)
            if everything:
                freed += cache.remove(cache_home() / "go")
    return freed


def _state(engine: Engine) -> EngineState:
    worst = EngineState(engine.name, engine.version, "missing")
    for source in SOURCES:
        place = cache.slot(engine, source)
        entry = cache.read(place)
        if not entry:
            continue
        if cache.sound(entry, place, thorough=True):
            return _describe(entry, "ready")
        if source != "path" or Path(entry.path).exists():
            worst = _describe(entry, "corrupt")
        (place / cache.RECORD).unlink(missing_ok=True)
    return worst


def _describe(entry: cache.Entry, state: str) -> EngineState:
    path = Path(entry.path)
    return EngineState(entry.name, entry.version, state, entry.source, path, entry.sha256, entry.size, entry.made, entry.detail)


def _in_use() -> set[Path]:
    import psutil

    return {Path(process.info["exe"]).parent for process in psutil.process_iter(["exe"]) if process.info["exe"]}


def _unused(engines: list[Engine]) -> list[Path]:
    wanted = {cache.slot(engine, source) for engine in engines for source in SOURCES}
    return sorted(place for place in cache.home().glob("[!.]*/*") if place not in wanted)
