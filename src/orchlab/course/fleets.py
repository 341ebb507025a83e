"""A lab's own fleet: made when the lab is entered, the former one restored when another lab is.

A fleet.yaml in a lab's folder is for the environment that the lab attaches to, unless the lab brings up environments of its own
(`environments` in lab.toml): then its notebook hands the file to them.
"""

from __future__ import annotations

import json
from typing import Any

from orchlab import environment, fleet
from orchlab.course.folder import LabFolder
from orchlab.environment import Environment
from orchlab.paths import private_folder, write_private


def enter(lab: LabFolder, name: str) -> str:
    """Gives environment `name` the fleet that the lab wants: its own, or the one from before some other lab's. Returns a sentence if
    anything was changed. Raises what `environment.up` raises."""
    env = Environment.load(name)
    note = env.folder / "course" / "fleet-before.json"
    noted: dict[str, Any] = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    if noted and env.record.fleet != noted["lab"]:
        # Somebody has chosen another fleet since: that one is theirs to keep.
        note.unlink()
        noted = {}
    own = lab.folder / "fleet.yaml"
    if own.exists() and not lab.file.environments:
        wanted = fleet.load(own).model_dump(mode="json")
        if wanted == env.record.fleet:
            return ""
        private_folder(note.parent)
        write_private(note, json.dumps({"before": noted.get("before", env.record.fleet), "lab": wanted}))
        environment.up(name, fleet=wanted)
        return f"environment {name} has the fleet of lab {lab.number}; the next lab gets the former one back"
    if not noted:
        return ""
    environment.up(name, fleet=noted["before"])
    note.unlink()
    return f"environment {name} has its former fleet back"
