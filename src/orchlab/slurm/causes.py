"""What Slurm's reason codes, refusals and final states mean, and what to do: the tables behind orchlab.slurm.why.

Reasons follow squeue(1) and slurmctld's own list; refusals are slurm_errno's texts.
"""

from __future__ import annotations

import re

# Reason: (cause, remedy). {…} are a job's fields.
WAITING = {
    "Dependency": ("It waits for other jobs: {dependency}.", "wait, or take the condition away: scontrol update job={id} dependency="),
    "DependencyNeverSatisfied": (
        "The job that it depends on ended in a way that never fulfils the condition (afterok wants exit status 0).",
        "scancel {id} and submit it again, or sbatch --kill-on-invalid-dep=yes next time; afterany runs whatever the outcome",
    ),
    "JobArrayTaskLimit": (
        "As many tasks of the array run as its own limit allows (the number behind %).",
        "wait, or raise it: scontrol update job={id} arraytaskthrottle=8",
    ),
    "JobHeldUser": ("Its owner holds it.", "scontrol release {id}"),
    "JobHeldAdmin": (
        "An administrator holds it, or it was held after failing to start.",
        "scontrol show job {id} may say more; an administrator can let it go: scontrol release {id}",
    ),
    "JobHoldMaxRequeue": (
        "It was requeued so often (MAX_BATCH_REQUEUE) that Slurm holds it now.",
        "find out why it does not start: the log of slurmctld and of its nodes; then scontrol release {id}",
    ),
    "BeginTime": (
        "It is not to start before a certain time: sbatch --begin, or the pause after a requeue.",
        "wait; scontrol show job {id} shows EligibleTime",
    ),
    "PartitionTimeLimit": (
        "It asks for more time than its partition allows.",
        "ask for less (-t) or use another partition: scontrol update job={id} timelimit=…",
    ),
    "PartitionNodeLimit": (
        "It asks for more nodes than its partition allows one job, or than the partition has.",
        "ask for fewer nodes (-N) or use another partition",
    ),
    "PartitionDown": (
        "Its partition starts no jobs.",
        "use another partition; an administrator can open it: scontrol update partition={partition} state=up",
    ),
    "PartitionInactive": (
        "Its partition neither takes nor starts jobs.",
        "use another partition; an administrator can open it: scontrol update partition={partition} state=up",
    ),
    "PartitionConfig": (
        "What it asks for does not agree with its partition's settings.",
        "compare it with scontrol show partition {partition}",
    ),
    "Licenses": ("It waits for a license that other jobs hold.", "wait; scontrol show licenses shows which are free"),
    "MaxMemPerLimit": (
        "It asks for more memory per node or CPU than MaxMemPerNode or MaxMemPerCPU allows.",
        "ask for less (--mem); scontrol show partition {partition} and scontrol show config show the limits",
    ),
    "Reservation": (
        "It waits for its reservation: that has not begun, or its nodes are taken by other jobs of the reservation.",
        "scontrol show reservation {reservation}",
    ),
    "ReqNodeNotAvail": (
        "A node that it needs is down, drained or reserved.",
        "wait, or need other nodes; sinfo -R names such nodes and why; scontrol update node=NAME state=resume brings one back",
    ),
    "BadConstraints": (
        "No node can ever fulfil what it asks for.",
        "compare it with sinfo -o '%N %G %f'; then scancel {id} and submit it again",
    ),
    "JobLaunchFailure": ("slurmd could not start it.", "the log of that slurmd says why"),
    "InvalidAccount": ("Its account is not valid (any more).", "sacctmgr show assoc user={user}; scontrol update job={id} account=…"),
    "InvalidQOS": (
        "Its QoS is not valid (any more).",
        "sacctmgr show assoc user={user} format=account,qos; scontrol update job={id} qos=…",
    ),
    "AccountNotAllowed": (
        "Its partition does not take jobs of its account (AllowAccounts, DenyAccounts).",
        "scontrol show partition {partition}; use another account or partition",
    ),
    "QOSNotAllowed": (
        "Its association or its partition does not take its QoS.",
        "sacctmgr show assoc user={user} format=account,qos; scontrol show partition {partition}",
    ),
    "Cleaning": ("It was requeued and the last of its earlier run is being removed.", "wait a few seconds"),
}
# What why.py explains with numbers from the cluster.
COMPUTED = ("Resources", "Priority")
# Limits of associations and QoS: AssocGrpGRES, QOSMaxJobsPerUserLimit, MaxGRESPerAccount (QoS limits too, without saying so) …
LIMIT = re.compile(r"(?P<who>Assoc|QOS)(?P<which>Grp|Max|Min)\w+|Max\w+Per(Account|User)")

# Submission error: (cause, remedy).
REFUSED = {
    "Invalid generic resource (gres) specification": (
        "The GRES is written wrongly, not in GresTypes, or gpu and shard are asked for together.",
        "write gpu:TYPE:COUNT; sinfo -o %G shows what there is",
    ),
    "Requested node configuration is not available": (
        "No nodes of the partition can ever give that: a GPU type that there is not, or more of something than there is.",
        "compare with sinfo -o '%P %N %c %m %G'; ask for less per node, or for more nodes",
    ),
    "Invalid job array specification": (
        "The array's indices cannot be used: MaxArraySize is one above the largest index, and one array may not have more tasks.",
        "scontrol show config | grep MaxArraySize; split the sweep, or let each task do several",
    ),
    "Requested GRES option unsupported by configured SelectType plugin": (
        "Options like --gpus need SelectType=select/cons_tres.",
        "use --gres=gpu:COUNT, or have the setting changed",
    ),
    "Invalid account or account/partition combination specified": (
        "You have no association with that account (in that partition).",
        "sacctmgr show assoc user=$USER format=account,partition,qos",
    ),
    "Requested time limit is invalid (missing or exceeds some limit)": (
        "The time limit is above the partition's (with EnforcePartLimits) or the QoS's.",
        "ask for less with -t; sinfo -o '%P %l' shows the partitions' limits",
    ),
    "Invalid partition name specified": ("There is no such partition.", "sinfo -s lists them"),
    "Invalid qos specification": (
        "There is no such QoS, or your association may not use it.",
        "sacctmgr show assoc user=$USER format=account,qos",
    ),
    "Invalid feature specification": ("No node has that feature.", "sinfo -o '%N %f' lists features"),
    "Invalid license specification": ("There is no such license.", "scontrol show licenses"),
    "Invalid node name specified": (
        "A node that is named (-w, -x) is not there, or is both wanted and excluded.",
        "sinfo -N lists the nodes",
    ),
    "Requested reservation is invalid": ("There is no such reservation, or it has ended.", "scontrol show reservation"),
    "Job dependency problem": (
        "The dependency is written wrongly, or cannot be.",
        "forms: afterok:ID, afterany:ID, aftercorr:ID, singleton; squeue shows job ids",
    ),
    "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)": (
        "A limit of the association or QoS refuses it at once (MaxSubmitJobs, or DenyOnLimit).",
        "sacctmgr show assoc,qos shows the limits",
    ),
    "Access/permission denied": ("You may not do that to this job, partition or reservation.", "scontrol show … says who may"),
    "Unable to contact slurm controller (connect failure)": (
        "slurmctld does not answer.",
        "orchlab status; on a cluster of yours: scontrol ping",
    ),
}
# sbatch itself, before slurmctld is asked.
OPTION = re.compile(r"Invalid (--\S+) specification|unrecognized option '(\S+)'")

# Final state: (cause, remedy).
ENDED = {
    "NODE_FAIL": (
        "A node of the job stopped answering, and it was not requeued.",
        "sinfo -R names the node; sbatch --requeue lets Slurm start a job again",
    ),
    "TIMEOUT": ("It ran into its time limit.", "ask for more with -t, or have it save its state before: sbatch --signal=B:USR1@60"),
    "OUT_OF_MEMORY": ("It used more memory than it asked for.", "ask for more with --mem"),
    "PREEMPTED": ("A job of higher priority took its place.", "sbatch --requeue, or a QoS that is not preempted"),
    "BOOT_FAIL": ("Its node did not come up.", "sinfo -R"),
    "DEADLINE": ("It could not have ended before its deadline.", "ask for less time, or a later deadline"),
}


def limit(reason: str, account: str, qos: str) -> tuple[str, str, str] | None:
    """For a limit of an association or a QoS: whose it is, the cause, the remedy. None for any other reason."""
    match = LIMIT.fullmatch(reason)
    if match is None:
        return None
    assoc = match["who"] == "Assoc"
    owner = f"account {account}" if assoc else f"QoS {qos}"
    whole = f"{owner} (or of the user's own association, or an account above)" if assoc else f"{owner} (or of the partition's QoS)"
    show = ("sacctmgr show assoc format=account,user,grptres,maxtres,maxjobs" if assoc
            else "sacctmgr show qos format=name,grptres,maxtrespu,maxtrespa,maxtres,maxjobspu")
    if match["which"] == "Min":
        return owner, f"It asks for less than the minimum of {whole} ({reason}).", f"ask for more, or use another QoS; {show},mintres"
    if match["which"] == "Grp":
        scope, wait = "all its jobs together", True
    elif "PerUser" in reason:
        scope, wait = "one user's jobs", True
    elif "PerAccount" in reason:
        scope, wait = "one account's jobs", True
    elif "PerNode" in reason:
        scope, wait = "one job on one node", False
    elif "PerJob" in reason:
        scope, wait = "one job", False
    else:
        scope, wait = "the jobs of one association", True
    if not wait:
        return owner, f"It alone is above a limit of {whole}, for {scope} ({reason}).", f"waiting does not help: ask for less; {show}"
    if ("Minutes" in reason and "Run" not in reason) or "GrpWall" in reason:
        return (owner, f"What was used under {whole} has reached its limit, for {scope} ({reason}).",
                f"use another account or QoS; past use fades with PriorityDecayHalfLife or PriorityUsageResetPeriod; {show}")
    return (owner, f"A limit of {whole} is reached, for {scope} ({reason}).",
            f"wait for jobs to end, ask for less (more than the limit itself never starts), or use another account or QoS; {show}")
