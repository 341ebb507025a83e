"""The device plugin's configuration: parsed, checked and put into effect as the real plugin does it.

Facts from the public source of NVIDIA's k8s-device-plugin (0.20). Its parser is lenient where Go's JSON decoder is: unknown keys are
ignored, names of top-level fields match in any case, null is the zero value. What the plugin ignores with a warning is in `warnings`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orchlab.gpus import documents
from orchlab.gpus.catalog import GpuModel
from orchlab.gpus.documents import is_int, shown, wrong_type

GPU = "nvidia.com/gpu"
STRATEGIES = ("none", "single", "mixed")
MAX_CLIENTS = 48
MAX_CLIENTS_OLD = 16
_RULE = ("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an "
         "alphanumeric character")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_FLAGS = {"migStrategy": str, "failOnInitError": bool, "mpsRoot": str, "nvidiaDriverRoot": str, "nvidiaDevRoot": str,
          "gdrcopyEnabled": bool, "gdsEnabled": bool, "mofedEnabled": bool, "useNodeFeatureAPI": bool, "deviceDiscoveryStrategy": str}
_PLUGIN = {"passDeviceSpecs": bool, "deviceIDStrategy": str, "cdiAnnotationPrefix": str, "nvidiaCTKPath": str, "containerDriverRoot": str,
           "sharedDevicesAllocationPolicy": str}
_GO = {str: "string", bool: "bool"}

SharingStrategy = Literal["none", "time-slicing", "mps"]


class PluginError(documents.ConfigError):
    """The device plugin ends with this error; `log` is its last line."""

    prefix = "error starting plugins: "


class PluginConfigError(PluginError):
    """The plugin cannot read its configuration file."""

    prefix = ("error starting plugins: unable to load config: unable to finalize config: unable to parse config file: "
              "error parsing config file: ")
    decoding = "unmarshal error: error unmarshaling JSON: while decoding JSON: "

    @property
    def log(self) -> str:
        extra = "unmarshal error: " if self.problem.startswith("error converting YAML") else ""
        return self.prefix + extra + super().log.removeprefix(self.prefix)


@dataclass(frozen=True)
class Shared:
    """One resource of which every device is offered `replicas` times, as the resource `advertised`."""

    name: str
    advertised: str
    replicas: int


@dataclass(frozen=True)
class Sharing:
    """How devices are shared. `strategy` is none, time-slicing or mps; `fail_requests_greater_than_one` says what happens to a container
    that asks for more than one replica."""

    strategy: SharingStrategy = "none"
    rename_by_default: bool = False
    fail_requests_greater_than_one: bool = False
    resources: tuple[Shared, ...] = ()

    def of(self, resource: str) -> Shared | None:
        """The first entry for this (unshared) resource name."""
        return next((shared for shared in self.resources if shared.name == resource), None)


@dataclass(frozen=True)
class PluginConfig:
    """A configuration file as the plugin understands it. `mig_strategy` is None where the file says nothing; `flags` holds the flags
    given, the plugin's own under "plugin."."""

    mig_strategy: str | None = None
    sharing: Sharing = Sharing()
    flags: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def effective_strategy(self, environment: str | None = None) -> str:
        """The MIG strategy in force: the container's MIG_STRATEGY (which the GPU Operator sets from ClusterPolicy) wins over the file."""
        return environment or self.mig_strategy or "none"


def parse(text: object, name: str = "config") -> PluginConfig:
    """Reads one configuration file. Raises PluginConfigError, which names the field."""
    document = documents.load(text, name, PluginConfigError)
    if document is None:
        return PluginConfig()
    _need(isinstance(document, dict), name, document, wrong_type(document, "v1.Config"))
    version = _get(document, "version")
    _need(isinstance(version, str) or version is None, "version", version, _in_struct(version, "Config.version", "string"))
    warnings: list[str] = []
    flags = _flags(_get(document, "flags"))
    sharing = _sharing(_get(document, "sharing"), warnings)
    resources = _get(document, "resources")
    if isinstance(resources, dict) and (_get(resources, "gpus") or _get(resources, "mig")):
        warnings.insert(0, "Customizing the 'resources' field is not yet supported in the config. Ignoring...")
    # Checked last, because the plugin checks it only when all else could be decoded.
    _need(version in (None, "", "v1"), "version", version, f"unknown version: {version}")
    return PluginConfig(flags.get("migStrategy"), sharing, flags, tuple(warnings))


def check(config: PluginConfig, mig_strategy: str) -> None:
    """The plugin's check of its flags once the file is read. Raises PluginError in its words."""
    strategies = ("auto", "nvml", "tegra")
    if config.sharing.strategy == "mps" and mig_strategy == "mixed":
        raise _flag("migStrategy", mig_strategy, "using --mig-strategy=mixed is not supported with MPS")
    choices = {"plugin.deviceIDStrategy": (("uuid", "index"), "--device-id-strategy"),
               "plugin.sharedDevicesAllocationPolicy": (("distributed", "packed"), "--shared-devices-allocation-policy")}
    for flag, (allowed, option) in choices.items():
        if (value := config.flags.get(flag)) is not None and value not in allowed:
            raise _flag(flag, value, f"invalid {option} option: {value}")
    for value in config.flags.get("plugin.deviceListStrategy") or []:
        if value not in ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri"):
            raise _flag("plugin.deviceListStrategy", value, f"invalid --device-list-strategy option: invalid strategy: {value}")
    if (value := config.flags.get("deviceDiscoveryStrategy")) is not None and value not in strategies:
        raise _flag("deviceDiscoveryStrategy", value, f"invalid --device-discovery-strategy option {value}")
    if mig_strategy not in STRATEGIES:
        raise _flag("migStrategy", mig_strategy, f"unknown MIG strategy: {mig_strategy}")


def refusal(sharing: Sharing, advertised: str, count: int) -> str | None:
    """Why the plugin refuses a container that asks for `count` of a resource, as the kubelet reports it; None when it does not."""
    shared = any(advertised == item.advertised for item in sharing.resources)
    if sharing.strategy == "none" or not shared or count <= 1 or not sharing.fail_requests_greater_than_one:
        return None
    return (f'rpc error: code = Unknown desc = invalid allocation request for "{advertised}": '
            f"invalid request: maximum request size for shared resources is 1; found {count}")


def replicate(sharing: Sharing, devices: Mapping[str, Sequence[str]]) -> dict[str, list[tuple[str, str, int]]]:
    """Offers the devices of each resource: {advertised: [(id, device, replica)]}. Ids of replicas are DEVICE::n. A shared resource that
    matches none of `devices` is skipped, as the plugin does."""
    offered: dict[str, list[tuple[str, str, int]]] = {}
    for resource, ids in devices.items():
        shared = sharing.of(resource)
        if shared is None:
            offered.setdefault(resource, []).extend((device, device, 0) for device in ids)
        else:
            # A resource listed twice has the replicas of both entries, which are the same ids.
            most = max(item.replicas for item in sharing.resources if item.name == resource)
            offered.setdefault(shared.advertised, []).extend((f"{d}::{n}", d, n) for d in ids for n in range(most))
    return {resource: slots for resource, slots in offered.items() if slots}


@dataclass(frozen=True)
class MpsLimits:
    """What one MPS client of a GPU may use: pinned device memory in MiB and per cent of the threads."""

    memory_mib: int
    thread_percentage: int


def mps_limits(model: GpuModel, replicas: int) -> MpsLimits:
    """The limits that the MPS control daemon sets for each client. Raises PluginError when the GPU allows fewer clients."""
    most = max_clients(model)
    if replicas > most:
        raise PluginError("sharing.mps.resources.replicas", replicas,
                          f"invalid MPS configuration: invalid device maximum allowed replicas exceeded: {replicas} > {most}",
                          f"use at most {most} replicas on {model.nvml_name}")
    return MpsLimits(model.memory_mib // replicas, 100 // replicas)


def max_clients(model: GpuModel) -> int:
    """The most MPS clients of one GPU: the plugin allows 48 from compute capability 7.5 on, 16 below."""
    return MAX_CLIENTS if (model.compute_major, model.compute_minor) >= (7, 5) else MAX_CLIENTS_OLD


def _flag(name: str, value: object, problem: str) -> PluginError:
    return PluginError(f"flags.{name}", shown(value), f"unable to validate flags: {problem}", "correct this flag of the device plugin")


def _get(table: Mapping[str, Any], key: str) -> Any:
    """A struct's field: Go prefers the exact name and accepts any case."""
    if key in table:
        return table[key]
    return next((value for name, value in table.items() if name.casefold() == key.casefold()), None)


def _need(condition: bool, field: str, value: Any, problem: str) -> None:
    if not condition:
        raise PluginConfigError(field, shown(value), problem, "correct this field of the device plugin's configuration")


def _in_struct(value: Any, where: str, go_type: str) -> str:
    return wrong_type(value, go_type).replace("Go value", f"Go struct field {where}")


def _flags(table: Any) -> dict[str, Any]:
    if table is None:
        return {}
    _need(isinstance(table, dict), "flags", table, _in_struct(table, "Config.flags", "v1.Flags"))
    found = _typed(table, _FLAGS, "flags")
    plugin = _get(table, "plugin")
    if plugin is not None:
        _need(isinstance(plugin, dict), "flags.plugin", plugin, _in_struct(plugin, "Flags.flags.plugin", "v1.PluginCommandLineFlags"))
        found |= {f"plugin.{name}": value for name, value in _typed(plugin, _PLUGIN, "flags.plugin").items()}
        listed = _get(plugin, "deviceListStrategy")
        if listed is not None:
            right = isinstance(listed, str) or (isinstance(listed, list) and all(isinstance(item, str) for item in listed))
            _need(right, "flags.plugin.deviceListStrategy", listed, f"invalid deviceListStrategy: {shown(listed)}")
            found["plugin.deviceListStrategy"] = [listed] if isinstance(listed, str) else list(listed)
    return found


def _typed(table: Mapping[str, Any], kinds: Mapping[str, type], where: str) -> dict[str, Any]:
    found = {name: value for name in kinds if (value := _get(table, name)) is not None}
    for name, value in found.items():
        _need(isinstance(value, kinds[name]), f"{where}.{name}", value, _in_struct(value, f"Flags.{where}.{name}", _GO[kinds[name]]))
    return found


def _sharing(table: Any, warnings: list[str]) -> Sharing:
    if table is None:
        return Sharing()
    _need(isinstance(table, dict), "sharing", table, _in_struct(table, "Config.sharing", "v1.Sharing"))
    slicing_given = any(name.casefold() == "timeslicing" for name in table)
    mps = _get(table, "mps")
    slicing = _replicated("timeSlicing", "time-slicing", _get(table, "timeSlicing"), warnings) if slicing_given else None
    # Both may be given: MPS wins, and its requests for more than one fail unless the file says otherwise.
    return _replicated("mps", "mps", mps, warnings) if mps is not None else slicing or Sharing()


def _replicated(key: str, strategy: SharingStrategy, table: Any, warnings: list[str]) -> Sharing:
    where = f"sharing.{key}"
    _need(isinstance(table, dict) or table is None, where, table, wrong_type(table, "map[string]json.RawMessage"))
    table = table or {}
    rename, fail = table.get("renameByDefault"), table.get("failRequestsGreaterThanOne")
    for name, value in (("renameByDefault", rename), ("failRequestsGreaterThanOne", fail)):
        _need(isinstance(value, bool) or value is None, f"{where}.{name}", value, wrong_type(value, "bool"))
    listed = table.get("resources")
    _need(isinstance(listed, list) or listed is None, f"{where}.resources", listed, wrong_type(listed, "[]v1.ReplicatedResource"))
    _need(bool(listed), f"{where}.resources", listed, "no resources specified")
    renamed = chosen = False
    resources = []
    for index, item in enumerate(listed):
        shared, renames, chooses = _resource(f"{where}.resources[{index}]", item, bool(rename))
        resources.append(shared)
        renamed, chosen = renamed or renames, chosen or chooses
    for given, what in ((renamed, "Setting the 'rename'"), (chosen, "Customizing the 'devices'")):
        if given:
            warnings.append(f"{what} field in {where}.resources is not yet supported in the config. Ignoring...")
    return Sharing(strategy, bool(rename), strategy == "mps" if fail is None else fail, tuple(resources))


def _resource(where: str, item: Any, rename_by_default: bool) -> tuple[Shared, bool, bool]:
    _need(isinstance(item, dict) or item is None, where, item, wrong_type(item, "map[string]json.RawMessage"))
    item = item or {}
    _need("name" in item, f"{where}.name", None, "no resource name specified")
    name = _name(f"{where}.name", item["name"])
    chooses = "devices" in item and _devices(f"{where}.devices", item["devices"])
    _need("replicas" in item, f"{where}.replicas", None, "no replicas specified")
    replicas = item["replicas"]
    _need(is_int(replicas) or replicas is None, f"{where}.replicas", replicas, wrong_type(replicas, "int"))
    _need((replicas or 0) >= 2, f"{where}.replicas", replicas, "number of replicas must be >= 2")
    advertised = f"{name}.shared" if rename_by_default else name
    renames = "rename" in item and _name(f"{where}.rename", item["rename"]) not in (advertised, "")
    return Shared(name, advertised, replicas), renames, chooses


def _name(where: str, value: Any) -> str:
    _need(isinstance(value, str) or value is None, where, value, wrong_type(value, "string"))
    name = value or ""
    name = name if name.startswith("nvidia.com/") else f"nvidia.com/{name}"
    _need(len(name.encode()) <= 63, where, value, f"fully-qualified resource name must be 63 characters or less: {name}")
    _need(bool(_SUBDOMAIN.fullmatch(name.partition("/")[2])), where, value,
          f"incorrect format for resource name '{shown(name)}': [{_RULE}]")
    return name


def _devices(where: str, value: Any) -> bool:
    """Checks the field's form; True when it chooses devices, which the plugin does not support yet and ignores."""
    if isinstance(value, str) or value is None:
        _need(value == "all", where, value, f"devices set as '{value or ''}' but the only valid string input is 'all'")
        return False
    if is_int(value):
        _need(value > 0, where, value, f"devices set as '{value}' but a count of devices must be > 0")
        return True
    _need(isinstance(value, list), where, value, f"unrecognized type for devices spec: {shown(value)}")
    for index, item in enumerate(value):
        right = (is_int(item) and item >= 0) or (isinstance(item, str) and _reference(item))
        written = shown(item) if isinstance(item, str) else ""
        _need(right, f"{where}[{index}]", item, f"unsupported type for device in devices list: {written}, string")
    return True


def _reference(text: str) -> bool:
    """A GPU index "0", a MIG index "0:1" or the UUID of a GPU or a MIG device."""
    if re.fullmatch(r"\d+(:\d+)?", text, re.ASCII):
        return True
    kind, _, rest = text.partition("-")
    if kind == "MIG" and (old := re.fullmatch(r"GPU-([^/]*)/\d+/\d+", rest, re.ASCII)):
        rest = old[1]
    try:
        return kind in ("GPU", "MIG") and bool(uuid.UUID(rest))
    except ValueError:
        return False
