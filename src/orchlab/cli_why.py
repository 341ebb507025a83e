"""The command line's `why`: cause, evidence and remedy for what waits, is refused or is out of service."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console

app = typer.Typer()
out = Console(soft_wrap=True)
MOST = 25  # answers in text; --json has all

Name = Annotated[str, typer.Option("--name", "-n", envvar="ORCHLAB_ENVIRONMENT", help="The environment.")]


@app.command()
def why(
    target: Annotated[Optional[str], typer.Argument(metavar="KIND/NAME", show_default="all that waits or is out of service",
                                                    help="job/7, job/7_3 (a task of an array), node/h100-0.")] = None,
    file: Annotated[Optional[Path], typer.Option("--file", "-f", exists=True, dir_okay=False,
                                                 help="A batch script: what sbatch would refuse. It is not submitted.")] = None,
    name: Name = "default",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: orchestrator, target, cause, evidence, remedy, known.")] = False,
) -> None:
    """Why a job waits or ended as it did, a node takes no jobs, or a script would be refused: cause, evidence, remedy.

    A job's number is a Slurm job's; slurm/job/7 says so outright. What is not known is answered with "I don't know" and what was seen.
    """
    from orchlab import why as machinery
    from orchlab.environment import Environment
    from orchlab.errors import BadInput

    if target and file:
        raise BadInput("-f", str(file), "and a target are two questions", "ask one of them")
    env = Environment.load(name)
    answers = [machinery.refused(env, file)] if file else machinery.ask(env, target or "")
    if as_json:
        print(json.dumps([answer.to_json() for answer in answers], indent=1))
        return
    if not answers:
        out.print("Nothing waits, and no node is out of service.")
    for answer in answers[:MOST]:
        out.print(f"{answer}\n", markup=False, highlight=False)
    if rest := answers[MOST:]:
        causes = Counter(answer.diagnosis.cause for answer in rest)
        out.print(f"and {len(rest)} more (--json has all):", highlight=False)
        for cause, count in causes.most_common(8):
            out.print(f"{count:>6}  {cause}", markup=False, highlight=False)
