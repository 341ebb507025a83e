"""Why a Slurm job waits, was refused or ended, and why a node takes no jobs: cause, evidence, remedy.

What is in none of the tables of orchlab.slurm.causes is answered with "I don't know".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from orchlab.diagnosis import Diagnosis, unknown
from orchlab.errors import BadInput
from orchlab.slurm import causes, feed
from orchlab.slurm.client import Client
from orchlab.slurm.errors import NotOffered, SlurmError
from orchlab.slurm.model import Job, Node, PastJob

JOB = re.compile(r"(\d+)(?:_(\d+)|\+(\d+))?")
BROKEN_STATES = {"DOWN", "UNKNOWN", "ERROR", "FAIL", "FAILING", "INVAL", "DRAIN", "DRAINED", "DRAINING"}
BROKEN_FLAGS = {"DRAIN", "FAIL", "NOT_RESPONDING", "INVALID_REG", "INVAL"}
NOT_TESTED = ("nothing was submitted; the test does not look at dependencies, nor at limits of partition, account and QoS that let a job"
              " wait")


def jobs(client: Client, which: int | str) -> list[tuple[str, Diagnosis]]:
    """Why a job waits or how it ended, with its label; for an array one answer for each state and reason, those that wait first.

    `which`: 7, a task 7_3, a part of a heterogeneous job 7+1. What slurmctld has forgotten is looked up in accounting. Raises BadInput,
    SlurmError if neither knows it.
    """
    match = JOB.fullmatch(str(which))
    if match is None:
        raise BadInput("job", which, "is no job id", "write 7, 7_3 for a task of an array, 7+1 for a part of a heterogeneous job")
    found = [job for job in client.jobs(match[1]) if _asked_for(job, match)]
    if not found:
        return [(past.label, diagnosis) for past, diagnosis in _forgotten(client, match)]
    groups: dict[tuple[str, str], list[Job]] = {}
    for one in sorted(found, key=lambda job: (job.state != "PENDING", job.state != "RUNNING", job.id)):
        groups.setdefault((one.state, one.reason), []).append(one)
    once = Once(client)
    answers = []
    for alike in groups.values():
        more = [f"the same holds for {', '.join(other.label for other in alike[1:6])}" + (" …" if len(alike) > 6 else "")]
        answers.append((alike[0].label, _explain(once, alike[0], more if len(alike) > 1 else [])))
    return answers


def job(client: Client, which: int | str) -> Diagnosis:
    """The first answer of `jobs`."""
    return jobs(client, which)[0][1]


def everything(client: Client, user: str = "") -> list[tuple[str, Diagnosis]]:
    """All that waits, in the queue's order (but the jobs of `user` first), then all nodes that are out of service: ("job/7", …),
    ("node/a100-0", …)."""
    once = Once(client)
    waiting = sorted((job for job in once.queue() if job.state == "PENDING"), key=lambda job: user not in ("", job.user))
    return [*((f"job/{one.label}", _explain(once, one)) for one in waiting),
            *((f"node/{node.name}", _node(once, node)) for node in once.nodes() if broken(node))]


def broken(node: Node) -> bool:
    """Whether a node is out of service."""
    return node.state in BROKEN_STATES or bool(BROKEN_FLAGS & set(node.flags))


def refusal(error: SlurmError | str) -> Diagnosis:
    """Why a submission was refused, from Slurm's error."""
    text = error.text if isinstance(error, SlurmError) else str(error).strip().splitlines()[-1].rpartition("failed: ")[2]
    seen = [text, *(error.details.splitlines() if isinstance(error, SlurmError) else [])]
    if text in causes.REFUSED:
        cause, remedy = causes.REFUSED[text]
        return Diagnosis(cause, seen, remedy)
    if match := causes.OPTION.fullmatch(text):
        return Diagnosis(f"sbatch cannot read {match[1] or match[2]}.", seen, "man sbatch has the options and their forms")
    return unknown(seen, "the log of slurmctld may say more")


def script(client: Client, text: str) -> Diagnosis:
    """What sbatch would refuse in a batch script: `sbatch --test-only` of the real Slurm. Submits nothing. Raises NotOffered where there
    are no commands."""
    try:
        said = client.test(text)
    except SlurmError as error:
        found = refusal(error)
        if error.text != "Requested node configuration is not available":
            return found
        more = "the test refuses also what exceeds a limit of the partition; sbatch lets that wait, unless EnforcePartLimits says otherwise"
        return Diagnosis(found.cause, [*found.evidence, more], found.remedy, found.known)
    return Diagnosis("sbatch --test-only finds nothing to refuse.", [*said.splitlines(), NOT_TESTED],
                     "submit it; if it waits: orchlab why job/ID")


def node(client: Client, name: str) -> Diagnosis:
    """Why a node takes no (more) jobs. Raises SlurmError for a node that there is not."""
    once = Once(client)
    found = next((node for node in once.nodes() if node.name == name), None)
    if found is None:
        raise SlurmError("Invalid node name specified", f"slurmctld knows no node {name}", "sinfo -N lists them")
    return _node(once, found)


class Once:
    """A client that asks for each list once: for answers about many jobs at one moment."""

    def __init__(self, client: Client) -> None:
        self._client, self._known = client, {}

    def __getattr__(self, name: str) -> Callable[[], Any]:
        def ask() -> Any:
            if name not in self._known:
                self._known[name] = getattr(self._client, name)()
            return self._known[name]

        return ask


# -- nodes


def _node(client: Once, found: Node) -> Diagnosis:
    name = found.name
    seen = [f"node {name} is {'+'.join([found.state, *found.flags])}", *([f"slurmctld notes: {found.reason}"] if found.reason else [])]
    bring_back = f"mend that, then: scontrol update node={name} state=resume"
    if {"INVAL", "INVALID_REG"} & set(found.flags) or "gres/" in found.reason:
        return Diagnosis(
            "slurmd reported other hardware than slurm.conf says.",
            seen,
            f"compare slurm.conf and gres.conf with slurmd -C and slurmd -G on the node; {bring_back}",
        )
    if "Duplicate jobid" in found.reason:
        return Diagnosis(
            "slurmctld started a job there that was running already: it had lost its last seconds of state (it writes it down every five"
            " seconds) in a crash.",
            seen,
            f"scontrol update node={name} state=resume; squeue -t PD shows the held job: scontrol release ID runs it once more",
        )
    if "NOT_RESPONDING" in found.flags or "not responding" in found.reason.lower():
        return Diagnosis(
            "Its slurmd does not answer slurmctld.",
            seen,
            f"see whether slurmd runs there and munge accepts its messages; its log says; if it stays DOWN: scontrol update node={name}"
            " state=resume",
        )
    if "DRAIN" in found.flags or found.state.startswith("DRAIN"):
        return Diagnosis("It was drained: what runs may end, nothing new starts.", seen, bring_back)
    if found.state == "DOWN":
        return (
            Diagnosis("It is down.", seen, bring_back)
            if found.reason
            else unknown(seen, "the logs of its slurmd and of slurmctld say more")
        )
    if found.state == "ALLOCATED":
        return Diagnosis("All its CPUs are in use.", [*seen, f"{found.cpus_allocated} of {found.cpus} CPUs"], "wait, or use another node")
    if {"MAINT", "RESERVED"} & set(found.flags):
        kept = [f"reservation {one.name} keeps it" for one in client.reservations() if name in one.nodes]
        return Diagnosis("It is reserved: only the jobs of a reservation start there.", [*seen, *kept], "scontrol show reservation")
    if found.state in ("IDLE", "MIXED"):
        return Diagnosis("It takes jobs; nothing is wrong.", [*seen, _free(found, _used(client))])
    return unknown(seen, f"scontrol show node {name}")


# -- jobs


def _asked_for(job: Job, match: re.Match) -> bool:
    if match[2] is not None:
        return job.array_task == int(match[2]) or int(match[2]) in feed.tasks(job.array_tasks)
    return match[3] is None or job.het_offset == int(match[3])


def _forgotten(client: Client, match: re.Match) -> list[tuple[Job, Diagnosis]]:
    nobody = SlurmError("Invalid job id specified", "",
                        f"neither slurmctld nor accounting knows job {match[0]}; squeue and sacct -X list jobs")
    try:
        known = client.accounting([match[1]])
    except (NotOffered, SlurmError):
        raise nobody from None
    found = [past for past in known if match[2] is None or past.array_task == int(match[2])]
    if not found:
        raise nobody
    answers = []
    for past in found[:20]:
        job = _remembered(past)
        seen = [f"job {job.label} ({job.name}) ended as {job.state}; slurmctld has forgotten it, this is from accounting"]
        answers.append((job, _ended(job, seen, past.exit_code is not None)))
    return answers


def _remembered(past: PastJob) -> Job:
    return Job(past.id, past.name, past.user, past.account, past.partition, past.qos, past.state, array_id=past.array_id,
               array_task=past.array_task, nodes=past.nodes, exit_code=past.exit_code or 0, exit_signal=past.exit_signal)


def _explain(client: Once, found: Job, more: list[str] | None = None) -> Diagnosis:
    seen = [f"job {found.label} ({found.name}) is {found.state}" + (f", reason {found.reason}" if found.reason else ""), *(more or [])]
    if found.state == "RUNNING":
        return Diagnosis("It runs; nothing is wrong.", [*seen, f"on {', '.join(found.nodes)}"])
    if found.state == "PENDING":
        return _waiting(client, found, seen)
    if found.state == "SUSPENDED":
        return Diagnosis("It is suspended: by scontrol, or by a job that has taken its place for a time.",
                         [*seen, f"on {', '.join(found.nodes)}"],
                         f"wait; what suspended it lets it go on: scontrol resume {found.id}, or the end of the other job")
    return _ended(found, seen)


def _waiting(client: Once, found: Job, seen: list[str]) -> Diagnosis:
    if found.reason in causes.COMPUTED:
        return (_resources if found.reason == "Resources" else _priority)(client, found, seen)
    if found.reason in causes.WAITING:
        cause, remedy = _worded(found)
        return Diagnosis(cause, [*seen, *_facts(client, found)], remedy)
    if limit := causes.limit(found.reason, found.account, found.qos):
        return _limit(client, found, limit, seen)
    if not found.reason:
        return unknown([*seen, "slurmctld has not looked at it yet"], "ask again in a few seconds")
    return unknown(seen, "squeue(1) lists the reason codes; scontrol show job may say more")


def _worded(found: Job) -> tuple[str, str]:
    """Cause and remedy of a reason, with the job's own words in them."""
    values = {
        "id": found.array_id or found.id,
        "dependency": found.dependency or "see scontrol show job",
        "partition": found.partition,
        "user": found.user,
        "reservation": found.reservation,
    }
    cause, remedy = causes.WAITING[found.reason]
    return cause.format(**values), remedy.format(**values)


def _resources(client: Once, found: Job, seen: list[str]) -> Diagnosis:
    kinds = [kind for kind in feed.wanted(found) if kind.startswith("gpu")]
    mine = [node for node in _nodes_of(client, found) if not kinds or any(kind in key for kind in kinds for key in node.gres)]
    used = _used(client)
    evidence = [
        *seen,
        f"it asks for {_asked(found)} on {found.node_count or 1} node(s) in {found.partition}",
        *(f"{node.name}: {_free(node, used)}{_unfit(node)}" for node in mine[:12]),
        *([f"and {len(mine) - 12} more nodes like these"] if len(mine) > 12 else []),
    ]
    return Diagnosis(
        "What it asks for is in use or out of service; it starts when enough becomes free.",
        evidence,
        "wait; squeue --start shows when Slurm expects it to start; ask for less, or for fewer on more nodes",
    )


def _nodes_of(client: Once, found: Job) -> list[Node]:
    partition = next((part for part in client.partitions() if part.name == found.partition), None)
    return [node for node in client.nodes() if partition is None or node.name in partition.nodes]


def _used(client: Once) -> Counter:
    """GRES held by (node, kind)."""
    used: Counter = Counter()
    for held in (held for job in client.jobs() for held in job.held):
        used[(held.node, f"{held.name}:{held.type}" if held.type else held.name)] += held.count
    return used


def _asked(found: Job) -> str:
    parts = [f"{found.cpus} CPUs" if found.cpus != 1 else "1 CPU", *([f"{found.tres['mem']} MiB of memory"] if "mem" in found.tres else [])]
    return ", ".join([*parts, *(f"{count} {kind}" for kind, count in feed.wanted(found).items())])


def _free(node: Node, used: Counter) -> str:
    gpus = [f"{count - used[(node.name, kind)]} of {count} {kind} free" for kind, count in node.gres.items() if kind.startswith("gpu")]
    return ", ".join([f"{node.cpus - node.cpus_allocated} of {node.cpus} CPUs free", *gpus])


def _unfit(node: Node) -> str:
    out = [flag for flag in (node.state, *node.flags) if flag in ("DOWN", "DRAIN", "NOT_RESPONDING", "INVALID_REG", "RESERVED", "MAINT")]
    return f" ({', '.join(out)})" if out else ""


def _priority(client: Once, found: Job, seen: list[str]) -> Diagnosis:
    # Those that a limit or a condition keeps back are in nobody's way.
    ahead = [
        job
        for job in client.queue()
        if job.reason in ("Resources", "Priority")
        and (job.priority or 0, -job.id) > (found.priority or 0, -found.id)
        and job.partition == found.partition
    ]
    evidence = [
        *seen,
        f"its priority is {found.priority}",
        *(f"ahead of it: {job.label} ({job.name}) with {job.priority}" for job in ahead[:5]),
    ]
    try:
        parts = next((part for part in client.priorities() if part.job.split("_")[0] == str(found.array_id or found.id)), None)
    except NotOffered:
        parts = None
    if parts:
        evidence.append(
            f"made of age {parts.age:g}, fairshare {parts.fairshare:g}, job size {parts.job_size:g}, partition {parts.partition:g}, QoS"
            f" {parts.qos:g}"
        )
    return Diagnosis(
        "Jobs of higher priority wait in its partition or reservation; only backfill may start it before them.",
        evidence,
        "wait; a short time limit (-t) lets backfill start it in a gap; sprio shows what priorities are made of",
    )


def _facts(client: Once, found: Job) -> list[str]:
    """What the cluster says to some of the reasons."""
    if found.reason == "ReqNodeNotAvail":
        out = [node for node in _nodes_of(client, found) if broken(node) or {"MAINT", "RESERVED"} & set(node.flags)]
        return [f"in {found.partition}: {node.name} is {'+'.join([node.state, *node.flags])}" + (f", {node.reason}" if node.reason else "")
                for node in out[:8]]
    if found.reason not in ("PartitionTimeLimit", "PartitionNodeLimit"):
        return []
    part = next((part for part in client.partitions() if part.name == found.partition), None)
    if part is None:
        return []
    if found.reason == "PartitionTimeLimit":
        return [f"it asks for {_span(found.limit)}, partition {part.name} allows {_span(part.limit)}"]
    return [
        f"it asks for {found.node_count} nodes, partition {part.name} has {len(part.nodes)} and allows {part.max_nodes or 'all of them'}"
        " per job"
    ]


def _span(seconds: int | None) -> str:
    return "unlimited time" if seconds is None else f"{seconds // 60} minutes"


def _limit(client: Once, found: Job, limit: tuple[str, str, str], seen: list[str]) -> Diagnosis:
    owner, cause, remedy = limit
    by_account = found.reason.startswith("Assoc")
    others = [
        job
        for job in client.jobs()
        if job.state == "RUNNING" and (job.account == found.account if by_account else job.qos == found.qos)
    ]
    evidence = [
        *seen,
        f"it asks for {_asked(found)}",
        f"running under {owner}: {len(others)} jobs with {sum(job.gpus for job in others)} GPUs",
    ]
    if not by_account:
        level = next((level for level in client.qos() if level.name == found.qos), None)
        if level and (level.max_tres_per_user or level.group_tres):
            evidence.append(f"{owner}: at most {level.max_tres_per_user or '-'} per user, {level.group_tres or '-'} in all")
    return Diagnosis(cause, evidence, remedy)


def _ended(found: Job, seen: list[str], exit_known: bool = True) -> Diagnosis:
    if found.state == "FAILED" and found.reason in causes.WAITING:
        return Diagnosis(f"It was refused when it was submitted: {_worded(found)[0]}", seen, "submit it again with what can be had")
    status = f"exit status {found.exit_code}" + (f", signal {found.exit_signal}" if found.exit_signal else "")
    evidence = [*seen, status if exit_known else "slurmrestd gives no exit status"]
    if found.state == "COMPLETED":
        return Diagnosis("It ended with exit status 0; nothing is wrong.", seen)
    if found.state in causes.ENDED:
        cause, remedy = causes.ENDED[found.state]
        return Diagnosis(cause, evidence, remedy)
    if found.state == "FAILED" and (found.exit_code or found.exit_signal):
        return Diagnosis(
            "Its script ended with an error of its own.", evidence, f"its output says more: {found.output or 'slurm-ID.out in its folder'}"
        )
    if found.state == "CANCELLED":
        return Diagnosis("Somebody cancelled it.", evidence)
    return unknown(evidence, f"scontrol show job {found.id}; the logs of slurmctld and slurmd")
