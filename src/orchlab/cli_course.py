"""The command line's course part: labs, run, lab, check, hint, solve, reset, progress."""

from __future__ import annotations

import json
import os
from typing import Annotated, Optional

import typer
from rich.console import Console

out = Console(soft_wrap=True)
app = typer.Typer()

Name = Annotated[str, typer.Option("--name", "-n", envvar="ORCHLAB_ENVIRONMENT", help="The environment.")]
Which = Annotated[str, typer.Argument(help="A lab's number, such as 01.")]
Exercise = Annotated[str, typer.Argument(help="An exercise; `orchlab progress 01` lists them.")]


def _show(text: object) -> None:
    out.print(str(text), markup=False, highlight=False)


@app.command()
def labs() -> None:
    """All labs with their time and your progress."""
    from orchlab.course import commands

    _show(commands.labs())


@app.command()
def progress(which: Annotated[Optional[str], typer.Argument(help="A lab's number; without it, all labs.")] = None) -> None:
    """Your progress, exercise by exercise."""
    from orchlab.course import commands

    _show(commands.show_progress(which))


@app.command()
def run(
    which: Which, name: Name = "default",
    only: Annotated[Optional[list[str]], typer.Option("--only", help="The short form: the first section and this exercise. Repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Run a lab headless, its exercises replaced by their solutions, and report. Your own copy and progress are left alone."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from orchlab import runner

    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), console=console,
                  transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"lab {which}", total=None)

        def on_cell(index: int, total: int, title: str) -> None:
            bar.update(task, completed=index, total=total, description=f"lab {which}: {title[:60]}")

        report = runner.run(which, name, on_cell, only=only or ())
    if as_json:
        print(json.dumps({"ok": report.ok, "passed": report.passed, "seconds": report.seconds, "error": report.error}, indent=1))
    else:
        _show(report.text())
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def lab(
    which: Annotated[Optional[str], typer.Argument(help="The lab to open.")] = None,
    name: Name = "default",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port on 127.0.0.1; the next free one is taken if it is in use.")] = 8888,
    browser: Annotated[Optional[bool], typer.Option("--browser/--no-browser", show_default="where there is a display", help="Open a browser.")] = None,
) -> None:
    """JupyterLab with the course, on loopback, on a working copy of your own."""
    from orchlab import jupyter

    os.environ["ORCHLAB_ENVIRONMENT"] = name
    raise typer.Exit(jupyter.serve(name, port, which, browser, _show))


@app.command()
def check(which: Which, exercise: Annotated[Optional[str], typer.Argument(help="One exercise; without it, all of them.")] = None, name: Name = "default") -> None:
    """Judge an exercise by what the cluster shows. Exit status 0 only if all asked for are passed."""
    from orchlab.course import commands

    answers = commands.check(which, exercise, name)
    for answer in answers:
        _show(answer)
    if not all(answer.passed for answer in answers):
        raise typer.Exit(1)


@app.command()
def hint(which: Which, exercise: Exercise) -> None:
    """The next hint. It costs nothing and is counted."""
    from orchlab.course import commands

    _show(commands.hint(which, exercise))


@app.command()
def solve(which: Which, exercise: Exercise, name: Name = "default") -> None:
    """Show the solution and carry it out."""
    from orchlab.course import commands

    _show(commands.solve(which, exercise, name))


@app.command()
def reset(
    which: Which, name: Name = "default",
    notebook: Annotated[bool, typer.Option("--notebook", help="Renew your copy of the notebook instead; the old one is kept with its date.")] = False,
) -> None:
    """Bring a lab back to its start, however broken it is."""
    from orchlab.course import commands

    _show(commands.reset_lab(which, name, notebook))
