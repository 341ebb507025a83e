"""What %%sbatch and %slurm do in a notebook. The course registers them; nothing here needs Jupyter."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

from orchlab.environment import Environment
from orchlab.errors import BadInput, EnvironmentBroken, TimeLimitReached
from orchlab.slurm import errors, existing, layout
from orchlab.slurm.packages import MORE_COMMANDS, NEEDED_COMMANDS

COMMANDS = frozenset({*NEEDED_COMMANDS, *MORE_COMMANDS, "orchlab-sleep"})
SECONDS = 60.0
MOST_OUTPUT = 200_000  # characters


def environment(env: Environment) -> dict[str, str]:
    """Variables for a command of this cluster. Raises EnvironmentBroken if the environment has no Slurm."""
    if env.record.slurm == "none" or "slurm" in env.record.left_out:
        raise EnvironmentBroken(f"environment {env.name!r} has no Slurm", f"orchlab up --name {env.name} --slurm local")
    variables = layout.of(env).variables()
    # A notebook may itself run inside a job: its own SLURM_* would make srun a step of that.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SACCT_"))}
    return kept | variables | {"PATH": f"{variables['PATH']}:{kept.get('PATH', '/usr/bin:/bin')}"}


def slurm(env: Environment, line: str, folder: Path | None = None, seconds: float = SECONDS, text: str | None = None) -> str:
    """`%slurm squeue -u $USER`: runs the real command and returns what it printed, its errors among it, as a terminal would show it.

    Raises BadInput for what is no command of Slurm's or needs a terminal, TimeLimitReached after `seconds`.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise BadInput("%slurm", line, str(error), "close the quotation marks") from None
    if not words:
        raise BadInput("%slurm", line, "has no command", "for example %slurm squeue")
    if words[0] not in COMMANDS:
        raise BadInput("%slurm", words[0], "is no command of Slurm's", f"use one of {', '.join(sorted(COMMANDS))}")
    if (
        words[0] in ("salloc", "sattach", "strigger")
        or "--pty" in words
        or any(word.startswith(("-i", "--iterate")) and words[0] in ("squeue", "sinfo") for word in words[1:])
    ):
        raise BadInput(
            "%slurm",
            line,
            "needs a terminal or never ends",
            'File > New > Terminal opens one; eval "$(orchlab env)" puts the commands there',
        )
    if words[0] == "sacctmgr":
        words[1:1] = ["-i"]  # nobody is there to answer its question
    return _run(env, words, folder, seconds, text)


def sbatch(env: Environment, line: str, cell: str, folder: Path | None = None, seconds: float = SECONDS) -> tuple[int, str]:
    """`%%sbatch OPTIONS` over a script: submits the cell as it is written, with #SBATCH lines and all; returns the job's id and sbatch's
    words.

    A missing #! line is added (#!/bin/bash), as the only change. Raises SlurmError with Slurm's text when it refuses.
    """
    try:
        options = shlex.split(line)
    except ValueError as error:
        raise BadInput("%%sbatch", line, str(error), "close the quotation marks") from None
    if "--wait" in options or "-W" in options:
        raise BadInput("%%sbatch", line, "would block the notebook", "leave --wait out and wait with lab.wait")
    if not cell.strip():
        raise BadInput("%%sbatch", cell, "holds no script", "write the batch script under it")
    script = cell if cell.startswith("#!") else f"#!/bin/bash\n{cell}"
    said = _run(env, ["sbatch", *options], folder, seconds, script, refuse=True)
    numbers = [word for word in said.split() if word.isdecimal()]
    if not numbers:
        raise errors.from_words(said.strip() or "sbatch said nothing")
    return int(numbers[-1]), said.strip()


def _run(env: Environment, words: list[str], folder: Path | None, seconds: float, text: str | None, refuse: bool = False) -> str:
    variables = environment(env)
    if env.record.slurm == "existing":
        existing.refuse_change(env, words)
    program = layout.of(env).bin / words[0]
    if not program.exists():
        raise EnvironmentBroken(f"this Slurm has no {words[0]}", "orchlab doctor")
    # Exit on a time limit leaves nothing behind: the command and what it started end with their process group.
    process = subprocess.Popen(
        [program, *words[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=variables,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(text or "", timeout=seconds)
    except subprocess.TimeoutExpired:
        raise TimeLimitReached(f"{words[0]} did not end within {seconds:g} s", "give it more time, or submit it with %%sbatch") from None
    finally:
        if process.poll() is None:
            _end(process)
    if refuse and process.returncode:
        raise errors.from_command(said, words[0])
    return said if len(said) <= MOST_OUTPUT else f"{said[:MOST_OUTPUT]}\n… {len(said) - MOST_OUTPUT} characters more"


def _end(process: subprocess.Popen) -> None:
    """SIGTERM first: srun then cancels its step, which a kill would leave running."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.communicate(timeout=5)
            return
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return
