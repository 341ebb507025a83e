"""Starts one supervised process: waits for what it needs, ties its life to the supervisor's, then becomes it by exec.

Run as a script with isolated Python and the standard library only, since every engine starts through it.
Exit codes: 127 the program cannot be executed, 75 something it needs did not come up in time (the supervisor tries again).
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG = 1
CANNOT_EXECUTE = "cannot execute"


def die_with_parent() -> None:
    """A supervisor that is killed must not leave its engines running. Linux only; elsewhere `orchlab down` finds them by their environment."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(75)


def is_up(need: str) -> bool:
    """need: `tcp:HOST:PORT`, `unix:PATH` (a listening socket), `listens:PORT` (the same for servers that complain of a connection
    without a request) or `file:PATH` (exists)."""
    kind, _, target = need.partition(":")
    if kind == "file":
        return os.path.exists(target)
    if kind == "listens":
        return listens(int(target))
    try:
        if kind == "unix":
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1)
                client.connect(target)
        else:
            host, _, port = target.rpartition(":")
            socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def listens(port: int) -> bool:
    """Whether some process listens on that TCP port over IPv4, in the kernel's words (Linux): nobody is bothered by asking."""
    with open("/proc/net/tcp") as table:
        next(table)
        fields = (line.split(None, 4) for line in table)
        return any(state == "0A" and int(local.rpartition(":")[2], 16) == port for _, local, _, state, _ in fields)


def main() -> None:
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    die_with_parent()
    deadline = time.monotonic() + spec["wait_seconds"]
    for need in spec["waits"]:
        while not is_up(need):
            if time.monotonic() > deadline:
                sys.exit(f"{spec['name']}: {need} did not come up within {spec['wait_seconds']} s")
            time.sleep(0.02)
    if spec.get("folder"):
        os.chdir(spec["folder"])
    os.umask(0o077)
    try:
        os.execve(spec["argv"][0], spec["argv"], spec["env"])
    except OSError as error:
        print(f"{CANNOT_EXECUTE} {spec['argv'][0]}: {error.strerror}", flush=True)
        sys.exit(127)


if __name__ == "__main__":
    main()
