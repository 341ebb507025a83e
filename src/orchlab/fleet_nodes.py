"""The nodes that a fleet consists of, from its plain (already validated) data.

Kept apart from fleet.py so that a process which only needs the nodes does not pay for importing the validation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from orchlab.errors import BadInput

_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
             "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
# Containers that a small machine bears beside the control plane's.
MOST_REAL = 3
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(|[kMGTP]|[KMGTP]i)")


@dataclass(frozen=True)
class Taint:
    """What keeps pods without a matching toleration away; `effect` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True)
class FleetNode:
    """One machine. CPUs are logical ones, memory and local disk in bytes; `labels` are those that it registers with; what describes its
    GPUs (Node Feature Discovery's and GPU Feature Discovery's labels) comes from the GPU Operator."""

    name: str
    pool: str
    region: str
    zone: str
    rack: str
    gpu_model: str | None
    gpus: int
    cpu: int
    memory_bytes: int
    ephemeral_storage_bytes: int
    labels: dict[str, str]
    taints: tuple[Taint, ...]


def quantity(text: str | int, field: str = "quantity") -> int:
    """Bytes in a Kubernetes quantity like "64Gi", "2T" or 1024. Raises BadInput, naming `field`."""
    written = str(text).strip()
    match = _QUANTITY.fullmatch(written)
    value = float(match[1]) * _SUFFIXES[match[2]] if match else 0
    if not 0 < value < 2**63 or value != int(value):
        raise BadInput(field, text, "is not a quantity above 0", 'write it like "64Gi" or "2T"')
    return int(value)


def expand(fleet: dict[str, Any]) -> list[FleetNode]:
    """All nodes of a validated fleet, in the order of its pools; node names are POOL-0, POOL-1, …"""
    return [node for pool in fleet["pools"] for node in _nodes(pool, fleet)]


def racks_of(pool: dict[str, Any], zones: dict[str, list[str]]) -> list[tuple[str, str]]:
    """(zone, rack) pairs over which a pool's nodes are dealt, in the order in which they are filled."""
    wanted = pool.get("zones") or list(zones)
    racks = pool.get("racks")
    return [(zone, rack) for zone in wanted for rack in zones[zone] if not racks or rack in racks]


def _nodes(pool: dict[str, Any], fleet: dict[str, Any]) -> Iterator[FleetNode]:
    places = racks_of(pool, fleet["zones"])
    gpus = pool.get("gpus") or {}
    for index in range(pool["count"]):
        # Blocks whose sizes differ by one at most: neighbours in number are neighbours in the rack.
        zone, rack = places[index * len(places) // pool["count"]]
        name = f"{pool['name']}-{index}"
        yield FleetNode(
            name=name, pool=pool["name"], region=fleet["region"], zone=zone, rack=rack,
            gpu_model=gpus.get("model"), gpus=gpus.get("count", 0), cpu=pool["cpu"],
            memory_bytes=quantity(pool["memory"]), ephemeral_storage_bytes=quantity(pool["ephemeral_storage"]),
            labels=_labels(name, pool, fleet["region"], zone, rack),
            taints=tuple(Taint(t["key"], t.get("value", ""), t["effect"]) for t in pool.get("taints") or []),
        )


def _labels(name: str, pool: dict[str, Any], region: str, zone: str, rack: str) -> dict[str, str]:
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": name,
        "node.kubernetes.io/instance-type": pool["name"],
        "topology.kubernetes.io/region": region,
        "topology.kubernetes.io/zone": zone,
        "orchlab/pool": pool["name"],
        "orchlab/rack": rack,
        "orchlab/simulated": "true",
    }
    return labels | (pool.get("labels") or {})


def with_real_kubelet(nodes: Iterable[FleetNode]) -> list[FleetNode]:
    """Those that are containers with a kubelet of their own on `kind`: the first of each pool with GPUs, at most three."""
    first: dict[str, FleetNode] = {}
    for node in nodes:
        if node.gpus:
            first.setdefault(node.pool, node)
    return list(first.values())[:MOST_REAL]
