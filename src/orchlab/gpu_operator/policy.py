"""A ClusterPolicy as the operator understands it. What is left out has the operator's default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OFF_BY_DEFAULT = ("nodeStatusExporter", "sandboxWorkloads")


@dataclass(frozen=True)
class Policy:
    """`spec` of a ClusterPolicy, `uid` of its object."""

    name: str
    uid: str
    spec: Mapping[str, Any] = field(default_factory=dict, compare=False)
    generation: int = 0

    @classmethod
    def of(cls, found: dict) -> Policy:
        metadata = found["metadata"]
        return cls(metadata["name"], metadata["uid"], found.get("spec") or {}, metadata.get("generation", 0))

    def part(self, name: str) -> Mapping[str, Any]:
        """One section of the spec, {} if it is left out."""
        return self.spec.get(name) or {}

    def enabled(self, name: str) -> bool:
        """Whether an operand is on. The operator takes a section without `enabled` as on, but for a few."""
        return bool(self.part(name).get("enabled", name not in OFF_BY_DEFAULT))

    @property
    def mig_strategy(self) -> str:
        return self.part("mig").get("strategy") or "none"

    @property
    def plugin_config(self) -> tuple[str, str]:
        """(name of the ConfigMap, default configuration in it); "" where nothing is given."""
        config = self.part("devicePlugin").get("config") or {}
        return config.get("name") or "", config.get("default") or ""

    @property
    def mig_config(self) -> tuple[str, str]:
        """(name of a ConfigMap of one's own or "", configuration that unlabelled nodes get)."""
        config = self.part("migManager").get("config") or {}
        # An empty default is one that was chosen: the operator labels no node then.
        return config.get("name") or "", config.get("default", "all-disabled")


def default() -> dict:
    """The ClusterPolicy that NVIDIA's Helm chart creates, in its main fields."""
    return {
        "apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"},
        "spec": {
            "operator": {"defaultRuntime": "containerd"},
            "daemonsets": {"priorityClassName": "system-node-critical", "updateStrategy": "RollingUpdate",
                           "rollingUpdate": {"maxUnavailable": "1"},
                           "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]},
            "driver": {"enabled": True}, "toolkit": {"enabled": True},
            "devicePlugin": {"enabled": True, "config": {"name": "", "default": ""}, "mps": {"root": "/run/nvidia/mps"}},
            "dcgm": {"enabled": False}, "dcgmExporter": {"enabled": True}, "gfd": {"enabled": True},
            "mig": {"strategy": "single"}, "migManager": {"enabled": True, "config": {"name": "", "default": "all-disabled"}},
            "nodeStatusExporter": {"enabled": False}, "validator": {}, "cdi": {"enabled": True},
            "sandboxWorkloads": {"enabled": False},
        },
    }
