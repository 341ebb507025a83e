"""The slurmstepds that run an environment's jobs. They outlive slurmd on purpose, so they have to be ended when an environment is stopped.

A slurmstepd overwrites its environment with its title, so it cannot be known by orchlab's mark as other processes are. But it listens on a
socket in its node's spool folder (NODE_JOB.STEP), and the kernel tells who is at the other end.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
from pathlib import Path

import psutil

CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def end_all(spool: Path, seconds: float = 5) -> list[int]:
    """Kills every slurmstepd that listens under `spool`, with all processes that descend from it, and clears their folders;
    returns those that would not go."""
    doomed: list[psutil.Process] = []
    sockets = [path for path in spool.glob("*/*") if path.is_socket()]
    for path in sockets:
        with contextlib.suppress(psutil.Error):
            stepd = psutil.Process(_listener(path))
            doomed += [stepd, *stepd.children(recursive=True)]
    for process in doomed:
        with contextlib.suppress(psutil.Error):
            process.kill()
    _, left = psutil.wait_procs(doomed, timeout=seconds)
    for path in sockets:
        path.unlink(missing_ok=True)
    # A folder that is left over makes slurmd refuse the job when it is started again ("could not create a batch directory").
    for folder in spool.glob("*/job[0-9]*"):
        shutil.rmtree(folder, ignore_errors=True)
    return [process.pid for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def _listener(path: Path) -> int:
    """The process that listens on a unix socket. Raises psutil.NoSuchProcess if none does any more."""
    pid = 0
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2)
        client.connect(str(path))
        pid, _, _ = CREDENTIALS.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    if pid <= 1:
        raise psutil.NoSuchProcess(pid)
    return pid
