"""Slurm's part of a reset: no jobs, nodes in service, configuration as rendered, an empty work folder."""

from __future__ import annotations

import re
import shutil
import time

from orchlab.course import slurm_side
from orchlab.course.folder import LabFolder
from orchlab.environment import Environment
from orchlab.errors import OrchlabError, TimeLimitReached
from orchlab.slurm import daemons, existing, notebook, restore
from orchlab.slurm.client import Client

SECONDS = 60
EVERY = 0.2
OUT_OF_SERVICE = {"DRAIN", "FAIL", "NOT_RESPONDING", "INVALID_REG", "INVAL"}


def has_slurm(env: Environment) -> bool:
    return env.record.slurm != "none" and "slurm" not in env.record.left_out


def before_up(env: Environment) -> None:
    """What `up` would wait for in vain. Does what it can: if slurmctld does not answer, `up` brings it back first."""
    if env.record.slurm == "existing":
        return
    try:
        _cancel(env)
        _resume(env)
    except OrchlabError:
        pass


def cluster(env: Environment, lab: LabFolder, seconds: float = SECONDS) -> list[str]:
    """Brings the Slurm of a healthy environment back to a lab's start; returns what was done. All jobs go, whoever submitted them: there is
    one user. Accounting keeps its history. Raises TimeLimitReached when jobs or nodes do not follow."""
    if env.record.slurm == "existing":
        return _existing(env, lab)
    deadline = time.monotonic() + seconds
    done = []
    with Client.of(env) as client:
        if count := len(client.queue()):
            _cancel(env)
            done.append(f"jobs: {count} cancelled")
        if _gres_types_differ(env):
            readers = [name for name in daemons.names(env) if name == "slurmctld" or name.startswith("slurmd.")]
            daemons.restart(env, *readers, seconds=seconds)
            done.append("slurmctld, slurmd: restarted, since GresTypes is read at their start only")
        notebook.slurm(env, "scontrol reconfigure")
        for reservation in client.reservations():
            notebook.slurm(env, f"scontrol delete reservation={reservation.name}")
            done.append(f"reservation {reservation.name}: removed")
        done += restore.accounts(env)
        while True:
            busy = [job.label for job in client.jobs() if not job.ended_for_good or job.state == "COMPLETING"]
            unfit = [node.name for node in client.nodes() if node.state != "IDLE" or OUT_OF_SERVICE & set(node.flags)]
            if not busy and not unfit:
                break
            if time.monotonic() > deadline:
                left = f"jobs {', '.join(busy) or 'none'}; nodes not idle: {', '.join(unfit) or 'none'}"
                raise TimeLimitReached(f"Slurm is not as at the start after {seconds:g} s: {left}",
                                       f"orchlab down --purge --name {env.name}, then orchlab up --name {env.name}")
            if busy:
                _cancel(env)
            _resume(env)
            time.sleep(EVERY)
    folder = env.folder / "work" / lab.namespace
    shutil.rmtree(folder, ignore_errors=True)
    slurm_side.work_folder(env, lab)
    (folder / ".first-job").write_text(re.search(r"NEXT_JOB_ID\s*=\s*(\d+)", notebook.slurm(env, "scontrol show config"))[1])
    done.append(f"Slurm: {len(env.fleet.nodes())} nodes idle, no jobs")
    return done


def _existing(env: Environment, lab: LabFolder) -> list[str]:
    """On somebody else's cluster: only the jobs that were submitted here, and the lab's own folder."""
    count = existing.cancel(env)
    folder = env.folder / "work" / lab.namespace
    shutil.rmtree(folder, ignore_errors=True)
    slurm_side.work_folder(env, lab)
    (folder / ".first-job").write_text(str(max(existing.submitted(env.folder), default=0) + 1))
    return [f"Slurm: {count} jobs of the lab cancelled; the cluster is left as it is"]


def _cancel(env: Environment) -> None:
    said = notebook.slurm(env, "squeue -h -a -o %A", seconds=10)
    if jobs := sorted({word for word in said.split() if word.isdecimal()}, key=int):
        notebook.slurm(env, f"scancel {' '.join(jobs)}", seconds=20)


def _resume(env: Environment) -> None:
    """Back into service: drained nodes by hand, and down ones as well, so that nobody waits for their next registration."""
    said = notebook.slurm(env, "sinfo -h -a -N -o '%N %T'", seconds=10)
    out = {line.split()[0] for line in said.splitlines() if re.search(r" (drain|down|fail|inval)", line)}
    for name in sorted(out):
        notebook.slurm(env, f"scontrol update node={name} state=resume", seconds=10)


def _gres_types_differ(env: Environment) -> bool:
    def of(text: str) -> str:
        found = re.search(r"^GresTypes\s*=\s*(\S+)", text, re.MULTILINE)
        return found[1] if found else ""

    from orchlab.slurm import layout

    return of(notebook.slurm(env, "scontrol show config")) != of(layout.of(env).conf.read_text())
