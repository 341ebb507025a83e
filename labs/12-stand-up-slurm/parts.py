"""Questions to Slurm's daemons, and its files beside what the daemons say."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import re
import socket
import time
from pathlib import Path

from orchlab.course import Lab, Text
from orchlab.slurm import daemons
from orchlab.slurm.client import token
from orchlab.slurm.layout import Layout

SECONDS = 10
# Lines of slurm.conf that are worth a look in this lab, in the order of the file.
SETTINGS = ("ClusterName", "AuthType", "AuthAltTypes", "ProctrackType", "TaskPlugin", "JobAcctGatherType", "ReturnToService",
            "SlurmdTimeout", "JobRequeue", "MinJobAge",
            "SlurmdParameters", "GresTypes", "SelectType", "SelectTypeParameters", "SchedulerType", "MaxArraySize", "PriorityType",
            "PreemptType", "PreemptMode",
            "AccountingStorageType", "AccountingStorageTRES", "AccountingStorageEnforce")


def credential(lab: Lab, node: str = "") -> Text:
    """What a munged makes of a credential of the cluster's: that of a node which has one of its own, else the cluster's itself."""
    said = daemons.run_on(lab.env, node, "unmunge", text=daemons.run_on(lab.env, "", "munge", "-n"))
    wanted = [line for line in said.splitlines() if line.startswith(("STATUS", "TTL", "CIPHER", "MAC", "UID", "unmunge:"))]
    return Text("\n".join(re.sub(r"^(UID:\s+).*", r"\1yours", line) for line in wanted))


def associations(lab: Lab) -> Text:
    """Accounts and users with share, group limit and QoS, as sacctmgr shows them; you are `you`."""
    said = lab.command("sacctmgr -P show assoc format=account,user,share,grptres,qos").splitlines()
    rows = [line.split("|") for line in said if not line.startswith("root|")]
    return Text("\n".join(f"{account:<8}  {'you' if user == _me() else user:<4}  {share:>5}  {limit:<10}  {qos}".rstrip()
                          for account, user, share, limit, qos in rows))


def ping(lab: Lab) -> Text:
    """scontrol ping, without this machine's name."""
    return Text(re.sub(r" at \S+ ", " at HOST ", lab.command("scontrol ping")))


def openapi(lab: Lab) -> Text:
    """What slurmrestd offers, by its own description: a JSON web token from scontrol, HTTP over its unix socket, or over its
    container's port."""
    contained = daemons.in_containers(lab.env)
    connection = http.client.HTTPConnection("localhost", lab.env.port("slurmrestd") if contained else None, timeout=SECONDS)
    try:
        if not contained:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(SECONDS)
            connection.sock.connect(str(Layout(lab.env.folder).rest_socket))
        connection.request("GET", "/openapi/v3", headers={
            "X-SLURM-USER-NAME": _me(), "X-SLURM-USER-TOKEN": token(lab.slurm.transports[0]), "Accept": "application/json"})
        paths = json.loads(connection.getresponse().read())["paths"]
    finally:
        connection.close()
    versions: dict[str, list[str]] = {}
    for path, methods in paths.items():
        if found := re.match(r"/(slurm|slurmdb)/(v[\d.]+)/", path):
            versions.setdefault(f"{found[1]} {found[2]}", []).extend(word for word in methods if word in ("get", "post", "put", "delete"))
    return Text("\n".join(f"{name:<17}  {len(methods):>2} operations, {methods.count('get')} of them only read" for name,
                          methods in sorted(versions.items())))


def settings(lab: Lab) -> Text:
    """slurm.conf beside what slurmctld runs with, setting by setting."""
    written = dict(re.findall(r"^(\w+)=(.*)$", lab.conf("slurm.conf").read_text(), re.MULTILINE))
    running = dict(re.findall(r"^(\w+) += (.*)$", lab.command("scontrol show config"), re.MULTILINE))
    lines = [f"{'':<26}{'slurm.conf':<42}scontrol show config"]
    for name in SETTINGS:
        lines.append(f"{name:<26}{written.get(name, '-'):<42}{running.get(name, '-').strip()}".rstrip())
    return Text("\n".join(lines))


def defaults(lab: Lab, *names: str) -> Text:
    """Lines of `scontrol show config`."""
    return Text("\n".join(line for line in lab.command("scontrol show config").splitlines() if line.split(" ")[0] in names))


def node(lab: Lab, name: str) -> Text:
    """The lines about a node in slurm.conf and gres.conf, without addresses and folders, and what slurmctld says of it."""
    def lines(file: str) -> list[str]:
        return [re.sub(r" (NodeHostname|NodeAddr|Port)=\S+", "", re.sub(r"=\S*/dev/", "=…/", line))
                for line in lab.conf(file).read_text().splitlines() if line.startswith(f"NodeName={name} ")]

    deadline = time.monotonic() + 10
    # A job that has just ended is still being cleared away for a moment.
    while "COMPLETING" in (said := lab.command(f"scontrol show node -d {name}")) and time.monotonic() < deadline:
        time.sleep(0.2)
    known = [match[0] for pattern in (r"CPUTot=\d+", r"Sockets=\d+", r"CoresPerSocket=\d+", r"RealMemory=\d+", r"AvailableFeatures=\S+",
                                      r"Weight=\d+", r"Gres=\S+", r"GresUsed=\S+",
                                      r"CfgTRES=\S+", r"AllocTRES=\S*", r"State=\S+") if (match := re.search(rf"(?<!\w){pattern}", said))]
    return Text("\n".join(["slurm.conf  " + "\n            ".join(lines("slurm.conf")),
                           "gres.conf   " + "\n            ".join(lines("gres.conf")), "scontrol    " + "\n            ".join(known)]))


def hardware(lab: Lab, name: str) -> Text:
    """What the node is said to have, and in which of it slurmd -C, which looks at the real machine, differs."""
    written = dict(re.findall(r"(\w+)=(\d+)",
                              next(line for line in lab.conf("slurm.conf").read_text().splitlines()
                                   if line.startswith(f"NodeName={name} "))))
    written["CPUs"] = str(int(written["Sockets"]) * int(written["CoresPerSocket"]) * int(written["ThreadsPerCore"]))
    real = dict(re.findall(r"(\w+)=(\d+)", daemons.run_on(lab.env, name, "slurmd", "-C")))
    other = [key for key in ("CPUs", "RealMemory") if real.get(key) != written.get(key)]
    said = f"slurm.conf: CPUs={written['CPUs']} RealMemory={written['RealMemory']}"
    return Text(f"{said}\nslurmd -C differs in: {', '.join(other) or 'nothing'}")


def _me() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def last(said: str) -> Text:
    """The last line of what a command wrote: its error, without the addresses in it."""
    return Text(re.sub(r"\s*\S*\d+\.\d+\.\d+\.\d+:\d+\S*|:\d{4,5}", "", said.strip().splitlines()[-1] if said.strip() else "(nothing)"))


def jobs(lab: Lab, *names: str) -> Text:
    """The jobs of these names: name, state, nodes."""
    return Text("\n".join(f"{job.name}: {job.state} on {', '.join(job.nodes)}" for job in lab.jobs() if job.name in names))


def cards(text: str) -> Text:
    """The text twin of a cluster map, without the numbers of jobs."""
    return Text(re.sub(r"\b(one|two) \d+", r"\1", text))


def still(file: Path, seconds: float = 0.8) -> bool:
    """Whether nobody writes to a file any more."""
    before = file.read_text()
    time.sleep(seconds)
    return file.read_text() == before
