"""What the tests of the engines share: small engines of their own, a release server, and a cache per test."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

from orchlab.engines import Progress

MAIN = 'package main\n\nvar version = "none"\n\nfunc main() { println("tiny v" + version) }\n'


def script(version: str, words: str = "tiny") -> bytes:
    """A program that says its version, as an engine's binary would."""
    return f'#!/bin/sh\necho "{words} v{version}"\n'.encode()


def program(file: Path, version: str = "1.2.3") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(script(version))
    file.chmod(0o755)
    return file


def engine(folder: Path, name: str = "tiny", version: str = "1.2.3", download: str = "", build: str = "", extra: str = "") -> Path:
    """Writes engines/NAME/engine.toml and gives its path. `download` and `build` are the bodies of those tables, empty for none."""
    file = folder / name / "engine.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f'name = "{name}"\nversion = "{version}"\nsummary = "A test."\nlicense = "none"\nhomepage = "none"\n{extra}\n'
        + (f"[download]\n{download}\n" if download else "")
        + (f"[build]\n{build}\n" if build else "")
        + '[run]\nversion = ["--version"]\narguments = ["--port={port}", "{folder}/x"]\n'
        + '[run.probe]\nkind = "tcp"\nport = "port"\n'
    )
    return file


def module(folder: Path, *names: str, version: str = "1.2.3", go: str = "1.21") -> None:
    """Engines that are built from one Go module without dependencies, in engines/source/."""
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    (source / "go.mod").write_text(f"module example.invalid/source\n\ngo {go}\n")
    for name in names:
        (source / name).mkdir(exist_ok=True)
        (source / name / "main.go").write_text(MAIN)
        body = f'module = "source"\npackage = "example.invalid/source/{name}"\nldflags = "-s -w -X main.version={version}"\ndisk_mib = 100'
        engine(folder, name, version, build=body)


def archive(member: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo(member)
        info.size, info.mode = len(content), 0o755
        tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Releases:
    """A release server on loopback; as a proxy it refuses. `files` maps a path to its content.

    `cut` says for a path how many more times its connection breaks half way; `asked` keeps what was asked for.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: dict[str, int] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                content = outer.files.get(self.path)
                if content is None:
                    return self.send_error(404)
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if outer.cut.get(self.path, 0):
                    outer.cut[self.path] -= 1
                    content = content[: len(content) // 2]
                self.wfile.write(content)

            def do_CONNECT(self) -> None:
                outer.asked.append(f"CONNECT {self.path}")
                self.send_error(403)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Recorder(list[Progress]):
    """A progress callable that keeps what it was told."""

    def __call__(self, event: Progress) -> None:
        self.append(event)

    def said(self, phase: str) -> str:
        return "\n".join(event.text for event in self if event.phase == phase)


def child(code: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Another orchlab: a Python process of its own."""
    return subprocess.Popen([sys.executable, "-c", code], env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def unfinished(cache: Path) -> list[Path]:
    """What is left of unfinished work in the cache."""
    return [path for path in (cache / "engines" / ".work").glob("*") if path.suffix != ".lock"]
