"""The working copy of the labs: what a learner opens and edits. Nothing of theirs is ever overwritten.

Beside the copies lies a list of what each file looked like when it was copied. So an updated original can replace a copy that was
never touched, and the learner can be told about the others.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from orchlab.course.folder import LabFolder, labs
from orchlab.paths import private_folder, state_home, write_private

# Answers and checks are read from the original; what a notebook refers to is copied with it.
NOT_COPIED = {"checks.py", "widget.py", "lab.toml", "solutions", "wrong", "breaks", "__pycache__"}
ORIGINS = ".orchlab-origins.json"


def home() -> Path:
    """The course's own folder in the state folder. No environment can have its name."""
    return private_folder(private_folder(state_home()) / "_course")


def folder() -> Path:
    """Where the working copies are."""
    return home() / "labs"


def update(labs_home: Path | None = None) -> list[str]:
    """Copies what is new and renews what was never edited. Returns one sentence for each copy that is kept though its original has
    changed."""
    target = private_folder(folder())
    origins = _origins()
    told: dict[str, str] = {}
    for lab in labs(labs_home):
        for source in _files(lab):
            name = str(source.relative_to(lab.home))
            copy, new = target / name, _digest(source)
            if not copy.exists() or (_digest(copy) == origins.get(name) != new):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
                origins[name] = new
            elif origins.get(name) != new and _digest(copy) != new:
                told[lab.number] = (f"labs/{lab.name} has been updated; your edited copy is kept. "
                                    f"`orchlab reset {lab.number} --notebook` takes the new one and keeps yours as a backup.")
    _save(origins)
    return list(told.values())


def renew(lab: LabFolder) -> list[Path]:
    """Puts the originals of one lab in place of the working copies; those that differ are kept beside them, with the date in their name.
    Returns the backups."""
    target = private_folder(folder())
    origins, backups = _origins(), []
    for source in _files(lab):
        name = str(source.relative_to(lab.home))
        copy, new = target / name, _digest(source)
        if copy.exists() and _digest(copy) != new:
            backups.append(_set_aside(copy))
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        origins[name] = new
    _save(origins)
    return backups


def _set_aside(copy: Path) -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    backup = copy.with_name(f"{copy.stem}.{stamp}{copy.suffix}")
    number = 1
    while backup.exists():
        number += 1
        backup = copy.with_name(f"{copy.stem}.{stamp}-{number}{copy.suffix}")
    copy.rename(backup)
    return backup


def _files(lab: LabFolder) -> Iterator[Path]:
    if lab.notebook.exists():
        yield lab.notebook
    for path in sorted(lab.folder.rglob("*")):
        parts = path.relative_to(lab.folder).parts
        if path.is_file() and not NOT_COPIED & set(parts) and not any(part.startswith(".") for part in parts):
            yield path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _origins() -> dict[str, str]:
    try:
        found = json.loads((folder() / ORIGINS).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (FileNotFoundError, ValueError):
        return {}


def _save(origins: dict[str, str]) -> None:
    write_private(folder() / ORIGINS, json.dumps(origins, indent=1, sort_keys=True) + "\n")
