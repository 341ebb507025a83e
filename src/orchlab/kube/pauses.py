"""The fault `api-slow`: pauses etcd nine tenths of the time, by SIGSTOP and SIGCONT, until it is told to end. Run by the supervisor."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

import psutil

from orchlab.supervisor import leftovers

PAUSED, RUNNING = 0.45, 0.05  # seconds


def main(folder: str) -> None:
    """`folder` is the environment's. etcd runs on when this ends."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    store = None
    while not stop.is_set():
        if store is None or not store.is_running():
            store = next((process for process in leftovers(folder) if _is_etcd(process)), None)
        with contextlib.suppress(psutil.Error):
            if store:
                store.suspend()
                stop.wait(PAUSED)
                store.resume()
        stop.wait(RUNNING)


def _is_etcd(process: psutil.Process) -> bool:
    try:
        return os.path.basename(process.cmdline()[0]) == "etcd"
    except (psutil.Error, IndexError):
        return False


if __name__ == "__main__":
    main(sys.argv[1])
