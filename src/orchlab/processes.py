"""What a process of an environment is: a command, what it needs first, how to see that it is ready. Backends declare these as data."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from orchlab import launch


class NotReady(Exception):
    """What a probe saw instead of readiness."""


@dataclass(frozen=True)
class Probe:
    """`target` is an https URL, `tcp:HOST:PORT`, `listens:PORT`, `unix:PATH` or `file:PATH`. Certificates are for https only."""

    target: str
    authority: Path | None = None
    pair: tuple[Path, Path] | None = None

    def check(self, seconds: float = 2) -> None:
        """Raises NotReady with what was seen."""
        try:
            if self.target.startswith("https:"):
                self._https(seconds)
            elif self.target.startswith("unix:"):
                with socket.socket(socket.AF_UNIX) as client:
                    client.settimeout(seconds)
                    client.connect(self.target[5:])
            elif self.target.startswith("file:"):
                if not Path(self.target[5:]).exists():
                    raise NotReady(f"{self.target[5:]} is not there yet")
            elif self.target.startswith("listens:"):
                if not launch.listens(int(self.target[8:])):
                    raise NotReady(f"nothing listens on port {self.target[8:]}")
            else:
                host, _, port = self.target.removeprefix("tcp:").rpartition(":")
                socket.create_connection((host, int(port)), timeout=seconds).close()
        except (OSError, http.client.HTTPException) as error:
            raise NotReady(f"{self.target}: {error}") from error

    def _https(self, seconds: float) -> None:
        url = urlsplit(self.target)
        pair = self.pair or (None, None)
        connection = http.client.HTTPSConnection(url.hostname, url.port, timeout=seconds, context=_context(*map(_stamp, (self.authority, *pair))))
        try:
            connection.request("GET", url.path + (f"?{url.query}" if url.query else ""))
            answer = connection.getresponse()
            text = answer.read(4096).decode(errors="replace")
            if answer.status != 200:
                failing = [line for line in text.splitlines() if "[-]" in line]
                raise NotReady(f"{self.target} answers {answer.status}: {'; '.join(failing) or text[:200]}")
        finally:
            connection.close()

    def as_need(self) -> str:
        """The cheap form of this probe that launch.py understands: a socket that listens or a file that exists."""
        if self.target.startswith("https:"):
            url = urlsplit(self.target)
            return f"tcp:{url.hostname}:{url.port}"
        return self.target


def _stamp(path: Path | None) -> tuple[Path, int] | None:
    return (path, path.stat().st_mtime_ns) if path else None


@lru_cache(maxsize=32)
def _context(authority: tuple[Path, int] | None, certificate: tuple[Path, int] | None, key: tuple[Path, int] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority[0] if authority else None)
    if certificate and key:
        context.load_cert_chain(certificate[0], key[0])
    return context


@dataclass(frozen=True)
class ProcessSpec:
    """One process.

    `needs` names processes that have to listen before this one starts; `waits` further things in launch.py's form; `files` is what it reads at
    its start: when one of them changes, the process is restarted. `ports` are those it listens on, by the names in the environment's record.
    Times in seconds.
    """

    name: str
    argv: tuple[str, ...]
    probe: Probe
    needs: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    files: tuple[Path, ...] = ()
    ports: tuple[str, ...] = ()
    stop_seconds: int = 5
    wait_seconds: int = 60

    def launch_json(self, specs: dict[str, ProcessSpec], base_env: dict[str, str]) -> str:
        """What launch.py reads."""
        waits = [specs[need].probe.as_need() for need in self.needs if need in specs] + list(self.waits)
        return json.dumps({"name": self.name, "argv": list(self.argv), "waits": waits, "wait_seconds": self.wait_seconds,
                           "env": base_env | self.env, "folder": str(self.folder) if self.folder else ""}, indent=1)

    def digest(self, launch_json: str) -> str:
        """Changes when the process has to be restarted: command, environment or a file that it reads."""
        total = hashlib.sha256(launch_json.encode())
        for path in self.files:
            total.update(path.read_bytes() if path.exists() else b"-")
        return total.hexdigest()[:16]


def levels(specs: Iterable[ProcessSpec]) -> list[list[str]]:
    """Names grouped by how deep their needs go: level 0 needs nothing. Stopping goes from the last level to the first."""
    by_name = {spec.name: spec for spec in specs}
    depth: dict[str, int] = {}

    def of(name: str, path: tuple[str, ...] = ()) -> int:
        if name in path:
            raise ValueError(f"processes need each other in a circle: {' → '.join([*path, name])}")
        if name not in depth:
            needs = [need for need in by_name[name].needs if need in by_name]
            depth[name] = 1 + max((of(need, (*path, name)) for need in needs), default=-1)
        return depth[name]

    for name in by_name:
        of(name)
    return [[name for name in by_name if depth[name] == level] for level in range(max(depth.values(), default=-1) + 1)]
