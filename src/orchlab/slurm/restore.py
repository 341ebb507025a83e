"""Puts QoS levels and accounts back to what `orchlab up` made, whatever was changed with sacctmgr since."""

from __future__ import annotations

import shlex

from orchlab.environment import Environment
from orchlab.slurm import notebook
from orchlab.slurm.accounts import ACCOUNTS, DEFAULT_ACCOUNT, PREEMPT, QOS
from orchlab.slurm.layout import CLUSTER

# sacctmgr's columns that a lab may set. Those of TRES are cleared name by name, the others with -1.
QOS_FIELDS = ("Priority", "PreemptMode", "MaxTRESPerUser", "GrpTRES", "MaxTRES", "MinTRES", "GrpJobs", "GrpSubmit", "GrpWall",
              "MaxJobsPerUser", "MaxSubmitJobsPerUser",
              "MaxWall", "Flags", "UsageFactor", "GraceTime", "Preempt")
ACCOUNT_FIELDS = ("Fairshare", "GrpTRES", "GrpJobs", "GrpSubmit", "GrpWall", "MaxTRES", "MaxJobs", "MaxSubmit", "MaxWall")
DEFAULTS = {"Priority": "0", "PreemptMode": "cluster", "UsageFactor": "1.000000", "GraceTime": "00:00:00", "Fairshare": "1"}


def accounts(env: Environment) -> list[str]:
    """Returns one line for what had to be changed, or none."""
    commands = [*_qos(env), *_accounts(env)]
    for command in commands:
        notebook.slurm(env, f"sacctmgr -Q {command}")
    return [f"accounts and QoS: {len(commands)} settings put back"] if commands else []


def _qos(env: Environment) -> list[str]:
    found = _rows(env, "qos", QOS_FIELDS)
    wanted = {name: _settings(text) | ({"Preempt": PREEMPT[name]} if name in PREEMPT else {}) for name, text in QOS.items()}
    commands = [f"delete qos {name}" for name in found if name not in wanted]
    commands += [f"add qos {name}" for name in wanted if name not in found]
    return commands + [change for name, settings in wanted.items()
                       for change in _changes(f"qos {name}", found.get(name, {}), settings, QOS_FIELDS)]


def _accounts(env: Environment) -> list[str]:
    found = _rows(env, f"assoc cluster={CLUSTER} user=''", ACCOUNT_FIELDS, key="Account")
    found.pop("root", None)
    commands = [f"delete account {name}" for name in found if name not in ACCOUNTS]
    changes = [change for name, (_, text) in ACCOUNTS.items()
               for change in _changes(f"account {name}", found.get(name, {}), _settings(text), ACCOUNT_FIELDS)]
    return ([f"modify user set DefaultAccount={DEFAULT_ACCOUNT}"] if commands else []) + commands + changes


def _settings(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


def _rows(env: Environment, what: str, fields: tuple[str, ...], key: str = "Name") -> dict[str, dict[str, str]]:
    said = notebook.slurm(env, f"sacctmgr -nP show {what} format={key},{','.join(fields)}")
    rows = (line.split("|") for line in said.splitlines() if line.count("|") == len(fields))
    return {name: dict(zip(fields, values, strict=True)) for name, *values in rows}


def _changes(target: str, found: dict[str, str], wanted: dict[str, str], fields: tuple[str, ...]) -> list[str]:
    words = []
    for field in fields:
        have, want = found.get(field, ""), wanted.get(field, DEFAULTS.get(field, ""))
        if have.lower() == want.lower():
            continue
        if "TRES" in field:
            gone = {part.split("=")[0] for part in have.split(",") if part} - {part.split("=")[0] for part in want.split(",") if part}
            want = ",".join([*([want] if want else []), *(f"{name}=-1" for name in sorted(gone))])
        elif not want:
            want = '""' if field == "Preempt" else "-1"
        words.append(shlex.quote(f"{field}={want}"))
    return [f"modify {target.split()[0]} {target.split()[1]} set {' '.join(words)}"] if words else []
