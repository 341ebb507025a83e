"""Slurm beside Kubernetes and the client beside plain sbatch, in one run.

1. Seconds of a warm `up`: Kubernetes alone, Slurm alone, both. Goal: both within twice Kubernetes alone.
2. Submissions of held jobs: plain `sbatch`, then the client over each transport that there is; jobs a second and the ratio to sbatch.
3. 64 nodes: seconds until all are idle, memory of all daemons.

Usage: python benchmarks/slurm.py [--rounds 3] [--jobs 1000] [--skip-nodes]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from orchlab import environment
from orchlab.slurm import notebook, pyslurm_transport
from orchlab.slurm.client import Client

SCRIPT = "#!/bin/sh\ntrue\n"


def warm_up(name: str, kubernetes: str, slurm: str, rounds: int) -> float:
    """The median of `rounds` starts of an environment that has been up before."""
    environment.up(name, kubernetes=kubernetes, slurm=slurm)
    times = []
    for _ in range(rounds):
        environment.down(name)
        begun = time.monotonic()
        environment.up(name)
        times.append(time.monotonic() - begun)
    environment.down(name, purge=True)
    return statistics.median(times)


def plain(env: environment.Environment, jobs: int, folder: Path) -> float:
    """Jobs a second when sbatch is called as a script would."""
    variables, sbatch = notebook.environment(env), env.folder / "slurm" / "bin" / "sbatch"
    begun = time.monotonic()
    for _ in range(jobs):
        subprocess.run(
            [sbatch, "--parsable", "--hold", "-o", "/dev/null"],
            input=SCRIPT,
            text=True,
            env=variables,
            cwd=folder,
            check=True,
            capture_output=True,
            timeout=60,
        )
    return jobs / (time.monotonic() - begun)


def by_client(env: environment.Environment, transport: str, jobs: int, folder: Path) -> float:
    with Client.of(env, transport) as client:
        begun = time.monotonic()
        for _ in range(jobs):
            client.submit(SCRIPT, hold=True, output="/dev/null", chdir=str(folder))
        return jobs / (time.monotonic() - begun)


def clear(env: environment.Environment) -> None:
    notebook.slurm(env, "scancel --state=PENDING --me", seconds=120)


def submissions(jobs: int, folder: Path) -> None:
    env = environment.up("bench", kubernetes="none", slurm="local")
    try:
        base = plain(env, jobs, folder)
        print(f"sbatch                {base:7.1f} jobs/s   1.00")
        clear(env)
        for transport in ("commands", "rest", *(["pyslurm"] if pyslurm_transport.installed() else [])):
            rate = by_client(env, transport, jobs, folder)
            print(f"client by {transport:12}{rate:7.1f} jobs/s   {rate / base:.2f}")
            clear(env)
    finally:
        environment.down("bench", purge=True)


def many_nodes(count: int) -> None:
    fleet = {"pools": [{"name": "n", "count": count, "gpus": {"model": "A100-40", "count": 8}, "cpu": 16, "memory": "64Gi"}]}
    begun = time.monotonic()
    env = environment.up("nodes", kubernetes="none", slurm="local", fleet=fleet)
    try:
        taken = time.monotonic() - begun
        print(f"{count} nodes             {taken:7.1f} s fresh, {sum(state.memory for state in env.health(probe=False)) / 2**20:.0f} MiB")
    finally:
        environment.down("nodes", purge=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--skip-nodes", action="store_true")
    options = parser.parse_args()
    # Short: unix sockets.
    folder = Path(tempfile.mkdtemp(prefix="ol", dir="/tmp"))
    os.environ["ORCHLAB_HOME"] = str(folder)
    try:
        print(f"load before: {os.getloadavg()[0]:.1f}")
        times = {
            title: warm_up("up", *kinds, options.rounds)
            for title, kinds in {"Kubernetes": ("local", "none"), "Slurm": ("none", "local"), "both": ("local", "local")}.items()
        }
        for title, seconds in times.items():
            print(f"warm up, {title:13}{seconds:7.1f} s        {seconds / times['Kubernetes']:.2f}")
        submissions(options.jobs, folder)
        if not options.skip_nodes:
            many_nodes(64)
    finally:
        for name in ("up", "bench", "nodes"):
            environment.down(name, purge=True)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
