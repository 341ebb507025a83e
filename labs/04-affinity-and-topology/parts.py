"""Where pods are, by pool, zone and rack; what the scheduler says of its own weights."""

from __future__ import annotations

import http.client
import json
import ssl
from collections import Counter

from orchlab.course import Lab, Text, pods

ZONE, RACK, POOL = "topology.kubernetes.io/zone", "orchlab/rack", "orchlab/pool"
PRODUCT = "nvidia.com/gpu.product"
H100, A100, T4 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "Tesla-T4"
SECONDS = 10


def weights(lab: Lab) -> Text:
    """The score plugins of the running scheduler and their weights, as it gives them itself at /configz."""
    folder = lab.env.folder / "pki"
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / "admin.crt", folder / "admin.key")
    connection = http.client.HTTPSConnection("127.0.0.1", lab.env.port("kube_scheduler"), timeout=SECONDS, context=context)
    try:
        connection.request("GET", "/configz")
        profile = json.loads(connection.getresponse().read())["componentconfig"]["profiles"][0]
    finally:
        connection.close()
    weighed = [(plugin["weight"], plugin["name"]) for plugin in profile["plugins"]["multiPoint"]["enabled"] if plugin.get("weight")]
    return Text("\n".join(f"{weight} x {name}" for weight, name in weighed))


def shares(lab: Lab, found: list[dict]) -> str:
    """Placed pods by zone, and in brackets by rack, largest first: "zone-a 4 (2 2 0), zone-b 4 (2 1 1)"."""
    nodes = {node.name: node for node in lab.env.fleet.nodes()}
    count = Counter(nodes[pod["spec"]["nodeName"]].rack for pod in found if pod["spec"].get("nodeName") in nodes)
    parts = []
    for zone, racks in lab.env.fleet.zones.items():
        held = sorted((count[rack] for rack in racks), reverse=True)
        parts.append(f"{zone} {sum(held)} ({' '.join(map(str, held))})")
    return ", ".join(parts)


def where(lab: Lab, selector: str, count: int, seconds: float = 20) -> Text:
    """Waits until `count` pods of the selector are placed or refused. Returns how many went to which pool, zone and rack, and the
    scheduler's words for the others. Raises TimeLimitReached."""
    def there() -> list[dict]:
        return [pod for pod in lab.pods(selector) if not pod["metadata"].get("deletionTimestamp")]

    lab.until(lambda: len(found := there()) == count and all(pods.settled(pod) for pod in found), seconds,
              f"there are not {count} pods, placed or refused")
    return summary(lab, there())


def summary(lab: Lab, found: list[dict]) -> Text:
    """The same for pods that were read already."""
    placed = [pod for pod in found if pod["spec"].get("nodeName")]
    pools = Counter(pod["spec"]["nodeName"].rpartition("-")[0] for pod in placed)
    reasons = Counter(words for pod in found if (words := pods.unschedulable(pod)))
    on = ", ".join(f"{number} on {pool}" for pool, number in sorted(pools.items()))
    lines = [f"{len(found)} pods: {len(placed)} placed" + (f" ({on})" if on else "") + f", {len(found) - len(placed)} pending",
             f"by zone (by rack): {shares(lab, found)}"]
    return Text("\n".join([*lines, *(f"  {number} x {words}" for words, number in sorted(reasons.items()))]))


def delete_in(lab: Lab, selector: str, zone: str) -> None:
    """Deletes the pods of the selector that are in one zone, and waits until they are gone. Raises TimeLimitReached."""
    there = {node.name for node in lab.env.fleet.nodes() if node.zone == zone}
    doomed = {pod["metadata"]["name"] for pod in lab.pods(selector) if pod["spec"].get("nodeName") in there}
    for name in doomed:
        lab.client.delete(f"/api/v1/namespaces/{lab.namespace}/pods/{name}", gracePeriodSeconds=0)
    lab.until(lambda: not doomed & {pod["metadata"]["name"] for pod in lab.pods(selector)}, what="the pods did not go")


def from_the_start(lab: Lab) -> None:
    """Resets the lab unless it is at its start. Raises what `lab.reset` raises."""
    fleet = {node.name: {taint.key for taint in node.taints} for node in lab.env.fleet.nodes()}
    there = {node["metadata"]["name"]: {taint["key"] for taint in node["spec"].get("taints") or []} for node in lab.place.list("node")}
    if there != fleet or lab.broken_for("ring") or any(lab.place.list(kind) for kind in ("deployment", "job", "pod")):
        lab.reset()
