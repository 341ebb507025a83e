"""Questions to the cluster that take kubectl several commands."""

from __future__ import annotations

from collections import Counter

from orchlab.course import Lab, Text, pods

REPLICA = "::"
GPU_PREFIX = "nvidia.com/"


def scheduler(lab: Lab, app: str) -> Text:
    """What the scheduler says of the waiting pods labelled app=`app`: their condition PodScheduled, each message once."""
    said = dict.fromkeys(filter(None, (pods.unschedulable(pod) for pod in lab.pods(f"app={app}"))))
    return Text("\n".join(said) or f"no pod of {app} waits for a node")


def advertised(lab: Lab) -> Text:
    """Every GPU resource that some node has in its allocatable, with the sum and the largest node."""
    sums, largest = Counter(), Counter()
    for node in lab.place.list("node"):
        for name, count in node["status"]["allocatable"].items():
            if name.startswith(GPU_PREFIX) and int(count):
                sums[name] += int(count)
                largest[name] = max(largest[name], int(count))
    lines = [f"{'resource':<24}{'all nodes':>10}{'largest node':>14}"]
    return Text("\n".join([*lines, *(f"{name:<24}{sums[name]:>10}{largest[name]:>14}" for name in sorted(sums))]))


def neighbours(lab: Lab, app: str) -> Text:
    """With whom the pods of `app` share a GPU: the devices are the simulation's, which pod holds which replica is what it wrote on the
    pods."""
    def gpus(pod: dict) -> set[str]:
        return {device.partition(REPLICA)[0] for ids in pods.devices(pod).values() for device in ids}

    there = [pod for pod in lab.pods() if "deletionTimestamp" not in pod["metadata"]]
    mine = [pod for pod in there if pod["metadata"].get("labels", {}).get("app") == app]
    held = set().union(*map(gpus, mine))
    others = sorted({pod["metadata"].get("labels", {}).get("app", "?") for pod in there if gpus(pod) & held} - {app})
    where = ", ".join(sorted({pod["spec"].get("nodeName", "no node") for pod in mine}))
    return Text(f"{app} is on {where}; on the same GPU: " + (", ".join(f"pods of {name}" for name in others) or "nobody else"))
