"""The command line's part for breaking and mending: fault, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.table import Table

out = Console(soft_wrap=True)
app = typer.Typer()
faults = typer.Typer(no_args_is_help=True, help="Break something on purpose, and mend it.")
app.add_typer(faults, name="fault")

Name = Annotated[str, typer.Option("--name", "-n", envvar="ORCHLAB_ENVIRONMENT", help="The environment.")]


@faults.command("list")
def fault_list(name: Name = "default") -> None:
    """The kinds of faults, and which are held now."""
    from orchlab import faults as machinery
    from orchlab.environment import Environment

    held = machinery.held(Environment.load(name))
    table = Table(title=f"Faults of environment {name}", title_justify="left")
    for column in ("fault", "target", "held now", "what it shows"):
        table.add_column(column)
    for kind in machinery.KINDS.values():
        now = ", ".join(fault.target or "yes" for fault in held if fault.kind == kind.name)
        table.add_row(kind.name, kind.target, now or ("no" if kind.lasting else "happens once"), kind.shows)
    out.print(table)


@faults.command("cause")
def fault_cause(kind: Annotated[str, typer.Argument(help="A kind of `orchlab fault list`.")],
                target: Annotated[str, typer.Argument(help="What it is done to, where the kind needs one.")] = "", name: Name = "default") -> None:
    """Cause a fault."""
    from orchlab import faults as machinery
    from orchlab.environment import Environment

    fault = machinery.cause(Environment.load(name), kind, target)
    out.print(f"{fault}: {machinery.KINDS[kind].shows}.", markup=False, highlight=False)
    if machinery.KINDS[kind].lasting:
        out.print(f"Mend it: orchlab fault clear {fault}" + ("" if name == "default" else f" --name {name}"), markup=False, highlight=False)


@faults.command("clear")
def fault_clear(kind: Annotated[Optional[str], typer.Argument(help="A kind; without it, all faults.")] = None,
                target: Annotated[str, typer.Argument()] = "", name: Name = "default") -> None:
    """Clear faults."""
    from orchlab import faults as machinery
    from orchlab.environment import Environment

    cleared = machinery.clear(Environment.load(name), kind, target)
    out.print("cleared: " + ", ".join(map(str, cleared)) if cleared else "No such fault is held.", markup=False, highlight=False)


@app.command()
def report(name: Name = "default", folder: Annotated[Optional[Path], typer.Option(exists=True, file_okay=False, show_default="here", help="Where to write it.")] = None) -> None:
    """Write an archive for a bug report, without keys, tokens and names."""
    from orchlab import report as reports

    path = reports.write(name, folder)
    out.print(f"{path}\nLook into it before you send it: tar -tzf {path.name}", markup=False, highlight=False)
