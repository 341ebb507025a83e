"""The compose file of an environment: slurm-docker/compose.yaml with its variables filled in and one service for each node of the fleet."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import yaml

from orchlab.fleet_nodes import FleetNode
from orchlab.paths import repository

PARTS = ("db", "dbd", "ctld", "restd", "login")


def project(name: str) -> str:
    """Docker's project of an environment; the prefix of everything that it makes."""
    return f"orchlab-{name}"


def container(name: str, service: str) -> str:
    """The container of a service: named by us, since Compose v1 and v2 name them differently."""
    return f"{project(name)}-{service}"


def render(name: str, values: Mapping[str, str], nodes: list[FleetNode], shared: Mapping[Path, bool],
           strangers: Mapping[str, Path] | None = None) -> str:
    """YAML for Compose. `values` by the variables of the template; `shared` are folders that the login node and all nodes see under the same
    path as this machine, True for read-only; `strangers` are nodes with a munge key of their own.
    Raises KeyError for a variable that has no value."""
    template = yaml.safe_load((repository() / "slurm-docker" / "compose.yaml").read_text(encoding="utf-8"))
    data = _fill(template, {key: _literal(value) for key, value in values.items()})
    node = data["x-node"]
    services = {part: copy.deepcopy(data["services"][part]) for part in PARTS}
    for item in nodes:
        labels = node["labels"] | {"orchlab.pool": item.pool, "orchlab.gpu": item.gpu_model or "none"}
        services[item.name] = copy.deepcopy(node) | {"hostname": item.name, "labels": labels}
    for node_name, key in (strangers or {}).items():
        data["secrets"][f"munge_key_{node_name}"] = {"file": _literal(key)}
        services[node_name]["secrets"] = [{"source": f"munge_key_{node_name}", "target": "munge_key"}]
    for service, content in services.items():
        content["container_name"] = container(name, service)
        if service == "login" or service not in PARTS:
            content["volumes"] += [{"type": "bind", "source": _literal(path), "target": _literal(path), "read_only": fixed} for path, fixed in shared.items()]
    whole = {"services": services} | {key: data[key] for key in ("networks", "volumes", "secrets")}
    return "# Rendered by orchlab from slurm-docker/compose.yaml.\n" + yaml.dump(whole, Dumper=_Plain, sort_keys=False, width=160)


class _Plain(yaml.SafeDumper):
    """Writes repeated parts out: what Compose v1 and v2 take is then read without knowing anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _literal(value: object) -> str:
    """A dollar sign means a variable to Compose; two mean the sign."""
    return str(value).replace("$", "$$")


def _fill(data: Any, values: Mapping[str, str]) -> Any:
    if isinstance(data, dict):
        return {key: _fill(value, values) for key, value in data.items()}
    if isinstance(data, list):
        return [_fill(value, values) for value in data]
    return _Braced(data).substitute(values) if isinstance(data, str) else data


class _Braced(Template):
    """${NAME} only; everything else is left to Compose."""

    flags = 0
    pattern = r"\$\{(?P<braced>[A-Z_]+)\}|(?P<escaped>(?!))|(?P<named>(?!))|(?P<invalid>(?!))"
