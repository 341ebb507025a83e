"""mig-parted's configuration: parsed as strictly as the MIG manager does, applied to a node's GPUs, and generated per node.

Facts from mig-parted's public source (0.15): the format, its errors, which entry applies to which GPU, what the generated
configuration of a node holds, and that a profile which no GPU of the node has leaves a GPU without instances instead of failing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from orchlab.errors import BadInput
from orchlab.gpus import documents, mig
from orchlab.gpus.catalog import GpuModel, MigProfile

VENDOR = "10DE"
# What all-balanced makes of a GPU, by its compute slices: {compute slices of a profile: instances}.
BALANCED = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}


class MigConfigError(documents.ConfigError):
    """A configuration that mig-parted refuses; `log` is the line that it prints."""

    prefix = "error parsing config file: unmarshal error: "
    decoding = "error unmarshaling JSON: while decoding JSON: "

    @property
    def log(self) -> str:
        # Unlike the device plugin, mig-parted checks the version while it decodes.
        return self.prefix + self.decoding + self.problem if self.problem.startswith("unknown version") else super().log


class MigApplyError(documents.ConfigError):
    """mig-parted fails while it selects or applies a configuration; `log` is the line that it prints."""


@dataclass(frozen=True)
class Entry:
    """One item of a named configuration. `devices` is None for all GPUs, else their indexes; `device_filter` holds PCI ids such as
    "0x20B010DE" (empty: every GPU); `mig_devices` counts instances by profile."""

    devices: tuple[int, ...] | None
    device_filter: tuple[str, ...]
    mig_enabled: bool
    mig_devices: dict[str, int]

    def matches(self, index: int, device_id: str) -> bool:
        """Whether the entry is meant for the GPU with this index and PCI device id (four hex digits)."""
        packed = int(device_id + VENDOR, 16)
        filtered = not self.device_filter or any(_packed(written) == packed for written in self.device_filter)
        return filtered and (self.devices is None or index in self.devices)


@dataclass(frozen=True)
class Layout:
    """What one GPU gets: MIG mode and its instances in the order of creation."""

    mig_enabled: bool
    placements: tuple[mig.Placement, ...] = ()


Configs = dict[str, tuple[Entry, ...]]


def parse(text: object, field: str = "config.yaml") -> Configs:
    """The named configurations of a document in mig-parted's format. Raises MigConfigError, which names the field."""
    document = documents.load(text, field, MigConfigError)
    if document is None:
        return {}
    _need(isinstance(document, dict), field, document, documents.wrong_type(document, "map[string]json.RawMessage"))
    _need("version" in document or not document, "version", None, "unable to parse with missing 'version' field")
    version = document.get("version")
    _need(isinstance(version, str) or version is None, "version", version, documents.wrong_type(version, "string"))
    _need(version == "v1", "version", version, f"unknown version: {version or ''}")
    for key in document:
        _need(key in ("version", "mig-configs"), key or field, document[key], f"unexpected field: {key}")
    if "mig-configs" not in document:
        return {}
    configs = document["mig-configs"]
    _need(isinstance(configs, dict) or configs is None, "mig-configs", configs,
          documents.wrong_type(configs, "map[string]v1.MigConfigSpecSlice"))
    _need(bool(configs), "mig-configs", configs, "at least one entry in 'mig-configs' is required")
    return {name: _entries(name, entries) for name, entries in configs.items()}


def _entries(name: str, entries: Any) -> tuple[Entry, ...]:
    field = f"mig-configs.{name}"
    _need(isinstance(entries, list) or entries is None, field, entries, documents.wrong_type(entries, "v1.MigConfigSpecSlice"))
    _need(bool(entries), field, entries, f"at least one entry in '{name}' is required")
    return tuple(_entry(f"{field}[{index}]", entry) for index, entry in enumerate(entries))


def _entry(field: str, entry: Any) -> Entry:
    _need(isinstance(entry, dict) or entry is None, field, entry, documents.wrong_type(entry, "map[string]json.RawMessage"))
    entry = entry or {}
    for key in ("devices", "mig-enabled"):
        _need(key in entry, f"{field}.{key}", None, f"missing required field: {key}")
    for key in entry:
        _need(key in ("device-filter", "devices", "mig-enabled", "mig-devices"), f"{field}.{key}", entry[key], f"unexpected field: {key}")
    enabled = entry["mig-enabled"]
    _need(isinstance(enabled, bool) or enabled is None, f"{field}.mig-enabled", enabled, documents.wrong_type(enabled, "bool"))
    wanted = entry.get("mig-devices")
    if wanted is not None:
        _check_devices(f"{field}.mig-devices", wanted)
    _need(not enabled or wanted is not None, f"{field}.mig-devices", None,
          "missing required field 'mig-devices' when 'mig-enabled' is true")
    _need(enabled or not wanted, f"{field}.mig-devices", wanted, "MIG devices included when 'mig-enabled' is false")
    return Entry(_devices(f"{field}.devices", entry["devices"]), _filter(f"{field}.device-filter", entry.get("device-filter")),
                 bool(enabled), dict(wanted or {}))


def _devices(field: str, value: Any) -> tuple[int, ...] | None:
    if isinstance(value, str) or value is None:
        _need(value == "all", field, value, f"invalid string input for 'devices': {value or ''}")
        return None
    _need(isinstance(value, list) and all(documents.is_int(item) for item in value), field, value, _neither(value, "int", documents.is_int))
    return tuple(value)


def _filter(field: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or value is None:
        return (value,) if value else ()
    _need(isinstance(value, list) and all(isinstance(item, str) for item in value), field, value,
          _neither(value, "string", lambda item: isinstance(item, str)))
    return tuple(value)


def _neither(value: Any, element: str, fits: Callable[[Any], bool]) -> str:
    """Go's two complaints about what is neither a string nor a list of `element`."""
    wrong = next((item for item in value if not fits(item)), None) if isinstance(value, list) else None
    second = documents.wrong_type(value, f"[]{element}") if wrong is None else documents.wrong_type(wrong, element)
    return f"({documents.wrong_type(value, 'string')}, {second})"


def _check_devices(field: str, wanted: Any) -> None:
    _need(isinstance(wanted, dict), field, wanted, documents.wrong_type(wanted, "types.MigConfig"))
    for profile, count in wanted.items():
        here = f"{field}.{profile}"
        _need(documents.is_int(count), here, count, documents.wrong_type(count, "int"))
        problem = format_problem(profile)
        _need(not problem, here, profile, f"error validating values in 'mig-devices' field: invalid format for '{profile}': {problem}")
        _need(count >= 0, here, count, f"error validating values in 'mig-devices' field: invalid count for '{count}': <nil>")
    _need(not wanted or any(wanted.values()), field, wanted,
          "error validating values in 'mig-devices' field: all counts for all MigProfiles are 0")


def format_problem(profile: str) -> str:
    """What NVIDIA's library says against the form of a profile name; empty when the form is right. "0g.0gb" has the right form."""
    if not profile:
        return "profile is the empty string"
    if "+" in profile and "-" in profile:
        return f"profile '{profile}' contains both '+/-' attributes"
    sign = "+" if "+" in profile else "-"
    fields, _, attributes = profile.partition(sign)
    parts = fields.split(".", 2)
    if len(parts) < 2:
        return f"cannot parse fields of '{profile}': parsed wrong number of fields, expected 2 or 3"
    for part, unit in zip(parts, ("c", "g", "gb") if len(parts) == 3 else ("g", "gb"), strict=True):
        if part != part.strip():
            return f"cannot parse fields of '{profile}': leading or trailing spaces on '%d{unit}'"
        if not part.endswith(unit):
            return f"cannot parse fields of '{profile}': missing '{unit}' from '%d{unit}'"
        number = part.removesuffix(unit)
        if not (number.isascii() and number.isdigit()):
            return f"cannot parse fields of '{profile}': malformed number in '%d{unit}'"
    if sign in profile:
        names = attributes.split(",")
        for problem, found in (("empty attribute in list", "" in names), ("non unique attribute in list", len(set(names)) < len(names)),
                               ("leading or trailing spaces in attribute", any(name != name.strip() for name in names))):
            if found:
                return f"cannot parse attributes of '{profile}': {problem}"
    return ""


def _need(condition: bool, field: str, value: Any, problem: str) -> None:
    if not condition:
        raise MigConfigError(field, documents.shown(value), problem, "correct this field of the MIG configuration")


def _packed(written: str) -> int:
    """The 32 bits (device and vendor id) of a filter; one that cannot be read matches no GPU, silently, as in mig-parted."""
    try:
        number = int(written.partition(":")[0], 0)
    except ValueError:
        return -1
    return number if 0 <= number < 2**32 and ":" not in written else -1


def select(configs: Configs, name: str) -> tuple[Entry, ...]:
    """The configuration called `name`. Raises MigApplyError in the MIG manager's words."""
    try:
        return configs[name]
    except (KeyError, TypeError):
        raise MigApplyError("nvidia.com/mig.config", documents.shown(name), f"selected mig-config not present: {name}",
                            f"use one of {', '.join(configs) or 'no configuration exists'}") from None


def apply(configs: Configs, name: str, gpus: Sequence[GpuModel]) -> dict[int, Layout]:
    """What configuration `name` makes of a node's GPUs: {index: layout}; a GPU that no entry matches is absent and stays as it is.

    A filter that matches nothing, and a profile that no GPU of the node has, are not errors; the second leaves the GPU without instances.
    Raises MigApplyError with the real tool's words: unknown name, GPU without MIG named by index, layout that does not fit.
    """
    known = {profile for gpu in gpus if gpu.mig for profile in gpu.mig.profiles}
    layouts: dict[int, Layout] = {}
    for position, entry in enumerate(select(configs, name)):
        field = f"mig-configs.{name}[{position}]"
        for index, gpu in enumerate(gpus):
            if not entry.matches(index, gpu.pci_device_id):
                continue
            if gpu.mig is None:
                if entry.devices is not None and entry.mig_enabled:
                    raise MigApplyError(f"{field}.devices", index, "cannot set MIG mode on non MIG-capable GPU",
                                        f"GPU {index} is a {gpu.nvml_name}: leave it out")
                continue
            layouts[index] = Layout(entry.mig_enabled, _fit(entry, gpu, known, f"{field}.mig-devices"))
    return layouts


def _fit(entry: Entry, gpu: GpuModel, known: set[str], field: str) -> tuple[mig.Placement, ...]:
    if not entry.mig_enabled:
        return ()
    wanted = {profile: count for profile, count in entry.mig_devices.items() if count}
    for profile in wanted:
        if len(profile.split(".")) == 3 and profile.partition(".")[2] in known:
            raise MigApplyError(field, profile, "compute instances inside a GPU instance are not simulated",
                                f"ask for {profile.partition('.')[2]}")
    if any(profile not in known for profile in wanted):
        return ()
    try:
        return mig.place(gpu, wanted, field=field)
    except BadInput as refusal:
        raise MigApplyError(field, wanted, "error setting MIGConfig: error attempting multiple config orderings: all orderings failed",
                            str(refusal.problem)) from refusal


def generate(gpus: Sequence[GpuModel]) -> Configs:
    """The configuration that the MIG manager generates from a node's hardware: all-disabled, all-enabled, all-balanced where the model
    allows it, and all-PROFILE with as many instances as fit. Filters by PCI id are written only where GPUs differ."""
    found = {gpu.name: gpu for gpu in gpus if gpu.mig}
    if not found:
        return {}
    kinds = sorted(found.values(), key=_device_id)

    def entry(wanted: Mapping[str, int], ids: Sequence[str]) -> Entry:
        return Entry(None, tuple(ids) if len(kinds) > 1 else (), True, dict(wanted))

    configs: Configs = {"all-disabled": (Entry(None, (), False, {}),), "all-enabled": (Entry(None, (), True, {}),)}
    balanced = [entry(wanted, [_device_id(gpu)]) for gpu in kinds if (wanted := balanced_layout(gpu))]
    if balanced:
        configs["all-balanced"] = tuple(balanced)
    for profile in sorted({name for gpu in kinds for name in gpu.mig.profiles}):
        counts: dict[int, list[str]] = {}
        for gpu in kinds:
            if profile in gpu.mig.profiles:
                counts.setdefault(gpu.mig.profiles[profile].max_count, []).append(_device_id(gpu))
        configs[f"all-{mig.dotted(profile)}"] = tuple(entry({profile: count}, ids) for count, ids in sorted(counts.items()))
    return dict(sorted(configs.items()))


def balanced_layout(gpu: GpuModel) -> dict[str, int]:
    """Instances by profile of all-balanced on this model; empty when it has none. Per slice count the profile that fits most often."""
    profiles = [p for p in mig.capable(gpu).mig.profiles.values() if not p.media]
    best: dict[int, MigProfile] = {}
    for profile in profiles:
        if profile.slices not in best or profile.max_count > best[profile.slices].max_count:
            best[profile.slices] = profile
    formula = BALANCED.get(gpu.mig.compute_slices, {})
    return {best[slices].name: count for slices, count in formula.items()} if all(slices in best for slices in formula) else {}


def dump(configs: Configs) -> str:
    """The document with these configurations as YAML, which parse() reads back."""
    plain = {name: [_plain(entry) for entry in entries] for name, entries in configs.items()}
    return yaml.safe_dump({"version": "v1", "mig-configs": plain}, sort_keys=False)


def _plain(entry: Entry) -> dict[str, Any]:
    written: dict[str, Any] = {"device-filter": list(entry.device_filter)} if entry.device_filter else {}
    written |= {"devices": "all" if entry.devices is None else list(entry.devices), "mig-enabled": entry.mig_enabled}
    return written | {"mig-devices": dict(entry.mig_devices)} if entry.mig_enabled else written


def _device_id(gpu: GpuModel) -> str:
    return f"0x{gpu.pci_device_id.upper()}{VENDOR}"
