"""The ports of an environment: free ones are chosen once, remembered, and looked at before they are used."""

from __future__ import annotations

import random
import socket

from orchlab import locks
from orchlab.environment import Environment, names
from orchlab.errors import EnvironmentBroken, OrchlabError

# Below Linux's range for outgoing connections (32768 and up), so that no client takes a remembered port while we are down.
PORTS = range(20000, 32000)


def assign(environment: Environment, wanted: list[str], afresh: bool) -> None:
    """Chooses the wanted ports that the environment has no number for yet; all of them if `afresh`. Ports of other environments stay theirs."""
    ports = environment.record.ports
    if afresh:
        ports.clear()
    if all(name in ports for name in wanted):
        return
    # Others may be choosing theirs at this moment.
    with locks.locked(".ports", 30):
        taken = {port for other in names() for port in _of(other)} | set(ports.values())
        free = (port for port in random.sample(PORTS, len(PORTS)) if port not in taken and _is_free(port))
        for name in wanted:
            ports.setdefault(name, next(free))
        environment.save()


def _of(name: str) -> list[int]:
    try:
        return list(Environment.load(name).record.ports.values())
    except OrchlabError:
        return []


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: a connection that still lingers in TIME_WAIT does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def check(environment: Environment, specs: list, running: bool) -> None:
    """Raises EnvironmentBroken, naming the holder, for a port that somebody else listens on; before an engine fails on it."""
    if running:
        return
    environment.supervisor.kill_leftovers()
    for spec in specs:
        for port_name in spec.ports:
            port = environment.port(port_name)
            if not _is_free(port):
                raise EnvironmentBroken(f"port {port} ({port_name} of environment {environment.name!r}) is taken by {_holder(port)}",
                                        f"stop that process, or choose other ports: orchlab up --name {environment.name} --new-ports")


def _holder(port: int) -> str:
    import psutil

    try:
        for connection in psutil.net_connections("inet"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN and connection.pid:
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return "another process"
