"""One container of an operand of the GPU Operator on a real kubelet: `python -m orchlab.standin.operand NAME [--init NUMBER]`.

What the operator process decides about the pod stands in annotations of the pod, on real nodes as on simulated ones: how many init
containers are done, what the program logs, that it cannot run. The container acts accordingly, so the kubelet sees what it would see of
the real operand: init containers that wait, a program that crashes. Done init containers leave the files of /run/nvidia/validations.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from orchlab.errors import ApiError, EnvironmentBroken
from orchlab.gpu_operator import operands
from orchlab.gpu_operator.gates import ALL
from orchlab.kube.client import Client
from orchlab.simulator.pods import CRASH, INIT, INIT_ERROR, LOG

EVERY = 0.7
VALIDATIONS = Path("/run/nvidia/validations")
# What each init container of the validator leaves for the other operands.
FILES = {operands.DRIVER: "driver-ready", operands.TOOLKIT: "toolkit-ready", operands.CUDA: "cuda-ready", operands.PLUGIN: "plugin-ready"}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="orchlab.standin.operand", description=__doc__.splitlines()[0])
    parser.add_argument("container")
    parser.add_argument("--init", type=int, default=None, metavar="NUMBER", help="this is the pod's init container of that number (from 0)")
    parser.add_argument("--leave", action="store_true", help="write the validator's files")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from orchlab.device_plugin import incluster

    client = incluster.client()
    print(f"SIMULATED by orchlab: {given.container} on a real kubelet; the GPUs and what it does to them are made up.")
    if given.init is None:
        run(client, given.container)
    wait(client, given.init)
    if given.leave and given.container in FILES:
        VALIDATIONS.mkdir(parents=True, exist_ok=True)
        (VALIDATIONS / FILES[given.container]).touch()


def notes(client: Client) -> dict[str, str] | None:
    """The annotations of the own pod; None while the API server does not answer."""
    path = f"/api/v1/namespaces/{os.environ['POD_NAMESPACE']}/pods/{os.environ['POD_NAME']}"
    try:
        return client.get(path)["metadata"].get("annotations") or {}
    except (ApiError, EnvironmentBroken):
        return None


def wait(client: Client, number: int) -> None:
    """Returns when init container `number` is done; exits with 1 and the operator's words when it fails."""
    while True:
        found = notes(client)
        if found is not None:
            told = found.get(INIT, "0")
            if told == ALL or (told.isdigit() and int(told) > number):
                return
            if INIT_ERROR in found and told == str(number):
                print(found[INIT_ERROR])
                sys.exit(1)
        time.sleep(EVERY)


def run(client: Client, container: str) -> None:
    """The pod's program: prints what it logs as that comes, and ends with 1 when it cannot run."""
    said = ""
    while True:
        found = notes(client)
        if found is not None:
            if (told := found.get(LOG, "")) != said:
                print(told.removeprefix(said).strip("\n"))
                said = told
            if CRASH in found:
                sys.exit(1)
        time.sleep(EVERY)


if __name__ == "__main__":
    main()
