"""Reads a YAML document as Go programs with sigs.k8s.io/yaml see it: as JSON, with their words for what is wrong."""

from __future__ import annotations

from typing import Any

import yaml

from orchlab.errors import BadInput

# No ConfigMap can hold more.
LIMIT = 2**20
DEPTH = 100


class _Loader(yaml.SafeLoader):
    """Safe, and dates stay text as they do in JSON."""


_Loader.yaml_implicit_resolvers = {first: [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
                                   for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()}


class ConfigError(BadInput):
    """A configuration that the real tool refuses. `problem` is the tool's own wording, `log` the line that it would log: `prefix` comes
    before it, and `decoding` too where the YAML itself could be read."""

    prefix = ""
    decoding = ""

    @property
    def log(self) -> str:
        plain = self.problem.startswith(("error converting YAML", "unknown version"))
        return self.prefix + ("" if plain else self.decoding) + self.problem


def load(text: object, field: str, error: type[ConfigError]) -> Any:
    """The document as JSON values (None, bool, int, float, str, list, dict with str keys). Raises `error`, naming `field`."""
    if not isinstance(text, str):
        raise error(field, type(text).__name__, "is not text", "pass the YAML text")
    if len(text) > LIMIT:
        raise error(field, f"{len(text)} characters", "is larger than a ConfigMap can be", f"stay below {LIMIT}")
    if _nesting(text) > DEPTH:
        raise error(field, shown(text), f"error converting YAML to JSON: yaml: exceeded max depth of {DEPTH}", "nest less deeply")
    try:
        return _json(yaml.load(text, Loader=_Loader), 0)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        what = getattr(problem, "problem", None) or str(problem).splitlines()[0]
        raise error(field, shown(text), f"error converting YAML to JSON: yaml: {where}{what}", "write it as valid YAML") from None
    except (RecursionError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as problem:
        # PyYAML fails in these ways where a tag does not fit its value ("!!bool x").
        raise error(field, shown(text), f"error converting YAML to JSON: yaml: {problem}", "write it as valid YAML") from None


def _nesting(text: str) -> int:
    """How many brackets are open at most. The YAML scanner's time grows with the square of it."""
    depth = deepest = 0
    for character in text:
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth = max(depth - 1, 0)
    return deepest


def _json(value: Any, depth: int) -> Any:
    if depth > DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        return {_key(key): _json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_json(item, depth + 1) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"unsupported value of type {type(value).__name__}")


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, (str, int, float)):
        return str(key)
    raise ValueError(f"unsupported key of type {type(key).__name__}")


def shown(value: object) -> object:
    """The value, cut to a length that fits into a message."""
    written = value if isinstance(value, str) else repr(value)
    return value if len(written) <= 80 else written[:77] + "..."


def wrong_type(value: object, go_type: str) -> str:
    """encoding/json's words for a value that does not fit `go_type`."""
    if go_type == "int" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"json: cannot unmarshal number {value} into Go value of type int"
    kind = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}.get(type(value), "null")
    return f"json: cannot unmarshal {kind} into Go value of type {go_type}"


def is_int(value: object) -> bool:
    """True for what fits a Go int."""
    return isinstance(value, int) and not isinstance(value, bool) and -2**63 <= value < 2**63
