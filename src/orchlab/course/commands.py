"""The course on the command line: plain functions, each returns what is to be printed and whether all is well."""

from __future__ import annotations

from orchlab.course import folder, progress, reset, working
from orchlab.course.answers import Answer, Text


def labs() -> Text:
    """All labs with their time and the learner's progress."""
    return progress.table(folder.labs())


def show_progress(which: str | None = None) -> Text:
    """Progress in one lab, exercise by exercise, or in all."""
    return progress.table([folder.lab(which)] if which is not None else folder.labs(), detailed=True)


def check(which: str, exercise: str | None = None, environment: str = "default") -> list[Answer]:
    """The answers of one exercise, or of all of the lab's, in order."""
    lab = _lab(which, environment)
    names = [exercise] if exercise else [e.name for e in lab.file.exercises]
    return [lab.check(name) for name in names]


def hint(which: str, exercise: str) -> Text:
    """The next hint. Needs no running environment."""
    from orchlab.course.lab import next_hint

    return next_hint(folder.lab(which), exercise)


def solve(which: str, exercise: str, environment: str = "default") -> Text:
    """Shows the solution and carries it out."""
    return _lab(which, environment).solve(exercise)


def reset_lab(which: str, environment: str = "default", notebook: bool = False) -> Text:
    """Brings a lab's cluster state back to its start; with `notebook` its working copy instead (yours is kept, dated)."""
    lab = folder.lab(which)
    if not notebook:
        return Text("\n".join(reset.cluster(lab, environment)))
    backups = working.renew(lab)
    lines = [f"{working.folder() / lab.notebook.name} is new again"]
    return Text("\n".join(lines + [f"yours is kept as {path.name}" for path in backups]))


def _lab(which: str, environment: str):
    from orchlab.course.lab import Lab

    return Lab(which, environment, quiet=True)
