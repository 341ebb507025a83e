"""Runs the helper programs of this package: version commands, Go. Each has a time limit and ends with its parent."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from orchlab.engines.spec import Engine
from orchlab.paths import cache_home

VERSION_LIMIT = 20.0  # seconds for a version command; a cold 100 MB binary on a slow disk needs several
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}

# Started in between so that the program dies with its parent, even one killed by -9 (PR_SET_PDEATHSIG is 1). Not a preexec_fn: that
# is unsafe in a process with threads, and a notebook has many.
_LEASH = """
import ctypes, os, signal, sys
parent, nice = int(sys.argv[1]), int(sys.argv[2])
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != parent:
    os._exit(1)
os.nice(nice)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def reported_version(binary: Path, engine: Engine) -> str:
    """What the binary's version command says: "" if it is exactly the pinned version, else what is wrong. Of a program that has no such
    command: what its build information says."""
    if engine.version_module:
        return _built_version(binary, engine)
    command = [str(binary), *engine.version_command]
    try:
        result = subprocess.run(command, **QUIET, timeout=VERSION_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return f"`{engine.name} {' '.join(engine.version_command)}` did not end within {VERSION_LIMIT:.0f} s"
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    text = result.stdout.decode(errors="replace").strip()
    if result.returncode:
        return f"its version command ended with status {result.returncode}: {text[-200:]}"
    if not re.search(rf"(?<![\w.])v?{re.escape(engine.version)}(?![\w.+-])", text):
        return f"is not version {engine.version}: it says {text.splitlines()[0][:80] if text else 'nothing'!r}"
    return ""


def _built_version(binary: Path, engine: Engine) -> str:
    """The same from the lines "mod" (its own module) and "dep" that Go keeps in a binary, stripped or not (debug/buildinfo)."""
    line = re.compile(rb"\n(?:mod|dep)\t" + re.escape(engine.version_module.encode()) + rb"\t(v[^\t\n]+)")
    try:
        with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = [bytes(match[1]) for match in [line.search(content)] if match]
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}"
    if not found:
        return f"has no build information of {engine.version_module}"
    seen = found[0].decode(errors="replace")
    return "" if seen == f"v{engine.version}" else f"is not version {engine.version}: it was built from {engine.version_module} {seen}"


def on_path(engine: Engine) -> tuple[Path | None, str]:
    """The binary on PATH if it has exactly the pinned version; else None and why, in words."""
    found = shutil.which(engine.name)
    if not found:
        return None, "not on PATH"
    binary = Path(found).absolute()
    if binary.resolve().is_relative_to(cache_home().resolve()):
        return None, "on PATH only as a file of this cache"
    problem = reported_version(binary, engine)
    return (None, f"{binary} {problem}") if problem else (binary, "")


def run(
    command: list[str], cwd: Path, env: dict[str, str], limit: float, line: Callable[[str], None], nice: int = 0
) -> tuple[int | None, float]:
    """Runs a program, hands each line of its output (both streams) to `line`, and gives its exit status and the seconds it took.

    The status is None when `limit` (seconds) was reached. The program and its children are ended then, and on any exception.
    """
    start = time.monotonic()
    leash = [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), str(nice), *command]
    process = subprocess.Popen(leash, cwd=cwd, env=env, start_new_session=True, **QUIET)
    try:
        return _follow(process, start + limit, line), time.monotonic() - start
    finally:
        _end(process)


def _follow(process: subprocess.Popen[bytes], end: float, line: Callable[[str], None]) -> int | None:
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left = end - time.monotonic()
            if left <= 0:
                return None
            if not selector.select(min(left, 5.0)):
                line("")  # a sign of life while nothing is printed
                continue
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                break
            *lines, pending = (pending + chunk).split(b"\n")
            for each in lines:
                line(each.decode(errors="replace"))
    if pending:
        line(pending.decode(errors="replace"))
    try:
        return process.wait(max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    # The group is signalled even if its leader is gone: compilers may have outlived it.
    for name in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, name)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
            if name == signal.SIGTERM and not _alive(process.pid):
                break
    process.stdout.close()


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
