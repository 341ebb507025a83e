"""The command line. Each command imports what it needs when it runs: `orchlab up` has to be quick."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.table import Table

from orchlab import __version__, cli_care, cli_course, cli_engines, cli_gpu, cli_why
from orchlab.errors import OrchlabError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
                  help="Learn to run GPU workloads on real schedulers. The GPU hardware is simulated; every answer says what is.")
app.registered_commands += [command for part in (cli_course, cli_why, cli_care, cli_gpu) for command in part.app.registered_commands]
app.registered_groups += cli_care.app.registered_groups + cli_engines.app.registered_groups
out, err = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)

Name = Annotated[str, typer.Option("--name", "-n", envvar="ORCHLAB_ENVIRONMENT", help="The environment.")]


def main() -> None:
    """Entry point: deliberate errors are printed with their remedy, never as a traceback."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        app()
    except OrchlabError as error:
        err.print(f"[bold red]error:[/] {_escape(str(error))}", highlight=False)
        sys.exit(error.code)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)
    except BrokenPipeError:  # orchlab logs … | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _moment(since: float) -> str:
    """Time of day for today, the date too for other days."""
    moment = datetime.fromtimestamp(since).astimezone()
    return moment.strftime("%H:%M:%S" if moment.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M")


def _versions(env) -> dict[str, str]:
    """Of the engines that were added to the environment."""
    if not env.record.addons:
        return {}
    from orchlab.kube import addons

    return {name: f"version {version}" for name, version in addons.versions(env).items()}


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


@app.command()
def up(
    name: Name = "default",
    kubernetes: Annotated[Optional[str], typer.Option(show_default="local", help="local, kind, none; existing comes later.")] = None,
    slurm: Annotated[Optional[str], typer.Option(show_default="local", help="local, docker, existing, none.")] = None,
    fleet: Annotated[Optional[Path], typer.Option(show_default="9 nodes, 42 GPUs", help="A YAML file that describes nodes and GPUs.")] = None,
    clock: Annotated[Optional[float], typer.Option(show_default="60", help="Simulated seconds per real second.")] = None,
    new_ports: Annotated[bool, typer.Option("--new-ports", help="Choose other ports than the remembered ones.")] = False,
    slurm_url: Annotated[Optional[str], typer.Option(
        "--slurm-url", show_default="the commands on PATH", metavar="URL",
        help="With --slurm existing: its slurmrestd, https://HOST:PORT or unix:/PATH; none: the commands.")] = None,
    slurm_token_file: Annotated[Optional[Path], typer.Option("--slurm-token-file", exists=True, dir_okay=False, show_default="$SLURM_JWT",
                                                             help="A file with a token for it.")] = None,
) -> None:
    """Bring an environment up, or heal it. Repeating it is harmless. Exit status 5: it is up, but without the Slurm that it should have."""
    from orchlab import environment
    from orchlab.fleet_nodes import with_real_kubelet
    from orchlab.terminal import Steps

    begun = time.monotonic()
    with Steps(f"bringing up {name}") as steps:
        env = environment.up(name, kubernetes, slurm, fleet, clock, progress=steps, new_ports=new_ports, slurm_url=slurm_url,
                             slurm_token=_token(slurm_token_file))
    nodes = env.fleet.nodes()
    gpus = sum(node.gpus for node in nodes)
    running = {"Kubernetes": ("kubernetes", "kubectl get nodes"), "Slurm": ("slurm", "sinfo")}
    running = {title: (getattr(env.record, kind), command) for title, (kind, command) in running.items()
               if getattr(env.record, kind) != "none" and kind not in env.record.left_out}
    words = " and ".join(f"{title} ({backend})" for title, (backend, _) in running.items())
    existing = running.get("Slurm", ("",))[0] == "existing"
    real = f", {len(with_real_kubelet(nodes))} of them with a real kubelet," if env.record.kubernetes == "kind" else ""
    machines = [f"{len(nodes)} {'' if real else 'simulated '}nodes{real} with {gpus} simulated GPUs"] if len(running) > existing else []
    if existing:
        from orchlab.slurm import existing as cluster

        if not cluster.chosen(env).commands:
            running["Slurm"] = ("existing", "orchlab why")
        machines.append(f"{cluster.describe(env)} of the existing cluster")
    out.print(f"{name} is up in {time.monotonic() - begun:.1f} s: {words}, {', '.join(machines)}.", highlight=False)
    again = "" if name == "default" else f" --name {name}"
    out.print(f'Use it here: eval "$(orchlab env{again})" && {" && ".join(command for _, command in running.values())}', highlight=False)
    for kind, why in env.record.left_out.items():
        err.print(f"[bold red]without {kind.capitalize()}:[/] {_escape(why)}", highlight=False)
    if env.record.left_out:
        raise typer.Exit(5)


def _token(file: Path | None) -> str:
    """A token for slurmrestd as `scontrol token` writes it, from a file or $SLURM_JWT: on the command line everybody could read it."""
    text = file.read_text() if file else os.environ.get("SLURM_JWT", "")
    return text.strip().removeprefix("SLURM_JWT=")


@app.command()
def down(name: Name = "default", purge: Annotated[bool, typer.Option("--purge", help="Remove its folder too: all objects are lost.")] = False) -> None:
    """Stop an environment. Its objects stay for the next `up`, unless --purge."""
    from orchlab import environment
    from orchlab.terminal import Steps

    with Steps(f"stopping {name}") as steps:
        found = environment.down(name, purge, progress=steps)
    out.print(f"{name} is down{' and removed' if purge else ''}." if found else f"There is no environment {name!r}; nothing to do.")


@app.command()
def status(name: Name = "default", as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """What runs, since when, memory and ports. Exit status 0 only if everything is healthy."""
    from orchlab.environment import Environment, names

    env = Environment.load(name)
    states = env.health()
    if as_json:
        print(json.dumps([vars(state) for state in states], indent=1))
    else:
        table = Table(title=f"Environment {name}: Kubernetes {env.record.kubernetes}, Slurm {env.record.slurm}, clock {env.record.clock:g} : 1", title_justify="left")
        for column in ("process", "state", "since", "MiB", "ports", "detail"):
            table.add_column(column, justify="right" if column == "MiB" else "left", no_wrap=column != "detail")
        added = _versions(env)
        for state in states:
            since = _moment(state.since) if state.since else ""
            word = "healthy" if state.healthy else state.state.lower() if state.state != "RUNNING" else "not ready"
            table.add_row(state.name, word, since, f"{state.memory / 2**20:.0f}" if state.memory else "", ", ".join(map(str, state.ports.values())),
                          _escape(state.detail or added.get(state.name, "")))
        out.print(table)
        out.print(f"Memory in all: {sum(state.memory for state in states) / 2**20:.0f} MiB. All ports are on 127.0.0.1. Other environments: {', '.join(n for n in names() if n != name) or 'none'}.")
    if not all(state.healthy for state in states):
        err.print(f"not healthy; `orchlab up --name {name}` heals it")
        raise typer.Exit(3)


@app.command()
def doctor(fix: Annotated[bool, typer.Option("--fix", help="Install what is missing and can be had: Slurm's packages.")] = False) -> None:
    """What this machine has and lacks, and what to do about it."""
    from orchlab import doctor as doctors

    if fix:
        from orchlab.terminal import Steps

        with Steps("mending") as steps:
            done = doctors.fix(steps)
        out.print("; ".join(done) or "Nothing to install.", highlight=False)
    findings = doctors.examine()
    table = Table(title="orchlab doctor", title_justify="left")
    for column in ("what", "state", "found", "what to do"):
        table.add_column(column)
    for finding in findings:
        table.add_row(finding.what, finding.state, _escape(finding.found), _escape(finding.remedy))
    out.print(table)
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(3)


@app.command()
def env(name: Name = "default") -> None:
    """Shell commands that point kubectl and the like at an environment: eval "$(orchlab env)"."""
    from orchlab.environment import Environment

    for key, value in Environment.load(name).variables().items():
        print(f"export {key}={shlex.quote(value)}" + (':"$PATH"' if key == "PATH" else ""))


@app.command()
def shell(what: Annotated[str, typer.Argument(help="slurm: on the login node, or here with Slurm's commands on PATH.")] = "slurm", name: Name = "default") -> None:
    """A shell in which Slurm's commands work."""
    from orchlab.environment import Environment
    from orchlab.errors import BadInput, EnvironmentBroken

    if what != "slurm":
        raise BadInput("what", what, "has no shell", "orchlab shell slurm")
    env = Environment.load(name)
    if env.record.slurm == "none" or "slurm" in env.record.left_out:
        raise EnvironmentBroken(f"environment {name!r} has no Slurm", f"orchlab up --name {name} --slurm local")
    if env.record.slurm == "existing":
        from orchlab.slurm import existing

        existing.require_commands(env)
    variables = env.variables()
    os.environ.update(variables | {"PATH": f"{variables['PATH']}:{os.environ.get('PATH', '')}"})
    words = next((backend.shell(env) for backend in env.backends() if hasattr(backend, "shell")), [os.environ.get("SHELL", "/bin/sh")])
    os.execvp(words[0], words)


@app.command()
def logs(
    process: Annotated[str, typer.Argument(help="A process or container of `orchlab status`, or supervisord.")],
    name: Name = "default",
    lines: Annotated[int, typer.Option("--lines", "-l", min=1, help="How many of the last lines.")] = 50,
) -> None:
    """The last lines that a process wrote."""
    from orchlab.environment import Environment
    from orchlab.errors import BadInput

    env = Environment.load(name)
    for backend in env.backends():
        if hasattr(backend, "log_tail") and (text := backend.log_tail(env, process, lines)) is not None:
            print(text.rstrip("\n"))
            return
    known = [*sorted(path.stem for path in env.supervisor.logs.glob("*.log"))]
    if process not in known:
        raise BadInput("process", process, f"has no log in environment {name!r}", f"one of: {', '.join(known) or 'none yet; orchlab up'}")
    print(env.supervisor.log_tail(process, lines))


@app.command()
def version() -> None:
    """The version of orchlab."""
    print(__version__)
