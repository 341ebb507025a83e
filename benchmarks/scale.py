"""1,000 simulated nodes and a 2,000-pod Job on a `local` environment: seconds until all nodes are Ready and all pods have run; memory at the peak.

Ratios are given against the same Job on 100 nodes in the same run.
Usage: python benchmarks/scale.py [--nodes 1000] [--pods 2000]
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

from measure import NAMESPACE, memory_mib, pod, until

from orchlab import environment
from orchlab.supervisor import MARK

LIMIT = 600


def run(nodes: int, pods: int, folder: Path) -> dict[str, float]:
    os.environ["ORCHLAB_HOME"] = str(folder)
    fleet = {"pools": [{"name": "gpu", "count": nodes, "gpus": {"model": "H100-80", "count": 8}, "cpu": 96, "memory": "1Ti"}]}
    begun = time.monotonic()
    env = environment.up("bench", slurm="none", fleet=fleet)
    figures = {"up, s": time.monotonic() - begun}
    try:
        client = env.client()
        template = pod("", **{"orchlab/run-for": "10s"})
        template["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"},
               "spec": {"parallelism": pods, "completions": pods, "template": {"metadata": {"annotations": template["metadata"]["annotations"]},
                                                                              "spec": template["spec"]}}}
        begun = time.monotonic()
        client.create("/apis/batch/v1/namespaces/default/jobs", job)
        peak = 0.0

        def done() -> bool:
            nonlocal peak
            peak = max(peak, memory_mib(lambda process: process.environ().get(MARK) == str(env.folder)))
            time.sleep(0.25)
            return client.get(f"{NAMESPACE.replace('/api/v1', '/apis/batch/v1')}/jobs/job")["status"].get("succeeded", 0) == pods

        until(done, LIMIT, f"a Job of {pods} pods")
        return figures | {"Job, s": time.monotonic() - begun, "pods/s": pods / (time.monotonic() - begun), "peak memory, MiB": peak}
    finally:
        environment.down("bench", purge=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2000)
    wanted = parser.parse_args()
    results = []
    for nodes in (100, wanted.nodes):
        folder = Path(tempfile.mkdtemp(prefix="olb", dir="/tmp"))
        try:
            results.append(run(nodes, wanted.pods, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{nodes} nodes, {wanted.pods} pods: " + ", ".join(f"{what} {value:.1f}" for what, value in results[-1].items()), flush=True)
    small, large = results
    print(f"ratio {wanted.nodes} to 100 nodes: " + ", ".join(f"{what.partition(',')[0]} {large[what] / small[what]:.2f}" for what in small))


if __name__ == "__main__":
    main()
