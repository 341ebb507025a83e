"""The part of the proof that is about Slurm: what a reset has to give back, and the worst that a learner can do to it."""

from __future__ import annotations

import os
import signal

from orchlab.environment import Environment
from orchlab.slurm import notebook, restore
from orchlab.slurm.client import Client


def snapshot(env: Environment, namespace: str) -> dict[str, object]:
    """Nodes, partitions, reservations, configuration, accounts; no jobs; an empty work folder."""
    with Client.of(env) as client:
        seen: dict[str, object] = {f"Slurm node {node.name}": (node.state, node.flags, dict(node.gres), node.features)
                                   for node in client.nodes()}
        seen |= {f"Slurm partition {part.name}": (part.state, part.nodes, part.limit, part.max_nodes) for part in client.partitions()}
        seen["Slurm reservations"] = [reservation.name for reservation in client.reservations()]
        seen["Slurm queue"] = [job.label for job in client.queue()]
    seen["Slurm configuration"] = [line for line in notebook.slurm(env, "scontrol show config").splitlines()
                                   if "=" in line and not line.startswith(("NEXT_JOB_ID", "BOOT_TIME", "Configuration data"))]
    seen["Slurm QoS"] = restore._rows(env, "qos", restore.QOS_FIELDS)
    seen["Slurm accounts"] = notebook.slurm(env, "sacctmgr -nP show assoc")
    seen["files of the lab's jobs"] = sorted(path.name for path in (env.folder / "work" / namespace).glob("*"))
    seen["faults"] = env.record.faults
    return seen


def make_a_mess(env: Environment) -> None:
    """Jobs that catch every signal, drained and down nodes, a changed configuration, changed accounts, a dead node, a killed
    controller."""
    def do(line: str, text: str | None = None) -> None:
        notebook.slurm(env, line, text=text)

    names = [node.name for node in env.fleet.nodes()]
    conf = env.folder / "slurm" / "etc" / "slurm.conf"
    for _ in range(3):
        do("sbatch -o /dev/null --requeue", "#!/bin/bash\ntrap '' TERM USR1\nwhile true; do sleep 1; done\n")
    do("sbatch -o /dev/null --array=0-99 --hold", "#!/bin/bash\ntrue\n")
    do(f"scontrol update node={names[0]} state=drain reason=mess")
    do(f"scontrol update node={names[1]} state=down reason=mess")
    do("scontrol update partition=all state=down maxtime=1")
    do("scontrol create reservation reservationname=mess starttime=now duration=60 nodes=ALL user=root flags=ignore_jobs")
    do("sacctmgr modify qos capped set MaxTRESPerUser=gres/gpu=1 GrpJobs=3")
    do("sacctmgr add qos mess")
    do("sacctmgr modify account team-b set GrpTRES=gres/gpu=1 GrpJobs=1")
    conf.write_text("".join(line for line in conf.read_text().splitlines(keepends=True)
                            if not line.startswith("GresTypes")).replace("SlurmdTimeout=30", "SlurmdTimeout=60"))
    for state in env.health(probe=False):
        if state.name in ("slurmctld", f"slurmd.{names[2]}") and state.pid:
            os.kill(state.pid, signal.SIGKILL)
