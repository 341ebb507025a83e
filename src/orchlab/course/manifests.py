"""A manifest of the learner's own, from a file or an http(s) address."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import yaml

from orchlab.errors import BadInput

LARGEST = 1024 * 1024
SECONDS = 15
MAKE_PODS = {"pod", "replicaset", "deployment", "statefulset", "daemonset", "job"}


@dataclass(frozen=True)
class Manifest:
    """`text` is what is applied; `notes` says what had to be changed in it."""

    text: str
    notes: list[str]
    generates_names: bool


def read(source: str | Path, folders: list[Path]) -> Manifest:
    """Reads at most 1 MiB within 15 s; a relative path is looked for in `folders`, in order. Raises BadInput for what cannot be had or
    is not Kubernetes YAML. A namespace written into it is taken out, and said: the lab works in its own."""
    text = _fetch(str(source)) if str(source).startswith(("http://", "https://")) else _open(Path(source).expanduser(), folders)
    try:
        objects = [thing for thing in yaml.safe_load_all(text) if thing is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise BadInput(
            "manifest", str(source), f"is not YAML: {where}{getattr(error, 'problem', error)}", "mend it, or give another"
        ) from None
    for thing in objects:
        if not isinstance(thing, dict) or "kind" not in thing or "apiVersion" not in thing:
            raise BadInput(
                "manifest", str(source), "holds something without apiVersion and kind", "a web page's address? give the raw file's"
            )
    if not objects:
        raise BadInput("manifest", str(source), "holds no object")
    notes = []
    if spaces := sorted({thing["metadata"]["namespace"] for thing in objects if "namespace" in (thing.get("metadata") or {})}):
        for thing in objects:
            thing["metadata"].pop("namespace", None)
        notes.append(f"(metadata.namespace {', '.join(spaces)} was taken out: the lab works in its own namespace)")
        text = yaml.safe_dump_all(objects, sort_keys=False)
    generates = any("generateName" in (thing.get("metadata") or {}) for thing in objects)
    return Manifest(text, notes, generates)


def _open(path: Path, folders: list[Path]) -> str:
    for candidate in [path] if path.is_absolute() else [folder / path for folder in folders]:
        if candidate.is_file():
            if candidate.stat().st_size > LARGEST:
                raise BadInput("manifest", str(path), "is larger than 1 MiB")
            try:
                return candidate.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise BadInput("manifest", str(path), f"cannot be read: {error}") from None
    raise BadInput(
        "manifest", str(path), "there is no such file", f"give a path from {folders[0] if folders else '/'}, an absolute one, or an address"
    )


def _fetch(address: str) -> str:
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer:
            data = answer.read(LARGEST + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise BadInput("manifest", address, f"cannot be fetched: {getattr(error, 'reason', error)}", "save it and give the file") from None
    if len(data) > LARGEST:
        raise BadInput("manifest", address, "is larger than 1 MiB")
    return data.decode("utf-8", errors="replace")
