"""Keeps kubelet informed: a server for each resource that the node's annotation has, registered with the kubelet that runs now."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchlab.device_plugin.node import OwnNode
from orchlab.device_plugin.server import ResourceServer
from orchlab.errors import EnvironmentBroken

KUBELET = "kubelet.sock"
# How often kubelet's socket is looked at and a failed registration tried again (s).
EVERY = 1.0

log = logging.getLogger("device-plugin")


class Plugins:
    """`folder` is kubelet's for device plugins, `respond` makes a container's answer from (resource, device ids). Only `wake` may be called
    from other threads."""

    def __init__(self, node: OwnNode, folder: Path, respond: Callable[[str, list[str]], Any]) -> None:
        self._node, self._folder, self._respond = node, folder, respond
        self._kubelet: tuple[int, int] | None = None
        self._servers: dict[str, ResourceServer] = {}
        self._woken = threading.Event()
        self._trouble = ""

    def wake(self) -> None:
        """The node has changed, or the plugin is to end."""
        self._woken.set()

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set, of which `wake` tells; then all servers end and their sockets are gone."""
        # Left by a plugin that was killed.
        for socket in self._folder.glob("nvidia-*.sock"):
            socket.unlink(missing_ok=True)
        while not stop.is_set():
            self._woken.clear()
            self.step()
            self._woken.wait(EVERY)
        self.close()

    def step(self) -> None:
        """One look at kubelet and at the node, with what follows from it."""
        now = _identity(self._folder / KUBELET)
        if now is None:
            # No kubelet; what it is told when it comes back is decided then.
            return
        if self._kubelet not in (None, now):
            log.info("inotify: %s created, restarting.", self._folder / KUBELET)
            self.close()
        self._kubelet = now
        wanted = self._node.resources()
        for resource in [name for name, server in self._servers.items() if name not in wanted or not server.socket.exists()]:
            self._servers.pop(resource).stop()
        for resource, offered in sorted(wanted.items()):
            server = self._servers.get(resource) or self._start(resource)
            if server is None:
                continue
            server.offer(offered)
            if not server.registered:
                server.register(self._folder / KUBELET)

    def close(self) -> None:
        """Ends all servers."""
        if self._servers:
            log.info("Stopping plugins.")
        for server in self._servers.values():
            server.stop()
        self._servers.clear()

    def _start(self, resource: str) -> ResourceServer | None:
        server = ResourceServer(resource, self._folder, self._respond)
        try:
            server.start()
        except EnvironmentBroken as error:
            if error.args[0] != self._trouble:
                log.info("%s", error.args[0])
            self._trouble = error.args[0]
            return None
        self._servers[resource] = server
        return server


def _identity(socket: Path) -> tuple[int, int] | None:
    """Tells one kubelet's socket from the next one's; None when there is none."""
    try:
        found = socket.stat()
        return found.st_ino, found.st_ctime_ns
    except OSError:
        return None
