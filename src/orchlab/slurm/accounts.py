"""The teams of the lab's cluster: accounts, the user, quality-of-service levels. Written for sacctmgr; repeating it changes nothing.

Without root every job runs as the one OS user who started the environment, so teams are accounts: sbatch -A team-a, -A team-b.
"""

from __future__ import annotations

import hashlib
import os
import subprocess

from orchlab.errors import EnvironmentBroken, TimeLimitReached
from orchlab.slurm.layout import CLUSTER, Layout

DEFAULT_ACCOUNT = "lab"
# Account: (description, further settings).
ACCOUNTS = {
    DEFAULT_ACCOUNT: ("default account", ""),
    "team-a": ("a team without a limit", "Fairshare=10"),
    "team-b": ("a team with at most 8 GPUs at once", "Fairshare=10 GrpTRES=gres/gpu=8"),
}
# `normal` is Slurm's own, with priority 0, and the default.
QOS = {
    "normal": "",
    "low": "Priority=0 PreemptMode=requeue",
    "high": "Priority=100",
    "capped": "Priority=0 MaxTRESPerUser=gres/gpu=4",
}
PREEMPT = {"high": "low"}


def sessions(user: str) -> list[str]:
    """Input for one `sacctmgr -i` after the other: a session doesn't see a QoS that it has made itself. What exists is left as it is,
    since a lab or the learner may have changed it."""
    levels = [f"add qos {name} {settings}" for name, settings in QOS.items() if name != "normal"]
    teams = [
        f'add account {account} Cluster={CLUSTER} Description="{description}" Organization={CLUSTER} {settings}'.rstrip()
        for account, (description, settings) in ACCOUNTS.items()
    ]
    member = (
        f"add user {user} Account={','.join(ACCOUNTS)} Cluster={CLUSTER} DefaultAccount={DEFAULT_ACCOUNT} AdminLevel=Administrator"
        f" QOS={','.join(QOS)} DefaultQOS=normal"
    )
    return [
        "\n".join([*lines, "quit"]) + "\n"
        for lines in ([*levels, *teams], [f"modify qos {name} set Preempt={other}" for name, other in PREEMPT.items()] + [member])
    ]


def digest(user: str) -> str:
    return hashlib.sha256("".join(sessions(user)).encode()).hexdigest()[:16]


def add_cluster(layout: Layout, environment: dict[str, str], seconds: float = 60) -> None:
    """Makes the cluster known to slurmdbd, without which slurmctld ends at its start. Raises EnvironmentBroken or TimeLimitReached."""
    done = _run(layout, ["-i", "-Q", "add", "cluster", CLUSTER], environment, seconds)
    shown = _run(layout, ["-n", "-P", "show", "cluster", "format=cluster"], environment, seconds)
    if CLUSTER not in shown.stdout.split():
        raise EnvironmentBroken(f"sacctmgr could not add the cluster: {(done.stderr + shown.stderr).strip()}", "orchlab logs slurmdbd")


def add_accounts(layout: Layout, user: str, environment: dict[str, str], seconds: float = 60) -> None:
    """Makes accounts, QoS and the user. After slurmctld's first start only: it is slurmctld that tells slurmdbd of gres/gpu, which the
    limits
    are about. Raises EnvironmentBroken with sacctmgr's words, or TimeLimitReached."""
    words = ""
    for text in sessions(user):
        done = _run(layout, ["-i"], environment, seconds, text)
        words += done.stderr + done.stdout
    shown = _run(
        layout, ["-n", "-P", "show", "assoc", f"user={user}", f"cluster={CLUSTER}", "format=account,qos,grptres"], environment, seconds
    )
    have = {line.split("|")[0]: set(line.split("|")[1].split(",")) for line in shown.stdout.splitlines() if "|" in line}
    missing = [account for account in ACCOUNTS if not set(QOS) <= have.get(account, set())]
    if missing:
        raise EnvironmentBroken(
            f"sacctmgr could not make the accounts {', '.join(missing)}:\n{words.strip()[-2000:]}", "orchlab logs slurmdbd"
        )


def _run(layout: Layout, arguments: list[str], environment: dict[str, str], seconds: float, text: str = "") -> subprocess.CompletedProcess:
    try:
        return subprocess.run(
            [layout.bin / "sacctmgr", *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=os.environ | environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeLimitReached(f"sacctmgr got no answer from slurmdbd within {seconds:g} s", "orchlab logs slurmdbd") from None
