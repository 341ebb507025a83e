"""`orchlab why` on 1,000 nodes and 2,000 pods: seconds of one diagnosis, and of the overview of all that does not run.

Measures the pure core together with the parsing of the API's JSON, which is made up here in the form and size that API servers give it
(managed fields, images and conditions included) and is not fetched over a network. Half of the pods run and hold GPUs, the other half wait: as
one Job ("alike"), and as bare pods that all differ, which is the worst case for the overview ("all different").
Ratios are given against 100 nodes and 200 pods in the same run.
Usage: python benchmarks/why.py [--nodes 1000] [--pods 2000] [--repeat 3]
"""

from __future__ import annotations

import argparse
import json
import time

from measure import describe

from orchlab.kube import why, why_owners
from orchlab.kube.why_facts import Facts

GPU = "nvidia.com/gpu"
FIELDS = [{"manager": f"manager-{number}", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "time": "2026-01-01T00:00:00Z",
           "fieldsV1": {f"f:field-{part}": {f"f:part-{inner}": {} for inner in range(10)} for part in range(5)}} for number in range(3)]


def node(number: int) -> dict:
    has = {"cpu": "192", "memory": "2097052Mi", "pods": "110", "ephemeral-storage": "6926923254989", GPU: "8"}
    labels = {"kubernetes.io/hostname": f"n{number}", "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    labels |= {f"nvidia.com/gpu.label-{part}": f"value-{part}" for part in range(30)}
    conditions = [{"type": kind, "status": "True" if kind == "Ready" else "False", "reason": f"Kubelet{kind}", "message": "kubelet says so",
                   "lastHeartbeatTime": "2026-01-01T00:00:00Z"} for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")]
    images = [{"names": [f"registry.example.com/image-{part}@sha256:{part:064d}"], "sizeBytes": 10**9 + part} for part in range(30)]
    return {"kind": "Node", "metadata": {"name": f"n{number}", "uid": f"node-{number}", "labels": labels, "managedFields": FIELDS},
            "spec": {"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]},
            "status": {"allocatable": has, "capacity": has, "conditions": conditions, "images": images}}


def pod(number: int, nodes: int, waits: bool, different: bool) -> dict:
    wanted = {"cpu": "4", "memory": "32Gi", GPU: "8" if waits else "1"}
    says = f"0/{nodes} nodes are available: {nodes} Insufficient {GPU}. preemption: 0/{nodes} nodes are available: {nodes} No preemption victims found for incoming pod."
    spread = {"maxSkew": nodes, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "a"}}}
    owner = {"ownerReferences": [{"kind": "Job", "name": "job", "uid": "job", "controller": True}]} if waits and not different else {}
    state = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": says}]} if waits else {
        "phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"kind": "Pod", "metadata": {"name": f"p{number}", "namespace": "team", "uid": f"pod-{number}", "labels": {"app": f"a{number}" if different else "a"},
                                        "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": FIELDS, **owner},
            "spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": wanted, "requests": wanted},
                                     "env": [{"name": f"VARIABLE_{part}", "value": "value"} for part in range(20)]}],
                     "tolerations": [{"key": GPU, "operator": "Exists"}], "topologySpreadConstraints": [spread],
                     **({} if waits else {"nodeName": f"n{number % nodes}"})}, "status": state}


def run(nodes: int, pods: int, different: bool) -> dict[str, float]:
    """Seconds of one diagnosis and of the overview, each with the parsing; and of the parsing alone."""
    running = max(pods // 2, nodes)  # one at least on each node: then no node has 8 GPUs free
    machines = [node(number) for number in range(nodes)]
    them = [pod(number, nodes, number >= running, different) for number in range(running + pods - pods // 2)]
    texts = {"nodes": json.dumps({"items": machines}), "pods": json.dumps({"items": them})}

    def read() -> Facts:
        return Facts.of({kind: json.loads(text)["items"] for kind, text in texts.items()})

    begun = time.perf_counter()
    read()
    parsed = time.perf_counter()
    facts = read()
    one = why_owners.pod(facts, facts["pods"][-1])
    diagnosed = time.perf_counter()
    answers = why.overview(read())
    done = time.perf_counter()
    assert one.known and GPU in one.cause and answers and all(found.known for _, found in answers)
    return {"parsing": parsed - begun, "one diagnosis": diagnosed - parsed, "overview": done - diagnosed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    wanted = parser.parse_args()
    for different in (False, True):
        print(f"waiting pods {'all different' if different else 'alike'}")
        small = [run(100, 200, different) for _ in range(wanted.repeat)]
        large = [run(wanted.nodes, wanted.pods, different) for _ in range(wanted.repeat)]
        for what in large[0]:
            values = [one[what] for one in large]
            ratio = sorted(values)[len(values) // 2] / sorted(one[what] for one in small)[len(small) // 2]
            print(f"  {what}: {describe(values, 's')}, ratio to 100 nodes and 200 pods {ratio:.1f}", flush=True)


if __name__ == "__main__":
    main()
