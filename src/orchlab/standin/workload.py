"""Stands in for a lab's program on a real kubelet: holds what its container was given for as long as its pod says, and ends as it says.

The pod's annotations (orchlab/run-for and its siblings) come as environment variables, set by the admission policy of `policy()`. Not here: the
barrier (orchlab/barrier). The container would have to hear of its release, by a volume of the downward API with the annotation
orchlab/barrier-released that the admission policy adds, and the simulator would have to write it on pods that it did not admit. Such a pod
runs at once, says so in its log, and counts as present for its gang's members on simulated nodes.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from orchlab import clock
from orchlab.clock import Clock
from orchlab.errors import BadInput
from orchlab.simulator import pods

# What the admission policy sets, by the annotation that it comes from.
VARIABLES = {pods.RUN_FOR: "ORCHLAB_RUN_FOR", pods.START_AFTER: "ORCHLAB_START_AFTER", pods.EXIT: "ORCHLAB_EXIT", pods.EXIT_CODE: "ORCHLAB_EXIT_CODE",
             pods.BARRIER: "ORCHLAB_BARRIER", pods.BARRIER_SIZE: "ORCHLAB_BARRIER_SIZE", pods.BARRIER_TIMEOUT: "ORCHLAB_BARRIER_TIMEOUT"}
RESTART, FACTOR = "ORCHLAB_RESTART_POLICY", "ORCHLAB_CLOCK"
STEPS = 10
BLOCK = 4 * 2**20


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    notes = {annotation: os.environ[name] for annotation, name in VARIABLES.items() if os.environ.get(name)}
    pod = {"metadata": {"annotations": notes}, "spec": {"restartPolicy": os.environ.get(RESTART) or "Always"}}
    try:
        scale = Clock(float(os.environ.get(FACTOR) or 60))
    except (ValueError, BadInput):
        scale = Clock(60)
    plan = pods.plan(pod, scale)
    print("STAND-IN by orchlab: this image's program is not here; the container, its node and its kubelet are real.")
    for warning in plan.warnings:
        print(f"warning: {warning}")
    if plan.barrier:
        print(f"warning: annotation {pods.BARRIER}: {plan.barrier.name!r}: pods on real kubelets do not wait at a barrier; this one runs at once")
    devices = os.environ.get("NVIDIA_VISIBLE_DEVICES", "")
    print(f"NVIDIA_VISIBLE_DEVICES={devices} (simulated GPUs)" if devices and devices != "void" else "no GPU requested")
    time.sleep(plan.start_after)
    _run(plan.seconds)
    reason, _, code = plan.ends_with.partition("/")
    if reason == "OOMKilled":
        _use_memory()
    print(f"ended: exit code {code}")
    sys.exit(int(code))


def _run(seconds: float | None) -> None:
    if seconds is None:
        print("runs until it is deleted")
        while True:
            time.sleep(3600)
    print(f"runs for {clock.format(seconds)} of real time")
    begun = time.monotonic()
    for step in range(1, STEPS + 1):
        time.sleep(max(0.0, begun + seconds * step / STEPS - time.monotonic()))
        if step < STEPS:
            print(f"{100 * step // STEPS} % of the run time")


def _use_memory() -> None:
    """Takes memory until the kernel ends this process; a container without a limit is ended as if it had."""
    held, most = [], _limit()
    print(f"takes memory beyond its limit of {most // 2**20} MiB" if most else "no memory limit: ends as if it had been killed")
    while most and len(held) * BLOCK < 2 * most:
        held.append(bytearray(os.urandom(4096) * (BLOCK // 4096)))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _limit() -> int:
    """The container's memory limit in bytes, 0 without one (cgroup v2, then v1)."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = open(path, encoding="ascii").read().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() and int(text) < 2**50 else 0
    return 0


if __name__ == "__main__":
    main()
