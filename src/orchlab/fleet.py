"""The machines of an environment, from one YAML file, for whichever orchestrator.

A file has `region`, `zones` (zone: [racks]) and `pools`; see data/default-fleet.yaml. Reading one either gives a Fleet in which
everything fits together or raises BadInput with the field's path, its value and what to do.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from orchlab.errors import BadInput
from orchlab.fleet_nodes import FleetNode, expand, quantity, racks_of
from orchlab.gpus import catalog

DEFAULT = Path(__file__).with_name("data") / "default-fleet.yaml"
# Kubernetes states 5,000 nodes as what a cluster is designed for.
MOST_NODES = 5000
# Labels that orchlab itself sets from the other fields; a pool must not contradict them.
_OWN = re.compile(r"orchlab/|(kubernetes\.io/(arch|os|hostname)|node\.kubernetes\.io/instance-type|topology\.kubernetes\.io/(region|zone)"
                  r"|feature\.node\.kubernetes\.io/pci-10de\.present|nvidia\.com/(mig\.capable|gpu\.(present|product|count|replicas"
                  r"|sharing-strategy|memory|family|compute\.major|compute\.minor)))$")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def _bad(problem: str, remedy: str = "", path: str = "", value: Any = None) -> PydanticCustomError:
    return PydanticCustomError("orchlab", "{problem}", {"problem": problem, "remedy": remedy, "path": path, "value": value})


def _name(text: str) -> str:
    if not _NAME.fullmatch(text) or len(text) > 40:
        raise _bad("is not a name of at most 40 lower-case letters, digits and dashes", 'name it like "h100" or "zone-a"')
    return text


def _label_key(text: str) -> str:
    prefix, slash, name = text.rpartition("/")
    if not _LABEL_NAME.fullmatch(name) or (slash and not _LABEL_PREFIX.fullmatch(prefix)):
        raise _bad("is not a label key", 'write it like "team" or "example.com/team": letters, digits, -, _ and ., at most 63 after the /')
    return text


def _label_value(text: Any) -> str:
    if not isinstance(text, str):
        raise _bad("is not text", "put it in quotes")
    if text and not _LABEL_NAME.fullmatch(text):
        raise _bad("is not a label value", "use at most 63 letters, digits, -, _ and ., beginning and ending with a letter or digit")
    return text


def _quantity(text: Any) -> str:
    try:
        quantity(text)
    except BadInput as error:
        raise _bad(error.problem, error.remedy) from None
    return str(text)


def _model(name: Any) -> str:
    try:
        return catalog.model(name).name
    except BadInput as error:
        raise _bad(error.problem, error.remedy) from None


Name = Annotated[str, AfterValidator(_name)]
LabelKey = Annotated[str, AfterValidator(_label_key)]
LabelValue = Annotated[str, BeforeValidator(_label_value)]
Quantity = Annotated[str, BeforeValidator(_quantity)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Gpus(_Part):
    """The GPUs of each node in a pool: `model` from the catalog, `count` per node (1 to 16)."""

    model: Annotated[str, BeforeValidator(_model)]
    count: int = Field(ge=1, le=16)


class PoolTaint(_Part):
    """A taint as on a Kubernetes node."""

    key: LabelKey
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class Pool(_Part):
    """Equal machines: `count` of them with `cpu` logical CPUs, `memory` and `ephemeral_storage` (Kubernetes quantities), dealt out over
    the racks named in `racks`, else over all racks of `zones`, else over all racks. `labels` come on top of those that describe it."""

    name: Name
    count: int = Field(ge=1, le=MOST_NODES)
    gpus: Gpus | None = None
    cpu: int = Field(ge=1, le=4096)
    memory: Quantity
    ephemeral_storage: Quantity = "500Gi"
    zones: list[str] | None = Field(default=None, min_length=1)
    racks: list[str] | None = Field(default=None, min_length=1)
    labels: dict[LabelKey, LabelValue] = {}
    taints: list[PoolTaint] = []


class Fleet(_Part):
    """All pools and where they stand. `zones` maps each zone to its racks."""

    region: Name = "region-1"
    zones: dict[Name, Annotated[list[Name], Field(min_length=1)]] = Field(default={"zone-a": ["rack-a1"]}, min_length=1)
    pools: list[Pool] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Fleet:
        racks: dict[str, str] = {}
        for zone, names in self.zones.items():
            for index, rack in enumerate(names):
                if rack in racks:
                    raise _bad(f"is already a rack in {racks[rack]}", "give every rack its own name", f"zones.{zone}[{index}]", rack)
                racks[rack] = zone
        seen: set[str] = set()
        for index, pool in enumerate(self.pools):
            at = f"pools[{index}]"
            if pool.name in seen:
                raise _bad("is the name of an earlier pool", "give every pool its own name", f"{at}.name", pool.name)
            seen.add(pool.name)
            for kind, named, known in (("zones", pool.zones, self.zones), ("racks", pool.racks, racks)):
                for position, name in enumerate(named or []):
                    if name not in known:
                        raise _bad("is not in zones:", f"use one of {', '.join(known)}", f"{at}.{kind}[{position}]", name)
            for rack in pool.racks or []:
                if pool.zones and racks[rack] not in pool.zones:
                    raise _bad(f"stands in {racks[rack]}, which is not among the pool's zones", "drop one of the two", f"{at}.racks", rack)
            for label, value in pool.labels.items():
                if _OWN.match(label):
                    problem = "is set by orchlab itself, from the pool's other fields"
                    raise _bad(problem, "leave this label out", f"{at}.labels.{label}", value)
            doubled = [t.key for i, t in enumerate(pool.taints) if any((t.key, t.effect) == (u.key, u.effect) for u in pool.taints[:i])]
            if doubled:
                raise _bad("has two taints with the same effect", "keep one of them", f"{at}.taints", doubled[0])
        total = sum(pool.count for pool in self.pools)
        if total > MOST_NODES:
            raise _bad(f"together they are more than {MOST_NODES} nodes", "lower the pools' counts", "pools", total)
        return self

    def nodes(self) -> list[FleetNode]:
        """Every machine, in the order of the pools; names are POOL-0, POOL-1, …"""
        return expand(self.model_dump(mode="json"))

    def racks(self, pool: str) -> list[tuple[str, str]]:
        """(zone, rack) pairs over which that pool's nodes are dealt. Raises BadInput for a pool that there is not."""
        for data in self.model_dump(mode="json")["pools"]:
            if data["name"] == pool:
                return racks_of(data, self.zones)
        raise BadInput("pool", pool, "is not in the fleet", f"use one of {', '.join(p.name for p in self.pools)}")


class _UniqueKeys(yaml.SafeLoader):
    """Plain YAML keeps the last of two equal keys and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value]
        for position, (key, _) in enumerate(node.value):
            if key.value in keys[:position]:
                raise BadInput(str(key.value), f"line {key.start_mark.line + 1}", "is given twice", "keep one of the two")
        return super().construct_mapping(node, deep)


def load(path: Path | str | None = None) -> Fleet:
    """The fleet in a YAML file, or the default one. Raises BadInput for an unreadable file, bad YAML and every wrong field."""
    source = Path(path) if path is not None else DEFAULT
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise BadInput("fleet", str(source), f"cannot be read: {reason}", "give the path of a YAML file") from error
    return parse(text, str(source))


def parse(text: str, source: str = "fleet") -> Fleet:
    """The fleet that a YAML text describes; `source` names it in errors. Raises BadInput."""
    try:
        # A SafeLoader subclass: as safe as safe_load.
        data = yaml.load(text, Loader=_UniqueKeys)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise BadInput("fleet", source, f"is not YAML: {where}{getattr(error, 'problem', error)}", "mend the file") from error
    if not isinstance(data, dict):
        raise BadInput("fleet", source, "holds no mapping with pools:", f"see {DEFAULT.name} for an example")
    return from_data(data)


def from_data(data: dict[str, Any]) -> Fleet:
    """The fleet in plain data. Raises BadInput for the first thing that is wrong."""
    try:
        return Fleet.model_validate(data)
    except ValidationError as error:
        raise _readable(error) from None


def _readable(error: ValidationError) -> BadInput:
    # A misspelt key makes two errors, unknown and missing: the unknown one helps more.
    first = min(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    more = error.error_count() - 1
    context = first.get("ctx") or {}
    location = [part for part in first["loc"] if part != "[key]"]
    path = context.get("path") or _dotted(location)
    value = context.get("value") if context.get("path") else first["input"]
    problem, remedy = _words(first, location)
    if more:
        problem += f" (and {more} more)"
    return BadInput(path, value, problem, remedy)


def _words(error: dict, location: list) -> tuple[str, str]:
    context = error.get("ctx") or {}
    match error["type"]:
        case "orchlab":
            return context["problem"], context["remedy"]
        case "extra_forbidden":
            kind = {1: Fleet, 3: Pool, 4: Gpus, 5: PoolTaint}.get(len(location), Fleet)
            return "is not a known key", f"known here: {', '.join(kind.model_fields)}"
        case "missing":
            return f"has no {location[-1]!r}", f"add {location[-1]}:"
        case "greater_than_equal":
            return f"is below {context['ge']}", f"give a whole number from {context['ge']}"
        case "less_than_equal":
            return f"is above {context['le']}", f"give at most {context['le']}"
        case "too_short":
            return "is empty", "give at least one"
        case "literal_error":
            return "is not one of the possible values", f"use {context['expected']}"
    return error["msg"][:1].lower() + error["msg"][1:], f"see {DEFAULT.name} for an example"


def _dotted(location: list) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return path.lstrip(".") or "fleet"
