"""A fleet's GPUs in Slurm's words: typed GRES, MIG instances as types of their own, shards.

Types are named as sites commonly do: the model's short name in lower case (h100, a100, t4), MIG instances MODEL_PROFILE
(a100_3g.20gb: what Slurm's NVML detection calls them, with the long model name shortened).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchlab.errors import BadInput
from orchlab.fleet_nodes import FleetNode
from orchlab.gpus import catalog, mig, mig_config

MIG_LABEL = "nvidia.com/mig.config"
SHARDS_PER_GPU = 4


@dataclass(frozen=True)
class NodeGres:
    """What one node offers: (type, count) pairs of `gpus`, and `shards` over all of them (0: none)."""

    gpus: tuple[tuple[str, int], ...] = ()
    shards: int = 0
    mig: bool = False

    def configured(self) -> str:
        """The value of Gres= on a node line, e.g. "gpu:h100:8" or "gpu:t4:2,shard:8"; "" if the node has none."""
        parts = [f"gpu:{kind}:{count}" for kind, count in self.gpus]
        return ",".join([*parts, *([f"shard:{self.shards}"] if self.shards else [])])


def short_names(nodes: list[FleetNode]) -> dict[str, str]:
    """GRES type by model. Two models of one family in a fleet (A100-40 and A100-80) are told apart by their full names."""
    models = list(dict.fromkeys(node.gpu_model for node in nodes if node.gpu_model))
    families = [model.split("-")[0] for model in models]
    return {
        model: (family if families.count(family) == 1 else model.replace("-", "_")).lower()
        for model, family in zip(models, families, strict=True)
    }


def of(node: FleetNode, names: dict[str, str]) -> NodeGres:
    """What a node offers. A pool's label nvidia.com/mig.config (all-PROFILE, all-balanced: a configuration that the MIG manager generates
    for the model) partitions its GPUs, as on Kubernetes; models without MIG can be shared by shards instead. Raises BadInput for a
    configuration that the model does not have."""
    if not node.gpu_model:
        return NodeGres()
    kind = names[node.gpu_model]
    wanted = node.labels.get(MIG_LABEL, "")
    if wanted and wanted != "all-disabled":
        return NodeGres(tuple((f"{kind}_{mig.dotted(profile)}", count * node.gpus) for profile, count in _layout(node, wanted)), mig=True)
    shards = 0 if catalog.model(node.gpu_model).mig_capable else SHARDS_PER_GPU * node.gpus
    return NodeGres(((kind, node.gpus),), shards)


def _layout(node: FleetNode, wanted: str) -> list[tuple[str, int]]:
    """(profile, instances per GPU) of one of the configurations that the MIG manager generates for this model."""
    model = catalog.model(node.gpu_model)
    configs = mig_config.generate([model])
    field = f"pools.{node.pool}.labels.{MIG_LABEL}"
    if not configs:
        raise BadInput(field, wanted, f"{node.gpu_model} has no MIG", "leave this label out")
    chosen = configs.get(wanted)
    if not chosen or not chosen[0].mig_devices:
        known = ", ".join(name for name, entries in configs.items() if entries[0].mig_devices)
        raise BadInput(field, wanted, f"is not a layout of {node.gpu_model}", f"use all-disabled or one of {known}")
    return list(chosen[0].mig_devices.items())


def devices(text: str) -> list[tuple[str, str, int, tuple[int, ...]]]:
    """What a job holds on a node, from Slurm's words "gpu:h100:2(IDX:0-1),shard:t4:1(…)": (name, type, count, indices)."""
    found = []
    for part in re.findall(r"[^,(]+(?:\([^)]*\))?", text or ""):
        match = re.fullmatch(r"(?:gres[:/])?([a-z]+)(?::([^:(]+))??(?::(\d+))?(?:\((?:IDX:)?([^)]*)\))?", part.strip())
        if match and match[1]:
            found.append((match[1], match[2] or "", int(match[3] or 1), indices(match[4] or "")))
    return found


def indices(text: str) -> tuple[int, ...]:
    """ "0-2,5" → (0, 1, 2, 5). Shards are written as USED/TOTAL per GPU: those have no indices."""
    numbers: list[int] = []
    for part in text.split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
            numbers.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(numbers)
