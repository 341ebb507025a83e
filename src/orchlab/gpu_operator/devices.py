"""A node's GPUs as its plugin and GPU Feature Discovery see them, from what the operator remembers of the node. Pure, and cached: many
nodes are alike in all but their UUIDs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from orchlab.errors import BadInput
from orchlab.gpus import documents, inventory, labels, mig, sharing
from orchlab.gpus.inventory import Inventory
from orchlab.simulator.inventory import REPLICA
from orchlab.simulator.nodes import HARDWARE

ONE_MORE = "{count}"


@dataclass(frozen=True)
class Machine:
    """What is built into a node, and whose environment it is in: that makes the UUIDs."""

    environment: str
    node: str
    model: str
    count: int

    @classmethod
    def of(cls, environment: str, node: str, notes: Mapping[str, str]) -> Machine | None:
        """From a node's annotations; None without GPUs."""
        try:
            built_in = json.loads(notes[HARDWARE])
            return cls(environment, node, str(built_in["model"]), int(built_in["count"])) if built_in["count"] else None
        except (KeyError, ValueError, TypeError):
            return None


@dataclass
class Loaded:
    """A configuration that a running program has read: `instance` is that run of it, `name` the configuration's, `text` its content
    ("" where there is none)."""

    instance: str = ""
    name: str = ""
    text: str = ""


@dataclass
class State:
    """What the operator remembers of a node, as the annotation orchlab/gpu-state: `mig` the partitioned GPUs as {index: [[profile, start,
    size], …]}, `ill` {index: XID}, whether the driver is loaded, what the plugin and GPU Feature Discovery have read, what Node Feature
    Discovery and the MIG manager did last."""

    model: str = ""
    count: int = 0
    driver: bool = False
    mig: dict[str, list] = field(default_factory=dict)
    ill: dict[str, int] = field(default_factory=dict)
    plugin: Loaded = field(default_factory=Loaded)
    gfd: Loaded = field(default_factory=Loaded)
    nfd: str = ""
    mig_done: str = ""

    @classmethod
    def of(cls, text: str) -> State:
        """From the annotation; a fresh one where it makes no sense (somebody wrote it)."""
        return cls._read(text) if text and _makes_sense(text) else cls()

    @classmethod
    def _read(cls, text: str) -> State:
        data: dict[str, Any] = json.loads(text)
        return cls(**data | {key: Loaded(**data.get(key) or {}) for key in ("plugin", "gfd")})

    def dump(self) -> str:
        plain = vars(self) | {"plugin": vars(self.plugin), "gfd": vars(self.gfd)}
        return json.dumps(plain, separators=(",", ":"), sort_keys=True)


def gpus(machine: Machine, state: State, strategy: str = "none", text: str = "") -> Inventory:
    """The node's inventory under a plugin configuration. Raises PluginConfigError for one that cannot be read."""
    made = inventory.of_node(machine.environment, machine.node, machine.model, machine.count)
    for index, placements in state.mig.items():
        if int(index) < machine.count:
            layout = tuple(mig.Placement(start, size, profile) for profile, start, size in placements)
            inventory.partition(made.gpus[int(index)], True, layout)
    for index, xid in state.ill.items():
        if int(index) < machine.count:
            inventory.report_xid(made.gpus[int(index)], xid)
    config = _config(text)
    made.mig_strategy = config.effective_strategy(strategy)
    made.sharing = config.sharing
    sharing.check(config, made.mig_strategy)
    return made


@lru_cache(maxsize=4096)
def _makes_sense(text: str) -> bool:
    try:
        state = State._read(text)
        if state.count:
            gpus(Machine("", "", state.model, state.count), state)
        return bool(state.count) or not (state.mig or state.ill)
    except (BadInput, ValueError, TypeError, AttributeError):
        return False


@lru_cache(maxsize=256)
def _config(text: str) -> sharing.PluginConfig:
    return sharing.parse(text) if text else sharing.PluginConfig()


def needs_mps(text: str) -> bool:
    """Whether a configuration that can be read shares by MPS."""
    return _config(text).sharing.strategy == "mps"


@dataclass(frozen=True)
class Registration:
    """What the plugin registers, as the annotation orchlab/gpu-inventory; or the error it ends with. `lines` is its log, without what
    every plugin says."""

    text: str = ""
    error: str = ""
    lines: tuple[str, ...] = ()


NOTHING = json.dumps({"resources": {}})


def registration(machine: Machine, state: State, strategy: str, text: str) -> Registration:
    """What the plugin makes of the node's GPUs."""
    return _registration(machine, json.dumps(state.mig, sort_keys=True), json.dumps(state.ill, sort_keys=True), strategy, text)


@lru_cache(maxsize=8192)
def _registration(machine: Machine, layout: str, ill: str, strategy: str, text: str) -> Registration:
    try:
        made = gpus(machine, State(mig=json.loads(layout), ill=json.loads(ill)), strategy, text)
        slots = inventory.resources(made)
        lines = [*_config(text).warnings, *inventory.log_lines(made)]
    except sharing.PluginError as error:
        return Registration(error=error.log)
    found = {}
    for resource, offered in slots.items():
        shared = any(REPLICA in slot.id for slot in offered)
        one: dict[str, Any] = {"devices": list(dict.fromkeys(slot.device for slot in offered))}
        if shared:
            one["replicas"] = max(slot.replica for slot in offered) + 1
        if unhealthy := [slot.id for slot in offered if not slot.healthy]:
            one["unhealthy"] = unhealthy
        if (refusal := sharing.refusal(made.sharing, resource, 2)) is not None:
            one["refusal"] = refusal.removesuffix("2") + ONE_MORE
        found[resource] = one
        lines += [f"Starting GRPC server for '{resource}'", f"Registered device plugin for '{resource}' with Kubelet"]
    lines += _health(made, slots)
    return Registration(json.dumps({"resources": found}, separators=(",", ":"), sort_keys=True), lines=tuple(lines))


def _health(made: Inventory, slots: dict[str, list]) -> list[str]:
    """What the plugin logs of XID errors that make devices unhealthy."""
    lines = []
    for gpu in made.gpus:
        ids = {gpu.uuid, *(instance.uuid for instance in gpu.instances)}
        for resource, offered in [] if gpu.healthy else slots.items():
            for device in dict.fromkeys(slot.device for slot in offered if slot.device in ids):
                lines += [f"XidCriticalError: Xid={gpu.xid} on Device={device}; marking device as unhealthy.",
                          f"'{resource}' device marked unhealthy: {device}"]
    return lines


@dataclass(frozen=True)
class Discovery:
    """GPU Feature Discovery's labels, or the error it ends with."""

    labels: tuple[tuple[str, str], ...] = ()
    error: str = ""


def discovery(machine: Machine, state: State, strategy: str, text: str) -> Discovery:
    """What GPU Feature Discovery says of the node's GPUs."""
    # Labels hold no UUIDs: one answer does for all nodes of a kind.
    alike = Machine(machine.environment, "", machine.model, machine.count)
    return _discovery(alike, json.dumps(state.mig, sort_keys=True), strategy, text)


@lru_cache(maxsize=1024)
def _discovery(machine: Machine, layout: str, strategy: str, text: str) -> Discovery:
    try:
        return Discovery(tuple(labels.gfd(gpus(machine, State(mig=json.loads(layout)), strategy, text)).items()))
    except documents.ConfigError as error:
        return Discovery(error=error.log.removeprefix(sharing.PluginError.prefix))
