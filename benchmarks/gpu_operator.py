"""The GPU Operator at scale on a `local` environment: sharing and MIG changes over the whole fleet, its memory, a Job with and without it.

Usage: python benchmarks/gpu_operator.py [--nodes 1000] [--mig 200,1000] [--pods 2000]
A Job "without the operator" is the same Job on the same cluster while the operator's process is held down: nodes keep what they advertise.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import memory_mib, pod, until

from orchlab import environment, faults
from orchlab.environment import Environment
from orchlab.kube.client import Client

CONFIG = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
LIMIT = 900


def label_all(client: Client, count: int, labels: dict[str, str | None]) -> None:
    with ThreadPoolExecutor(12) as workers:
        list(workers.map(lambda number: client.patch(f"/api/v1/nodes/gpu-{number}", {"metadata": {"labels": labels}}), range(count)))


def advertised(client: Client, resource: str, wanted: str) -> int:
    """How many nodes have that many of the resource."""
    nodes, _ = client.list("/api/v1/nodes")
    return sum(node["status"]["allocatable"].get(resource) == wanted for node in nodes)


def change(client: Client, count: int, labels: dict[str, str | None], resource: str, wanted: str, among: int) -> float:
    """Seconds from the first label to the last of `among` nodes that advertises what is wanted."""
    begun = time.monotonic()
    label_all(client, count, labels)

    def done() -> bool:
        time.sleep(0.5)
        return advertised(client, resource, wanted) >= among

    until(done, LIMIT, f"{labels} on {among} nodes")
    return time.monotonic() - begun


def run_job(client: Client, name: str, pods: int) -> float:
    template = pod("", **{"orchlab/run-for": "10s"})
    template["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    body = {"metadata": {"annotations": template["metadata"]["annotations"]}, "spec": template["spec"]}
    begun = time.monotonic()
    client.create(JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
                         "spec": {"parallelism": pods, "completions": pods, "template": body}})

    def done() -> bool:
        time.sleep(0.25)
        return client.get(f"{JOBS}/{name}")["status"].get("succeeded", 0) == pods

    until(done, LIMIT, f"a Job of {pods} pods")
    took = time.monotonic() - begun
    client.delete(f"{JOBS}/{name}", {"propagationPolicy": "Foreground"})
    until(lambda: not client.list("/api/v1/namespaces/default/pods")[0], LIMIT, "the Job's pods go")
    return took


def operator_memory(env: Environment) -> float:
    mine = next(state.pid for state in env.health(probe=False) if state.name == "gpu-operator")
    return memory_mib(lambda process: process.pid == mine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--mig", type=lambda text: [int(part) for part in text.split(",")], default=[200, 1000])
    parser.add_argument("--pods", type=int, default=2000)
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="olb", dir="/tmp"))
    os.environ["ORCHLAB_HOME"] = str(folder)
    fleet = {"pools": [{"name": "gpu", "count": wanted.nodes, "gpus": {"model": "A100-40", "count": 4}, "cpu": 96, "memory": "1Ti"}]}
    begun = time.monotonic()
    print(f"{wanted.nodes} nodes with 4 A100 each; load at the start {os.getloadavg()[0]:.1f}", flush=True)
    try:
        env = environment.up("bench", slurm="none", fleet=fleet)
        print(f"up with all operands ready: {time.monotonic() - begun:.1f} s; operator {operator_memory(env):.0f} MiB", flush=True)
        client = env.client(connections=16)
        measure(env, client, wanted)
    finally:
        environment.down("bench", purge=True)
        shutil.rmtree(folder, ignore_errors=True)


def measure(env: Environment, client: Client, wanted: argparse.Namespace) -> None:
    gpu = "nvidia.com/gpu"
    times = [run_job(client, "with-1", wanted.pods)]
    faults.cause(env, "daemon-down", "gpu-operator")
    times.append(run_job(client, "without", wanted.pods))
    faults.clear(env, "daemon-down")
    times.append(run_job(client, "with-2", wanted.pods))
    ratio = min(times[0], times[2]) / times[1]
    print(f"Job of {wanted.pods} pods: with {times[0]:.1f} and {times[2]:.1f} s, without {times[1]:.1f} s, ratio {ratio:.2f}", flush=True)
    client.create("/api/v1/namespaces/gpu-operator/configmaps", {"metadata": {"name": "configs"}, "data": {"sliced": CONFIG}})
    client.patch("/apis/nvidia.com/v1/clusterpolicies/cluster-policy",
                 {"spec": {"devicePlugin": {"config": {"name": "configs"}}, "daemonsets": {"rollingUpdate": {"maxUnavailable": "100%"}}}})
    begun = time.monotonic()
    until(lambda: policy_state(client) == "notReady", LIMIT, "the plugins restart")
    until(lambda: policy_state(client) == "ready", LIMIT, "the plugins are back")
    print(f"plugins of all nodes restarted with a configuration: {time.monotonic() - begun:.1f} s", flush=True)
    took = change(client, wanted.nodes, {"nvidia.com/device-plugin.config": "sliced"}, gpu, "16", wanted.nodes)
    print(f"sharing on {wanted.nodes} nodes by label: {took:.1f} s", flush=True)
    change(client, wanted.nodes, {"nvidia.com/device-plugin.config": None}, gpu, "4", wanted.nodes)
    before = 0
    for count in wanted.mig:
        asked = "all-1g.5gb" if before == 0 else "all-2g.10gb"
        took = change(client, count, {"nvidia.com/mig.config": asked}, gpu, "28" if before == 0 else "12", count)
        print(f"MIG {asked} on {count} nodes: {took:.1f} s; operator {operator_memory(env):.0f} MiB", flush=True)
        before = count


def policy_state(client: Client) -> str:
    return client.get("/apis/nvidia.com/v1/clusterpolicies/cluster-policy")["status"]["state"]


if __name__ == "__main__":
    main()
