"""The command line's part for GPUs: smi."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

app = typer.Typer()

Name = Annotated[str, typer.Option("--name", "-n", envvar="ORCHLAB_ENVIRONMENT", help="The environment.")]


@app.command()
def smi(
    target: Annotated[str, typer.Argument(help="A node, or a pod as NAME or NAMESPACE/NAME.")],
    name: Name = "default",
    namespace: Annotated[str, typer.Option("--namespace", help="Where a pod without a namespace is looked for.")] = "default",
    listing: Annotated[bool, typer.Option("--list", "-L", help="nvidia-smi -L: GPUs and MIG devices with their UUIDs.")] = False,
    lgip: Annotated[bool, typer.Option("--lgip", help="nvidia-smi mig -lgip: the MIG profiles and what is free of them.")] = False,
    lgi: Annotated[bool, typer.Option("--lgi", help="nvidia-smi mig -lgi: the GPU instances with their placements.")] = False,
    query: Annotated[Optional[str], typer.Option("--query-gpu", help="nvidia-smi --query-gpu=FIELDS --format=csv.")] = None,
) -> None:
    """What nvidia-smi would print on a node, or inside a pod, of the simulated GPUs."""
    from orchlab.environment import Environment
    from orchlab.gpu_operator import smi as printing

    print(printing.text(Environment.load(name), target, namespace, listing=listing, lgip=lgip, lgi=lgi, query=query), end="")
