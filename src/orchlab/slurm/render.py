"""Slurm's configuration files for a fleet, from the templates in slurm-docker/templates. The `local` and `docker` backends both use it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from string import Template

from orchlab.fleet_nodes import FleetNode
from orchlab.paths import repository
from orchlab.slurm import gres, versions
from orchlab.slurm.gres import NodeGres
from orchlab.slurm.versions import Release

DEFAULT_PARTITION, SHORT_PARTITION = "all", "short"
MOST_MEMORY_PER_CPU = 2048  # MiB


@dataclass(frozen=True)
class Address:
    """Where the slurmd of a node is reached; empty parts are left to Slurm (the node's own name, the common port)."""

    hostname: str = ""
    address: str = ""
    port: int = 0

    def words(self) -> str:
        pairs = (("NodeHostname", self.hostname), ("NodeAddr", self.address), ("Port", self.port))
        return "".join(f" {key}={value}" for key, value in pairs if value)


@dataclass(frozen=True)
class Site:
    """Everything in the configuration that depends on where the daemons run. Paths are those that the daemons see."""

    release: Release
    cluster: str
    user: str
    slurmd_user: str
    controller: str
    controller_port: int
    slurmd_port: int
    dbd_hostname: str
    dbd_host: str
    dbd_port: int
    munge_socket: str
    jwt_key: str
    state: str
    spool: str
    run: str
    devices: str
    database_host: str
    database_user: str
    database_extra: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    addresses: dict[str, Address] = field(default_factory=dict)


def files(site: Site, nodes: list[FleetNode]) -> dict[str, str]:
    """Content by file name. Raises BadInput for a fleet that cannot be expressed."""
    names = gres.short_names(nodes)
    offered = {node.name: gres.of(node, names) for node in nodes}
    values = {key: value for key, value in vars(site).items() if isinstance(value, (str, int))}
    return {
        "slurm.conf": _fill(
            "slurm.conf",
            **values,
            extra="\n".join(site.extra),
            memory_per_cpu=memory_per_cpu(nodes),
            tres=",".join(tres(offered.values())),
            nodes="\n".join(node_line(node, offered[node.name], site.addresses.get(node.name, Address())) for node in nodes),
            partitions="\n".join(partition_lines(nodes)),
        ),
        "gres.conf": _fill("gres.conf", lines="\n".join(gres_lines(offered, site.devices))),
        "cgroup.conf": _fill("cgroup.conf", plugin=versions.cgroup_plugin(site.release)),
        "topology.conf": _fill("topology.conf", switches="\n".join(switch_lines(nodes))),
        "slurmdbd.conf": _fill("slurmdbd.conf", **values, extra="\n".join(site.database_extra)),
    }


def _fill(name: str, **values: object) -> str:
    template = (repository() / "slurm-docker" / "templates" / name).read_text(encoding="utf-8")
    return Template(template).substitute(values).rstrip() + "\n"


def tres(offered: Iterable[NodeGres]) -> list[str]:
    """What is counted beyond CPUs and memory: GPUs in all and by type, and shards. Slurm forgets a typed GPU that is not listed."""
    found = list(offered)
    kinds = dict.fromkeys(kind for node in found for kind, _ in node.gpus)
    return ["gres/gpu", *(f"gres/gpu:{kind}" for kind in kinds), "gres/shard"]


def memory_per_cpu(nodes: list[FleetNode]) -> int:
    """MiB that a job gets per CPU if it does not say: so little that every node can fill all its CPUs."""
    return max(1, min(MOST_MEMORY_PER_CPU, *(node.memory_bytes // 2**20 // node.cpu for node in nodes)))


def node_line(node: FleetNode, offered: NodeGres, address: Address) -> str:
    sockets = 2 if node.cpu % 2 == 0 else 1
    gres_words = f" Gres={offered.configured()}" if offered.gpus else ""
    # Jobs that ask for no GPU go to nodes without one first: the lowest weight is filled first.
    weight = 1 + 10 * sum(count for _, count in offered.gpus)
    features = ",".join(dict.fromkeys((node.zone, node.rack, node.pool)))
    return (
        f"NodeName={node.name}{address.words()} Sockets={sockets} CoresPerSocket={node.cpu // sockets} ThreadsPerCore=1"
        f" RealMemory={node.memory_bytes // 2**20}{gres_words} Feature={features} Weight={weight}"
    )


def partition_lines(nodes: list[FleetNode]) -> list[str]:
    """`all` (the default), `short` with tight limits, and one partition per pool."""
    pools: dict[str, list[str]] = {}
    for node in nodes:
        pools.setdefault(node.pool, []).append(node.name)
    lines = [
        f"PartitionName={DEFAULT_PARTITION} Nodes=ALL Default=YES DefaultTime=1:00:00 MaxTime=1-00:00:00 State=UP",
        f"PartitionName={SHORT_PARTITION} Nodes=ALL DefaultTime=5:00 MaxTime=10:00 MaxNodes=2 PriorityJobFactor=10 State=UP",
    ]
    return lines + [
        f"PartitionName={pool} Nodes={','.join(members)} DefaultTime=1:00:00 MaxTime=1-00:00:00 State=UP"
        for pool, members in pools.items()
        if pool.lower() not in (DEFAULT_PARTITION, SHORT_PARTITION, "default")
    ]


def gres_lines(offered: dict[str, NodeGres], folder: str) -> list[str]:
    """File= names device files whose last digits become CUDA_VISIBLE_DEVICES. They have to be character devices, or the variable is not
    set."""
    lines = []
    for name, node in offered.items():
        first = 0
        for kind, count in node.gpus:
            lines.append(f"NodeName={name} Name=gpu Type={kind} File={folder}/{'mig' if node.mig else 'nvidia'}{_span(first, count)}")
            first += count
        if node.shards:
            lines.append(f"NodeName={name} Name=shard Count={node.shards}")
    return lines


def _span(first: int, count: int) -> str:
    return str(first) if count == 1 else f"[{first}-{first + count - 1}]"


def switch_lines(nodes: list[FleetNode]) -> list[str]:
    """A leaf switch per rack, one per zone above them, one above all zones: jobs over several nodes stay in a rack if they can."""
    racks: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        racks.setdefault((node.zone, node.rack), []).append(node.name)
    zones = list(dict.fromkeys(zone for zone, _ in racks))
    lines = [f"SwitchName={rack} Nodes={','.join(members)}" for (_, rack), members in racks.items()]
    lines += [f"SwitchName=zone.{zone} Switches={','.join(rack for other, rack in racks if other == zone)}" for zone in zones]
    return [*lines, f"SwitchName=spine Switches={','.join(f'zone.{zone}' for zone in zones)}"]
