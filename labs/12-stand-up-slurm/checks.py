"""What the exercises of lab 12 ask for, by what slurmctld says and by what ran where. Only jobs since the last reset count."""

from __future__ import annotations

import re

from orchlab.course import Answer, Lab, not_yet, passed, wrong
from orchlab.course.slurm_side import sentence

AGAIN = "submit it anew"


def two_a100s(lab: Lab) -> Answer:
    """A job called mine that held two A100s on one node."""
    found = lab.jobs("mine")
    if not found:
        return not_yet("There is no job called mine.")
    job = found[-1]
    if not job.gpus:
        return wrong("mine asks for no GPU at all.", AGAIN)
    if job.state == "PENDING":
        return not_yet(f"{sentence([job])}.", settling=job.reason in ("", "None", "Priority"))
    if not job.nodes:
        return wrong(f"{sentence([job])}: it never ran.", AGAIN)
    if strange := [node for node in job.nodes if not node.startswith("a100-")]:
        return wrong(f"mine ran on {strange[0]}, which has no A100. What is not typed is filled from the lowest Weight up.", AGAIN)
    if len(job.nodes) > 1:
        return wrong(f"mine holds {job.gpus // len(job.nodes)} on each of {len(job.nodes)} nodes: no task has two.",
                     "--gres counts per node, --gpus over all of them")
    if job.gpus != 2:
        return wrong(f"mine asks for {job.gpus} GPUs, not for two.", AGAIN)
    if not job.ended_for_good:
        return not_yet(f"{sentence([job])}.", settling=True)
    if job.state != "COMPLETED":
        return wrong(f"{sentence([job])}.", "its output says why: lab.output(job)")
    said = re.search(r"\b\d,\d\b", lab.output(job.id))
    if not said:
        return wrong("mine has not written which GPUs it was given.", "echo $CUDA_VISIBLE_DEVICES")
    return passed(f"{sentence([job])}, GPUs {said[0]}. Slurm chose the node and the devices.")


def back_in_service(lab: Lab) -> Answer:
    """h100-1 answers, is not drained, and has run a job."""
    return _begun(lab, "back-in-service") or _in_service(lab, "h100-1") or _probed(lab, "h100-1", 1)


def count(lab: Lab) -> Answer:
    """a100-0 has its four GPUs again, in both files, and has run a job with all of them."""
    if trouble := _begun(lab, "count"):
        return trouble
    promised = re.search(r"CfgTRES=\S*gres/gpu=(\d+)", lab.command("scontrol show node a100-0"))
    if not promised or int(promised[1]) != 4:
        now = promised[1] if promised else "no"
        return wrong(f"slurm.conf promises {now} GPUs on a100-0 now. The machine has four; one is lost to everybody.",
                     "put slurm.conf back, restart slurmctld, and look at what the node reports")
    return _in_service(lab, "a100-0") or _probed(lab, "a100-0", 4)


def stranger(lab: Lab) -> Answer:
    """h100-3 is believed again: its munged accepts the cluster's credentials, and a job ran there."""
    if trouble := _begun(lab, "stranger"):
        return trouble
    said = lab.folder.module("parts").credential(lab, "h100-3")
    if "Success" not in said:
        return not_yet(f"The munged of h100-3 refuses the cluster's credentials: {said.removeprefix('unmunge: Error: ')}.")
    return _in_service(lab, "h100-3") or _probed(lab, "h100-3", 1)


def _begun(lab: Lab, exercise: str) -> Answer | None:
    return None if lab.broken_for(exercise) else not_yet("Nothing is broken yet.", f'lab.start("{exercise}") breaks something')


def _in_service(lab: Lab, name: str) -> Answer | None:
    """What keeps a node from taking jobs, or None."""
    node = next(node for node in lab.slurm.nodes() if node.name == name)
    flags = set(node.flags)
    if flags & {"INVALID_REG", "INVAL"} or node.state == "INVAL":
        return not_yet(f"{name} is INVAL: {node.reason.split(' [')[0]}.")
    if "NOT_RESPONDING" in flags or node.state in ("DOWN", "UNKNOWN"):
        return not_yet(f"{name} is {node.state}{'*' if 'NOT_RESPONDING' in flags else ''}: its slurmd does not answer.")
    if "DRAIN" in flags or node.state.startswith("DRAIN"):
        return not_yet(f"{name} is drained: {node.reason.split(' [')[0]}.")
    return None


def _probed(lab: Lab, name: str, gpus: int) -> Answer:
    jobs = [job for job in lab.jobs() if name in job.nodes and job.gpus >= gpus]
    if any(job.state == "COMPLETED" for job in jobs):
        return passed(f"{name} is in service: {sentence([job for job in jobs if job.state == 'COMPLETED'][-1:])}, {gpus} GPUs or more.")
    words = "a GPU" if gpus == 1 else f"{gpus} GPUs"
    return not_yet(f"{name} looks well. No job with {words} has run there to the end yet.", f"submit one: -w {name}",
                   settling=bool(jobs) or any(job.state == "PENDING" and job.name == "probe" for job in lab.jobs()))
