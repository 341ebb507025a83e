"""Gangs with each engine on one `local` environment, the default scheduler (no gangs, no other engine there) as the base: seconds from the first Job
until every pod of every gang has a node.

All gangs fit at once, so this is what the engine itself costs. The default scheduler is measured once more at the end, with the engines present.
Usage: python benchmarks/gangs.py [--gangs 100] [--size 8] [--nodes 200] [--engines native,kueue,coscheduling]
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

from measure import NAMESPACE, pod, until

from orchlab import engines, environment
from orchlab.environment import Environment
from orchlab.errors import BadInput
from orchlab.kube import addons, gangs
from orchlab.kube.client import Client
from orchlab.kube.kueue import GROUP as KUEUE

LIMIT = 900
MEMORY = "memory"  # of the engine's process, MiB; the other figures are seconds
JOBS = "/apis/batch/v1/namespaces/default/jobs"
KNOWN = ("native", "kueue", "coscheduling")


def job(name: str, size: int) -> dict:
    """A Job of `size` pods with one GPU each that run until they are deleted."""
    template = pod("", **{"orchlab/run-for": "1000h"})
    template["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": {}},
            "spec": {"parallelism": size, "completions": size, "template": {"metadata": template["metadata"] | {"labels": {}}, "spec": template["spec"]}}}


def create(client: Client, engine: str, name: str, size: int, form: gangs.Native) -> None:
    """One gang as the engine wants it."""
    made = job(name, size)
    template = made["spec"]["template"]
    if engine == "native":
        client.apply(gangs.manifest(form, name, size, "default"))
        template["spec"] = gangs.member(form, name, template["spec"])
    elif engine == "kueue":
        made["metadata"]["labels"][f"{KUEUE}/queue-name"] = "team"
        made["spec"]["suspend"] = True
    elif engine == "coscheduling":
        client.apply({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": name, "namespace": "default"}, "spec": {"minMember": size}})
        template["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = name
        template["spec"]["schedulerName"] = "cosched"
    client.create(JOBS, made)


def quota(client: Client, gpus: int) -> None:
    """A queue that has room for all of them."""
    flavor = {"name": "gpu", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": gpus}]}
    api = f"{KUEUE}/v1beta2"
    for one in ({"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": "gpu"}},
                {"apiVersion": api, "kind": "ClusterQueue", "metadata": {"name": "all"},
                 "spec": {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}]}},
                {"apiVersion": api, "kind": "LocalQueue", "metadata": {"name": "team", "namespace": "default"}, "spec": {"clusterQueue": "all"}}):
        client.apply(one)


def measure(env: Environment, engine: str, count: int, size: int) -> dict[str, float]:
    """Seconds until all pods are placed and until all run; then everything is removed again."""
    client = env.client()
    form = gangs.native(client)
    begun = time.monotonic()
    for number in range(count):
        create(client, engine, f"{engine}-{number}", size, form)

    def pods() -> list[dict]:
        time.sleep(0.2)
        return client.list(f"{NAMESPACE}/pods")[0]

    until(lambda: sum(bool(one["spec"].get("nodeName")) for one in pods()) == count * size, LIMIT, f"{engine}: all pods placed")
    figures = {"placed": time.monotonic() - begun}
    until(lambda: sum(one["status"]["phase"] == "Running" for one in pods()) == count * size, LIMIT, f"{engine}: all pods Running")
    figures["running"] = time.monotonic() - begun
    figures[MEMORY] = sum(state.memory for state in env.health(probe=False) if state.name == (engine if engine in addons.MODULES else "kube-scheduler")) / 2**20
    client.delete(JOBS, propagationPolicy="Background", timeout=60)
    until(lambda: not pods(), LIMIT, f"{engine}: all pods gone")
    return figures


def report(what: str, figures: dict[str, float], base: dict[str, float]) -> None:
    words = (f"{name} {value:.0f} MiB" if name == MEMORY else f"{name} {value:.1f} s (ratio {value / base[name]:.2f})" for name, value in figures.items())
    print(f"{what}: {', '.join(words)}", flush=True)


def run(count: int, size: int, nodes: int, wanted: list[str]) -> None:
    fleet = {"pools": [{"name": "gpu", "count": nodes, "gpus": {"model": "H100-80", "count": 8}, "cpu": 96, "memory": "1Ti"}]}
    env = environment.up("bench", slurm="none", fleet=fleet)
    try:
        print(f"Kubernetes {engines.load('kube-scheduler').version}, native {gangs.native(env.client()).api_version}, "
              + ", ".join(f"{name} {engines.load(name).version}" for name in addons.MODULES) + f"; {count} gangs of {size} pods on {nodes} nodes", flush=True)
        measure(env, "default", min(count, 2), size)  # a first Job pays for caches that the others find filled
        base = measure(env, "default", count, size)
        report("default scheduler alone", base, base)
        for engine in wanted:
            if engine in addons.MODULES:
                env = addons.add(env, engine)
            if engine == "kueue":
                quota(env.client(), nodes * 8)
            report(engine, measure(env, engine, count, size), base)
        report("default scheduler, the engines present", measure(env, "default", count, size), base)
    finally:
        environment.down("bench", purge=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gangs", type=int, default=100)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--engines", default=",".join(KNOWN))
    given = parser.parse_args()
    wanted = given.engines.split(",")
    if unknown := set(wanted) - set(KNOWN):
        raise BadInput("--engines", sorted(unknown)[0], "is not measured here", f"some of: {','.join(KNOWN)}")
    if given.gangs * given.size > given.nodes * 8:
        raise BadInput("--nodes", given.nodes, f"have {given.nodes * 8} GPUs, and the gangs want {given.gangs * given.size}", "give more nodes")
    folder = Path(tempfile.mkdtemp(prefix="olb", dir="/tmp"))
    os.environ["ORCHLAB_HOME"] = str(folder)
    try:
        run(given.gangs, given.size, given.nodes, wanted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
