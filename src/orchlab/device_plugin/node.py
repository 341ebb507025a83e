"""The plugin's own Node object: what its annotations say at this moment."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from orchlab.gpu_operator import devices, names, readings
from orchlab.gpu_operator.devices import State
from orchlab.gpu_operator.readings import Readings
from orchlab.gpus.sharing import PluginError
from orchlab.kube.client import Client
from orchlab.kube.watching import Watcher
from orchlab.simulator.inventory import PREFIX, Registered, registered
from orchlab.simulator.nodes import NODES
from orchlab.simulator.plugins import INVENTORY

# What may stand behind the prefix of a resource's name; it becomes part of the name of a socket.
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class OwnNode:
    """Follows the node `name` of the environment with this id (which makes the UUIDs). `changed` is called after every change."""

    def __init__(self, name: str, environment: str, changed: Callable[[], None] = lambda: None) -> None:
        self.name, self.environment, self.changed = name, environment, changed
        self._node: dict = {"metadata": {"name": name}}

    def follow(self, client: Client, stop: threading.Event) -> None:
        """Until `stop` is set."""
        Watcher(client, stop).keep("own node", NODES, {"fieldSelector": f"metadata.name={self.name}"}, self.take)

    def take(self, kind: str, found: dict | list[dict]) -> None:
        """An event of the watch: (LIST, nodes) or (ADDED | MODIFIED | DELETED, node)."""
        nodes = found if isinstance(found, list) else [] if kind == "DELETED" else [found]
        self._node = next((node for node in nodes if node["metadata"]["name"] == self.name), {"metadata": {"name": self.name}})
        self.changed()

    @property
    def notes(self) -> dict[str, str]:
        return self._node["metadata"].get("annotations") or {}

    def resources(self) -> dict[str, Registered]:
        """What the plugin has to register, as simulated kubelets read it too; what makes no sense registers nothing."""
        return {name: one for name, one in registered(self.notes.get(INVENTORY, "")).items()
                if name.startswith(PREFIX) and _NAME.fullmatch(name.removeprefix(PREFIX)) and all(isinstance(id_, str) for id_ in one.devices)}

    def readings(self, pods: list[dict]) -> Readings:
        """The node's GPUs and what these pods do on them."""
        return readings.of_node(self.environment, self._node, pods)

    def shares_by_mps(self) -> bool:
        """Whether the configuration that the plugin has read shares by MPS."""
        try:
            return devices.needs_mps(State.of(self.notes.get(names.STATE, "")).plugin.text)
        except PluginError:
            return False
