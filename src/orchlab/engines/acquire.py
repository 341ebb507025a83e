"""`ensure`: a verified binary for each engine, from the first source that has it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from orchlab.engines import cache
from orchlab.engines.events import Progress, Report, silent
from orchlab.engines.spec import Engine, group, load
from orchlab.errors import BadInput, EngineUnavailable, OrchlabError

SOURCES = ("cache", "path", "download", "build")
NOT_ON_PATH = "not on PATH"
LIMIT = 45 * 60.0  # seconds for one group of engines


def ensure(
    wanted: Iterable[str],
    progress: Report | None = None,
    allow: Sequence[str] = SOURCES,
    *,
    folder: Path | None = None,
    limit: float = LIMIT,
    nice: int = 0,
) -> dict[str, Path]:
    """A verified binary for each wanted engine, by name.

    `progress` gets Progress reports; `allow` names the sources that may be used ("cache" stands for what is there already); `folder`
    holds the engine.toml folders (default: the clone's engines/); `limit` is in seconds per group of engines that are built
    together; `nice` is added to the priority value of builds. Raises BadInput (unknown engine, bad engine.toml),
    EngineUnavailable (every source failed: says why each did) or TimeLimitReached.
    """
    report = silent if progress is None else progress
    if unknown := set(allow) - set(SOURCES):
        raise BadInput("allow", sorted(unknown)[0], "no such source", f"known are: {', '.join(SOURCES)}")
    engines = {name: load(name, folder) for name in dict.fromkeys(wanted)}
    found: dict[str, cache.Entry] = {}
    groups: dict[str, list[Engine]] = {}
    for name, engine in engines.items():
        if entry := _cached(engine, allow):
            found[name] = entry
            _ready(entry, report)
        else:
            groups.setdefault(group(engine), []).append(engine)
    for name, members in groups.items():
        made = _prepare(name, members, report, allow, limit, nice)
        found |= made
        for entry in made.values():
            _ready(entry, report)
    return {name: Path(found[name].path) for name in engines}


def _ready(entry: cache.Entry, report: Report) -> None:
    report(Progress(entry.name, "found", 1.0, f"{entry.version} ({entry.source})"))


def _cached(engine: Engine, allow: Sequence[str]) -> cache.Entry | None:
    if "cache" not in allow:
        return None
    return cache.find(engine, ("path", "download", "build"))


def _prepare(name: str, engines: list[Engine], report: Report, allow: Sequence[str], limit: float, nice: int) -> dict[str, cache.Entry]:
    label = ", ".join(engine.name for engine in engines)
    try:
        with cache.lock(name, report, label, limit) as work:
            return _make(engines, work, report, allow, limit, nice)
    except OSError as error:
        raise OrchlabError(
            f"{label}: {error.strerror or error} ({error.filename or cache.home()})",
            "free some space or mend the folder, or set ORCHLAB_CACHE to another one",
        ) from None


def _make(engines: list[Engine], work: Path, report: Report, allow: Sequence[str], limit: float, nice: int) -> dict[str, cache.Entry]:
    from orchlab.engines import download, running

    done: dict[str, cache.Entry] = {}
    why: dict[str, list[str]] = {engine.name: [] for engine in engines}
    for engine in engines:
        if entry := _cached(engine, allow):  # made by another process while this one waited
            done[engine.name] = entry
            continue
        if "path" in allow:
            binary, problem = running.on_path(engine)
            if binary:
                done[engine.name] = cache.add(engine, "path", binary, "", work)
                continue
            why[engine.name].append(problem)
        if "download" in allow:
            if os.environ.get("ORCHLAB_NO_DOWNLOAD", "") not in ("", "0"):
                why[engine.name].append("downloads are switched off by ORCHLAB_NO_DOWNLOAD")
                continue
            try:
                binary, address = download.download(engine, work, report)
                _verify(binary, engine)
                done[engine.name] = cache.add(engine, "download", binary, address, work)
            except (download.DownloadFailed, EngineUnavailable) as error:
                why[engine.name].append(str(error))

    left = [engine for engine in engines if engine.name not in done]
    buildable = [engine for engine in left if engine.build] if "build" in allow else []
    if buildable:
        _explain(buildable, why, report)
        try:
            done |= _build(buildable, work, report, limit, nice)
        except EngineUnavailable as error:
            raise EngineUnavailable(f"{error.args[0]}\nBefore that: {_reasons(buildable, why)}", error.remedy) from None
    if lacking := [engine.name for engine in left if engine.name not in done]:
        reasons = "; ".join(f"{name}: {', '.join(why[name]) or 'not in the cache'}" for name in lacking)
        raise EngineUnavailable(f"no allowed source ({', '.join(allow)}) has {', '.join(lacking)}. {reasons}", "allow more sources")
    return done


def _explain(engines: list[Engine], why: dict[str, list[str]], report: Report) -> None:
    """One line on why these engines are built, without the obvious reason that they are not on PATH."""
    reasons = _reasons(engines, {name: [reason for reason in found if reason != NOT_ON_PATH] for name, found in why.items()})
    label = ", ".join(engine.name for engine in engines)
    report(Progress(label, "note", None, "; ".join(filter(None, [reasons, "building from source"]))))


def _reasons(engines: list[Engine], why: dict[str, list[str]]) -> str:
    """Each reason once."""
    return "; ".join(dict.fromkeys(reason for engine in engines for reason in why[engine.name]))


def _build(engines: list[Engine], work: Path, report: Report, limit: float, nice: int) -> dict[str, cache.Entry]:
    from orchlab.engines import build

    done = {}
    for ldflags in dict.fromkeys(engine.build.ldflags for engine in engines if engine.build):
        members = [engine for engine in engines if engine.build and engine.build.ldflags == ldflags]
        binaries, go_version = build.build(members, work, report, limit, nice)
        for engine in members:
            _verify(binaries[engine.name], engine)
            done[engine.name] = cache.add(engine, "build", binaries[engine.name], f"go {go_version}", work)
    return done


def _verify(binary: Path, engine: Engine) -> None:
    from orchlab.engines import running

    binary.chmod(0o755)
    if problem := running.reported_version(binary, engine):
        raise EngineUnavailable(f"{engine.name}: the new binary {problem}", f"compare engines/{engine.name}/engine.toml with what it names")
