"""What a learner has done, kept beside the environments and not in them: it survives a removed environment, restarts and upgrades."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from orchlab.course.answers import Answer, Text
from orchlab.course.folder import LabFolder
from orchlab.errors import BadInput, OrchlabError
from orchlab.paths import private_folder, state_home, write_private

SCHEMA = 1


def path() -> Path:
    """$ORCHLAB_PROGRESS (runs and tests keep their own), else progress.json in the state folder."""
    given = os.environ.get("ORCHLAB_PROGRESS")
    return Path(given) if given else state_home() / "progress.json"


def load() -> dict[str, dict[str, Any]]:
    """Exercises by lab number and name: passed (a date or ""), attempts, hints, solved. A damaged file is set aside, not lost."""
    file = path()
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or not isinstance(data.get("labs"), dict):
            raise ValueError("it holds no labs")
    except FileNotFoundError:
        return {}
    except ValueError:
        file.replace(file.with_name(f"{file.name}.damaged-{_now().replace(':', '')}"))
        return {}
    if data.get("schema", 0) > SCHEMA:
        raise OrchlabError(f"{file} was written by a newer orchlab (schema {data['schema']})", "update orchlab, or move that file away")
    return data["labs"]


def note(lab: LabFolder, exercise: str, answer: Answer | None = None, hints: int | None = None, solved: bool = False) -> dict[str, Any]:
    """Adds what has just happened to one exercise and returns its record."""
    with _locked():
        everything = load()
        record = everything.setdefault(lab.number, {}).setdefault(exercise, {"passed": "", "attempts": 0, "hints": 0, "solved": False})
        if answer is not None:
            record["attempts"] += 1
            if answer.passed and not record["passed"]:
                record["passed"] = _now()
        if hints is not None:
            record["hints"] = max(record["hints"], hints)
        record["solved"] = record["solved"] or solved
        write_private(path(), json.dumps({"schema": SCHEMA, "labs": everything}, indent=1) + "\n")
        return record


def of(lab: LabFolder, exercise: str) -> dict[str, Any]:
    """The record of one exercise; an empty one if nothing has happened yet."""
    return load().get(lab.number, {}).get(exercise, {"passed": "", "attempts": 0, "hints": 0, "solved": False})


class Progress(Text):
    """Progress as text, and in a browser as a table with a bar for each lab."""

    rows: list[tuple[str, str, int, int, int]]

    def _repr_html_(self) -> str:
        lines = "".join(f"<tr><td>{number}</td><td style='text-align:left'>{escape(title)}</td><td>{minutes} min</td>"
                        f"<td><progress max='{total}' value='{done}' aria-label='lab {number}: {done} of {total}'></progress></td>"
                        f"<td>{done} of {total}</td></tr>" for number, title, minutes, done, total in self.rows)
        detail = "\n".join(line for line in self.splitlines() if line.startswith(" "))
        head = "<tr><th>lab</th><th>title</th><th>time</th><th colspan='2'>exercises passed</th></tr>"
        more = f"<pre>{escape(detail)}</pre>" if detail else ""
        return f"<table><thead>{head}</thead><tbody>{lines}</tbody></table>{more}"


def table(labs: list[LabFolder], detailed: bool = False) -> Progress:
    """One line per lab; `detailed`: one per exercise as well. A lab whose lab.toml cannot be read is listed with the reason."""
    everything = load()
    lines, rows = [], []
    for lab in labs:
        try:
            file = lab.file
        except BadInput as error:
            lines.append(f"{lab.number}  {lab.name}: {error.args[0]}")
            continue
        records = everything.get(lab.number, {})
        done, total = sum(1 for e in file.exercises if records.get(e.name, {}).get("passed")), len(file.exercises)
        rows.append((lab.number, file.title, file.minutes, done, total))
        lines.append(f"{lab.number}  {file.title:<36} {file.minutes:>3} min   {done} of {total} exercises passed")
        if detailed:
            lines += [_exercise_line(exercise.name, exercise.title, records.get(exercise.name)) for exercise in file.exercises]
    made = Progress("\n".join(lines) or "no labs")
    made.rows = rows
    return made


def _exercise_line(name: str, title: str, record: dict[str, Any] | None) -> str:
    if not record:
        return f"    · {name:<22} {title} (not tried)"
    sign = "✔" if record["passed"] else "…"
    told = [f"{record['attempts']} checks", f"{record['hints']} hints"] + (["solution shown"] if record["solved"] else [])
    return f"    {sign} {name:<22} {title} ({', '.join(told)})"


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Two notebooks may pass exercises at the same moment; the lock is held for milliseconds."""
    folder = path().parent
    if folder == state_home():
        private_folder(folder)
    with open(folder / f".{path().name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
