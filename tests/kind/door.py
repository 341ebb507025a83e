"""A way to the Docker Engine that can be shut: for whoever uses it the engine stops, while for all others it goes on."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from pathlib import Path

from orchlab.slurm.containers import Docker

PIECE = 1 << 16


class Door:
    """Listens on a socket of its own and passes everything on to the engine's."""

    def __init__(self, engine: Docker, path: Path) -> None:
        self._engine, self._path = _socket_of(engine), path
        self._seen, self._open, self._connections = b"", False, set[socket.socket]()
        self.open()

    @property
    def address(self) -> str:
        return f"unix://{self._path}"

    def has_seen(self, text: str) -> bool:
        """Whether a client has sent this, since the door was made."""
        return text.encode() in self._seen

    def open(self) -> None:
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        self._open = True
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """As when the engine ends: nobody listens, and connections break."""
        self._open = False
        self._path.unlink(missing_ok=True)
        for one in [self._listener, *self._connections]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._connections.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while self._open:
                client, _ = listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        engine = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError, ValueError), client, engine:
            engine.connect(self._engine)
            self._connections |= {client, engine}
            other = {client: engine, engine: client}
            while other:
                for one in select.select(list(other), [], [], 60)[0]:
                    data = one.recv(PIECE)
                    if one is client:
                        self._seen += data
                    if data:
                        other[one].sendall(data)
                    else:
                        # One side has said all: the other may still answer (docker exec, load).
                        other.pop(one).shutdown(socket.SHUT_WR)
        self._connections -= {client, engine}


def _socket_of(engine: Docker) -> str:
    address = engine.settings.get("DOCKER_HOST") or os.environ.get("DOCKER_HOST") or \
        engine.run("context", "inspect", "--format", "{{.Endpoints.docker.Host}}").stdout.strip()
    assert address.startswith("unix://"), f"the tests' engine is not on this machine: {address}"
    return address.removeprefix("unix://")
