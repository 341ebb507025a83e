"""`orchlab up` beside `kwokctl create cluster`, in one run: time from the command to a first pod Running, and memory then.

Same binaries, same number of nodes, TLS on both. The two take turns, so that a change of the machine's speed meets both.
Usage: python benchmarks/up.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from measure import describe, first_pod, memory_mib

from orchlab import engines, environment
from orchlab.kube.client import Client
from orchlab.supervisor import MARK

HERE = Path(__file__).parent
NODES = 9


def orchlab(folder: Path) -> tuple[float, float]:
    os.environ["ORCHLAB_HOME"] = str(folder)
    begun = time.monotonic()
    subprocess.run([Path(sys.executable).parent / "orchlab", "up", "--name", "bench", "--slurm", "none"], check=True, capture_output=True, timeout=180)
    env = environment.Environment.load("bench")
    try:
        first_pod(env.client())
        return time.monotonic() - begun, memory_mib(lambda process: process.environ().get(MARK) == str(env.folder))
    finally:
        environment.down("bench", purge=True)


def kwokctl(folder: Path, binaries: dict[str, Path]) -> tuple[float, float]:
    settings = os.environ | {"KWOK_WORKDIR": str(folder), "KUBECONFIG": str(folder / "kubeconfig")}
    command = [str(binaries["kwokctl"]), "--name", "bench"]
    create = [*command, "create", "cluster", "--runtime", "binary", "--secure-port", "--kubeconfig", str(folder / "kubeconfig"),
              *(f"--{name}-binary={binaries[name]}" for name in ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")),
              f"--kwok-controller-binary={binaries['kwok']}"]
    begun = time.monotonic()
    try:
        subprocess.run(create, env=settings, check=True, capture_output=True, timeout=180)
        subprocess.run([*command, "scale", "node", "--replicas", str(NODES)], env=settings, check=True, capture_output=True, timeout=60)
        first_pod(Client.from_kubeconfig(folder / "kubeconfig"))
        return time.monotonic() - begun, memory_mib(lambda process: _under(process, folder))
    finally:
        subprocess.run([*command, "delete", "cluster"], env=settings, check=False, capture_output=True, timeout=60)


def _under(process: psutil.Process, folder: Path) -> bool:
    return any(str(folder) in argument for argument in process.cmdline()) and "kwokctl" not in process.name()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    binaries = engines.ensure(["etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kwok"])
    binaries |= engines.ensure(["kwokctl"], folder=HERE)
    ours, theirs = [], []
    for number in range(rounds + 1):
        folder = Path(tempfile.mkdtemp(prefix="olb", dir="/tmp"))
        try:
            mine, other = orchlab(folder / "o"), kwokctl(folder / "k", binaries)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{'warm-up' if number == 0 else f'round {number}'}: orchlab {mine[0]:.2f} s, {mine[1]:.0f} MiB; kwokctl {other[0]:.2f} s, {other[1]:.0f} MiB; "
              f"ratio {mine[0] / other[0]:.2f}", flush=True)
        if number:
            ours.append(mine)
            theirs.append(other)
    for index, (what, unit) in enumerate((("time to a first running pod", "s"), ("memory", "MiB"))):
        print(f"{what}: orchlab {describe([one[index] for one in ours], unit)}; kwokctl {describe([one[index] for one in theirs], unit)}; "
              f"median of the pairs' ratios {statistics.median(a[index] / b[index] for a, b in zip(ours, theirs, strict=True)):.2f}")


if __name__ == "__main__":
    main()
