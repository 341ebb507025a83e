"""A small, sound lab to change one thing in."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat.v4 import new_output

from orchlab.course import newlab
from orchlab.course.folder import LabFolder


def sound_lab(home: Path, number: str = "42", slug: str = "some-lab") -> LabFolder:
    """What scripts/new-lab makes, with outputs as scripts/execute-labs would store them."""
    lab = newlab.make(number, slug, home)
    notebook = nbformat.read(lab.notebook, as_version=4)
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.execution_count = count
        cell.outputs = [new_output("stream", name="stdout", text="seen\n")]
    nbformat.write(notebook, lab.notebook)
    return lab


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{old!r} is not in {path}"
    path.write_text(text.replace(old, new))
