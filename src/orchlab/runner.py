"""`orchlab run NN`: a lab's notebook from top to bottom, with the exercises solved, in a copy. Time limits, a short report."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

import nbformat
from traitlets.config import Config

from orchlab.course import folder, kernels, reset, solutions, working
from orchlab.course.folder import LabFolder
from orchlab.environment import Environment
from orchlab.paths import private_folder, write_private

CELL_SECONDS = 240
TOTAL_SECONDS = 900
REPORTS_KEPT = 10
TAG = "exercise:"
# What a kernel and its client say to each other is nobody else's on this machine.
ENCRYPTED = Config(KernelManager={"transport_encryption": "auto"})

CellProgress = Callable[[int, int, str], None]
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Cell:
    """One code cell that was run. Time in seconds."""

    index: int
    title: str
    seconds: float


@dataclass
class Report:
    """What a run gave. `passed` holds every exercise of the lab; `error` is "" unless a cell failed or a limit was reached."""

    lab: str
    title: str
    notebook: str
    passed: dict[str, bool] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and all(self.passed.values())

    def text(self) -> str:
        """The report for a terminal: the verdict, the checks, the slowest cells, where the executed notebook is."""
        done = sum(self.passed.values())
        verdict = "passed" if self.ok else "FAILED"
        lines = [f"Lab {self.lab}, {self.title}: {verdict} in {self.seconds:.0f} s, {done} of {len(self.passed)} checks passed"]
        lines += [f"  {'✔' if good else '✘'} {name}" for name, good in self.passed.items()]
        slow = sorted(self.cells, key=lambda cell: -cell.seconds)[:3]
        lines += [f"  {cell.seconds:5.1f} s  cell {cell.index}: {cell.title}" for cell in slow]
        if self.error:
            lines.append(self.error)
        return "\n".join([*lines, f"Executed notebook: {self.notebook}"])


def run(which: str, environment: str = "default", on_cell: CellProgress | None = None, cell_seconds: int = CELL_SECONDS,
        total_seconds: int = TOTAL_SECONDS, only: Sequence[str] = (), afresh: bool = True) -> Report:
    """Resets the lab's cluster state, runs the notebook with its solutions, keeps the executed copy. What the lab made stays, to be looked
    at. The learner's notebook and progress are left alone. With `only` it is the short form: the lab's first section and those of these
    exercises. Without `afresh` it runs on what is there. Raises BadInput for an unknown lab or exercise; failures of cells are in the
    report."""
    lab = folder.lab(which)
    chosen = [lab.exercise(name) for name in dict.fromkeys(only)] or lab.file.exercises
    if afresh:
        reset.cluster(lab, environment)
    target = _report_folder(lab)
    with tempfile.TemporaryDirectory(prefix="orchlab-run-") as temporary:
        copy = solved_copy(lab, Path(temporary), only)
        report = execute(copy, target / lab.notebook.name, environment, target / "progress.json", on_cell, cell_seconds, total_seconds)
    report.lab, report.title = lab.number, lab.file.title
    records = json.loads((target / "progress.json").read_text())["labs"].get(lab.number, {}) if (target / "progress.json").exists() else {}
    report.passed = {exercise.name: bool(records.get(exercise.name, {}).get("passed")) for exercise in chosen}
    write_private(target / "report.json", json.dumps(asdict(report), indent=1) + "\n")
    return report


def solved_copy(lab: LabFolder, target: Path, only: Sequence[str] = ()) -> Path:
    """Copies notebook and folder to `target`, every exercise cell replaced by its solution; with `only` without the sections that the
    short form leaves out. Returns the copy's path."""
    shutil.copytree(lab.folder, target / lab.name, ignore=shutil.ignore_patterns("__pycache__"))
    notebook = nbformat.read(lab.notebook, as_version=4)
    for cell in notebook.cells:
        if name := exercise_of(cell):
            cell.source = solutions.cell(lab.solution(name))
    if only:
        notebook.cells = short_form(notebook.cells, only)
    copy = target / lab.notebook.name
    nbformat.write(notebook, copy)
    return copy


def short_form(cells: list[nbformat.NotebookNode], only: Sequence[str]) -> list[nbformat.NotebookNode]:
    """The cells before the second heading of level two, where a lab attaches to its cluster, and the sections with these exercises."""
    sections: list[list[nbformat.NotebookNode]] = [[]]
    for cell in cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            sections.append([])
        sections[-1].append(cell)
    return [cell for number, section in enumerate(sections) for cell in section
            if number < 2 or any(exercise_of(one) in only for one in section)]


def exercise_of(cell: nbformat.NotebookNode) -> str:
    """The exercise that this cell is to be answered in, or ""."""
    return next((tag.removeprefix(TAG) for tag in cell.metadata.get("tags", []) if tag.startswith(TAG)), "")


def execute(notebook: Path, output: Path, environment: str, progress_file: Path, on_cell: CellProgress | None = None,
            cell_seconds: int = CELL_SECONDS, total_seconds: int = TOTAL_SECONDS) -> Report:
    """Runs a notebook in its own folder through papermill and writes the executed copy, also when a cell fails."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    report = Report("", "", str(output))
    nodes = nbformat.read(notebook, as_version=4).cells
    titles = cell_titles(nodes)
    begun = time.monotonic()
    started: dict[int, float] = {}

    def on_start(cell: nbformat.NotebookNode, cell_index: int) -> None:
        started[cell_index] = time.monotonic()
        if on_cell and cell.cell_type == "code":
            on_cell(cell_index, len(nodes), titles[cell_index])

    def on_end(cell: nbformat.NotebookNode, cell_index: int, execute_reply: dict) -> None:
        if cell.cell_type == "code" and cell.source.strip():
            report.cells.append(Cell(cell_index, titles[cell_index], round(time.monotonic() - started[cell_index], 2)))

    def limit(cell: nbformat.NotebookNode) -> int:
        return max(1, int(min(cell_seconds, total_seconds - (time.monotonic() - begun))))

    def where() -> str:
        return f"cell {max(started)}: {titles[max(started)]}" if started else "the kernel"

    with _environment(environment, progress_file), _quiet():
        try:
            papermill.execute_notebook(str(notebook), str(output), kernel_name=kernels.KERNEL, cwd=str(notebook.parent), progress_bar=False,
                                       start_timeout=60, on_cell_start=on_start, on_cell_executed=on_end,
                                       timeout_func=limit, config=ENCRYPTED)
        except papermill.PapermillExecutionError as error:
            told = _COLOURS.sub("", f"{error.ename}: {error.evalue}")
            report.error = f"{where()} failed: {told}"
        except CellTimeoutError:
            report.error = f"{where()} was not done within its time ({cell_seconds} s a cell, {total_seconds} s in all)"
        except DeadKernelError as error:
            report.error = f"{where()}: the kernel died: {error}"
    report.seconds = round(time.monotonic() - begun, 1)
    return report


def cell_titles(cells: list[nbformat.NotebookNode]) -> list[str]:
    """For each cell the heading that it stands under."""
    titles, heading = [], "(top)"
    for cell in cells:
        if cell.cell_type == "markdown":
            headings = [line.lstrip("# ") for line in cell.source.splitlines() if re.match(r"#{1,4} ", line)]
            heading = headings[-1] if headings else heading
        titles.append(heading)
    return titles


@contextlib.contextmanager
def _environment(name: str, progress_file: Path) -> Iterator[None]:
    """Kernels inherit this process's variables; papermill has no way to give them others."""
    before = dict(os.environ)
    os.environ.update(kernels.variables(Environment.load(name)), ORCHLAB_PROGRESS=str(progress_file))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """papermill logs what the report says anyway."""
    import logging

    logger = logging.getLogger("papermill")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _report_folder(lab: LabFolder) -> Path:
    """A fresh folder; only the last few runs of a lab are kept."""
    runs = private_folder(working.home() / "runs")
    old = sorted(runs.glob(f"{lab.number}-*"))
    for path in old[: max(0, len(old) - REPORTS_KEPT + 1)]:
        shutil.rmtree(path, ignore_errors=True)
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S.%f")
    return private_folder(runs / f"{lab.number}-{stamp}")
