"""What the processes of an environment that work on its cluster have in common: their command line, their log, how they end."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path


def main(program: str, description: str, run: Callable[[Path, threading.Event], None]) -> None:
    """Reads --folder from the command line and calls `run` with it, and with an event that nobody sets: SIGTERM and SIGINT end the process
    at once."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--folder", type=Path, required=True, help="the environment's folder, with environment.json, pki/ and kubeconfigs/")
    folder = parser.parse_args().folder
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s",
                        datefmt="%Y-%m-%dT%H:%M:%S")
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    run(folder, threading.Event())


def _leave(*_: object) -> None:
    # All state is in the cluster, so threads that wait for the network need not be waited for.
    os._exit(0)
