"""The command line's part for engines: what is there, and the optional ones of an environment."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

out = Console(soft_wrap=True)
app = typer.Typer()
engines = typer.Typer(invoke_without_command=True)
app.add_typer(engines, name="engines")

Name = Annotated[str, typer.Option("--name", "-n", envvar="ORCHLAB_ENVIRONMENT", help="The environment.")]
Which = Annotated[str, typer.Argument(help="kueue or coscheduling.")]


@engines.callback()
def listing(
    context: typer.Context,
    prune: Annotated[bool, typer.Option("--prune", help="Remove versions that are no longer used and unfinished builds.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="With --prune: also remove the build cache.")] = False,
    fetch: Annotated[bool, typer.Option("--fetch", help="Get what is missing now: download or build.")] = False,
) -> None:
    """The engines: what is there, from where, with which checksum. Optional ones are added to an environment."""
    if context.invoked_subcommand:
        return
    from orchlab import engines as machinery
    from orchlab.kube.addons import MODULES

    if prune:
        from orchlab.slurm import images

        out.print(f"freed {machinery.prune(everything) / 2**20:.0f} MiB")
        if removed := images.prune():
            out.print(f"images removed from the Docker Engine: {', '.join(removed)}", highlight=False)
    if fetch:
        from orchlab.terminal import Steps

        with Steps("getting the engines") as steps:
            machinery.ensure(machinery.standard(), progress=steps.engine)
    table = Table(title="Engines", title_justify="left")
    for column in ("engine", "version", "state", "source", "MiB", "sha256"):
        table.add_column(column, justify="right" if column == "MiB" else "left", overflow="fold")
    states = machinery.listing()
    for state in states:
        table.add_row(state.name, state.version, state.state, state.source, f"{state.size / 2**20:.0f}" if state.size else "", state.sha256[:16])
    there = {state.name for state in states if state.state != "unused"}
    for name in sorted(MODULES.keys() - there):
        table.add_row(name, machinery.load(name).version, "optional", "", "", "")
    out.print(table)
    out.print(f"Optional, for an environment: orchlab engines add {' | '.join(sorted(MODULES))}", highlight=False)


@engines.command()
def add(which: Which, name: Name = "default") -> None:
    """Add an optional engine to an environment, or heal it. The first time it is built, which takes minutes. It stays until it is removed."""
    from orchlab.environment import Environment
    from orchlab.kube import addons
    from orchlab.terminal import Steps

    with Steps(f"adding {which}") as steps:
        env = addons.add(Environment.load(name), which, steps)
    memory = sum(state.memory for state in env.health(probe=False) if state.name == which)
    out.print(f"{which} {addons.versions(env)[which]} works in {name}: {memory / 2**20:.0f} MiB.", highlight=False)


@engines.command()
def remove(which: Which, name: Name = "default") -> None:
    """Remove an optional engine from an environment, with all its objects."""
    from orchlab.environment import Environment
    from orchlab.kube import addons
    from orchlab.terminal import Steps

    env = Environment.load(name)
    found = which in env.record.addons
    with Steps(f"removing {which}") as steps:
        addons.remove(env, which, steps)
    out.print(f"{which} is removed from {name}." if found else f"{which} is not in {name}.", highlight=False)
