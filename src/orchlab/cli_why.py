"""The command line's `why`: cause, evidence and remedy for what waits, is refused or is out of service."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console

app = typer.Typer()
out = Console(soft_wrap=True)
MOST = 25  # answers in text; --json has all

Name = Annotated[str, typer.Option("--name", envvar="ORCHLAB_ENVIRONMENT", help="The environment.")]


@app.command()
def why(
    target: Annotated[Optional[str], typer.Argument(metavar="KIND/NAME", show_default="all that waits or is out of service",
                                                    help="pod/train, job/train, deploy/web, rs/web-5d8; of Slurm: job/7, job/7_3 (a task of an"
                                                         " array), node/h100-0.")] = None,
    file: Annotated[Optional[Path], typer.Option("--file", "-f", exists=True, dir_okay=False,
                                                 help="A manifest: what the API server would refuse (server dry-run). A batch script: what sbatch"
                                                      " would refuse. Nothing is submitted.")] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", show_default="all",
                                           help="The Kubernetes namespace; with it, a target is Kubernetes'.")] = "",
    name: Name = "default",
    kubeconfig: Annotated[Optional[Path], typer.Option("--kubeconfig", help="A cluster of your own, which is only looked at.")] = None,
    context: Annotated[Optional[str], typer.Option("--context", help="A context of --kubeconfig, $KUBECONFIG or ~/.kube/config.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: orchestrator, target, cause, evidence, remedy, known.")] = False,
    as_html: Annotated[bool, typer.Option("--html", help="As an HTML fragment.")] = False,
) -> None:
    """Why a pod or job waits or ended as it did, a node takes none, or a file would be refused: cause, evidence, remedy.

    A job's number is a Slurm job's, a name a Kubernetes Job's; slurm/job/7 or kubernetes/job/7 says so outright. What is not known is
    answered with "I don't know" and what was seen.
    """
    from orchlab import why as machinery
    from orchlab.environment import Environment
    from orchlab.errors import BadInput

    if target and file:
        raise BadInput("-f", str(file), "and a target are two questions", "ask one of them")
    env, among = None, machinery.ORCHESTRATORS
    if kubeconfig or context:
        among = machinery.elsewhere(kubeconfig or _usual_kubeconfig(), context)
    else:
        env = Environment.load(name)
    if target and namespace and " -n " not in target:
        target = f"{target} -n {namespace}"
    answers = machinery.refused(env, file, namespace, among) if file else machinery.ask(env, target or "", namespace, among)
    if as_json:
        print(json.dumps([answer.to_json() for answer in answers], indent=1))
        return
    if as_html:
        print("\n".join(answer.to_html() for answer in answers))
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


def _usual_kubeconfig() -> Path:
    """The first of $KUBECONFIG, else kubectl's own."""
    return Path(os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or Path.home() / ".kube" / "config")
