"""What the exercises of lab 13 ask for, by what slurmctld says. Only jobs since the last reset count."""

from __future__ import annotations

import re

from orchlab.course import Answer, Lab, not_yet, passed, wrong
from orchlab.course.slurm_side import sentence
from orchlab.slurm import feed
from orchlab.slurm.model import ENDED, Job

TASKS, AT_ONCE, EPOCHS = 24, 4, 90
AGAIN = "scancel it and submit it anew"


def sweep(lab: Lab) -> Answer:
    """One array called sweep: 24 tasks with a GPU each, of which no more than four ever ran at once."""
    found = lab.jobs("sweep")
    if not found:
        return not_yet("There is no job called sweep.")
    newest = max(job.array_id or job.id for job in found)
    tasks = [job for job in found if (job.array_id or job.id) == newest]
    if all(job.array_id is None for job in tasks):
        return wrong("sweep is a single job, not an array.", "sbatch --array=… makes one job of many tasks")
    count = sum(len(feed.tasks(job.array_tasks)) if job.array_tasks else 1 for job in tasks)
    if count != TASKS:
        return wrong(f"sweep has {count} tasks, not {TASKS}.", AGAIN)
    if any(job.gpus != 1 for job in tasks):
        return wrong(f"A task of sweep asks for {tasks[0].gpus} GPUs, not for one.", AGAIN)
    most = _most_at_once(tasks)
    if most > AT_ONCE:
        return wrong(f"{most} tasks of sweep ran at once; {AT_ONCE} are allowed.", f"scancel {newest}; the limit belongs to the array")
    ended = sum(job.state == "COMPLETED" for job in tasks)
    if failed := [job.label for job in tasks if job.ended_for_good and job.state != "COMPLETED"]:
        return wrong(f"{len(failed)} tasks did not complete, the first of them {failed[0]}.", AGAIN)
    if ended < TASKS:
        waiting = next((job for job in tasks if job.array_tasks), None)
        if waiting and "%" not in waiting.array_tasks:
            return wrong(f"Nothing keeps sweep to {AT_ONCE} tasks at once: squeue shows {waiting.label}.",
                         "scontrol update job=… arraytaskthrottle=4, or submit it anew")
        return not_yet(f"{ended} of {TASKS} tasks have completed.", settling=True)
    return passed(f"{TASKS} tasks with a GPU each have completed, at most {most} at once.")


def pipeline(lab: Lab) -> Answer:
    """Two runs, good and bad. In both the stages ran in order, evaluation only after success, clean-up only after failure. Nobody
    waits for ever."""
    for run in ("good", "bad"):
        runs, rests = ("evaluate", "cleanup") if run == "good" else ("cleanup", "evaluate")
        found = {stage: _newest(lab, f"{run}-{stage}") for stage in ("preprocess", "train", "evaluate", "cleanup")}
        # Of a job that never became eligible accounting has nothing: when slurmctld has forgotten them all, it is missed by nobody.
        forgotten = found["train"] is not None and found["train"].limit is None
        if missing := [f"{run}-{stage}" for stage, job in found.items() if job is None and not (forgotten and stage == rests)]:
            return not_yet(f"There is no job called {missing[0]}.")
        stages = {stage: job for stage, job in found.items() if job}
        train = stages["train"]
        for stage, job in stages.items():
            if job.reason == "DependencyNeverSatisfied" and job.state == "PENDING":
                return wrong(f"{run}-{stage} waits for ever: DependencyNeverSatisfied.",
                             "it can be told to go away by itself: --kill-on-invalid-dep=yes")
        if waiting := [f"{run}-{stage}" for stage, job in stages.items() if not job.ended_for_good]:
            return not_yet(f"{waiting[0]} has not ended yet.", settling=True)
        if stages["preprocess"].state != "COMPLETED":
            return wrong(f"{sentence([stages['preprocess']])}.", "its output says why")
        if train.started is None or train.started < stages["preprocess"].ended:
            return wrong(f"{run}-train did not wait for {run}-preprocess.", "--dependency=afterok:ID")
        wanted = "COMPLETED" if run == "good" else "FAILED"
        if train.state != wanted or (run == "bad" and train.exit_code != 1):
            return wrong(f"{sentence([train])}; with the scripts as given, {run} has to end {wanted}.",
                         "scripts/train.sh takes the run's name as its argument: good or bad")
        if stages[runs].state != "COMPLETED":
            return wrong(f"{sentence([stages[runs]])}: after a training that {'succeeded' if run == 'good' else 'failed'} it has to run.",
                         "which condition does it wait for?")
        if stages[runs].started < train.ended:
            return wrong(f"{run}-{runs} did not wait for {run}-train.", "--dependency=…:ID")
        if rests in stages and stages[rests].nodes:
            return wrong(f"{run}-{rests} ran, though the training had {'succeeded' if run == 'good' else 'failed'}.",
                         "afterok, afternotok, afterany: which one?")
    return passed("good: preprocessed, trained, evaluated. bad: training failed, nothing was evaluated, the clean-up ran. "
                  "The queue is empty.")


def survive(lab: Lab) -> Answer:
    """A job with a limit of one minute was asked to stop, requeued itself, and goes on where it stopped."""
    job = _newest(lab, "survive")
    if job is None:
        return not_yet("There is no job called survive.")
    if job.limit not in (60, None):  # None: an old job, from accounting
        return wrong(f"The time limit of survive is {job.limit // 60} minutes; it has to be one minute.", AGAIN)
    epochs = [(int(run), int(epoch)) for run,
              epoch in re.findall(r"^run (\d+) epoch (\d+)$", lab.output(job.id, seconds=0.1), re.MULTILINE)]
    later = [epoch for run, epoch in epochs if run]
    earlier = [epoch for run, epoch in epochs if not run]
    if later and later[0] == 1:
        return wrong("The second run began with epoch 1 again: what the first one did is lost.",
                     "write the checkpoint before the job is requeued: long.py does so on USR1")
    if later and not earlier:
        return wrong("The first run's output is gone, so nobody can tell what it did.", "sbatch --open-mode=append")
    if job.ended_for_good and (job.state != "COMPLETED" or [epoch for _, epoch in epochs] != list(range(1, EPOCHS + 1))):
        return wrong(f"{sentence([job])}, after {len(epochs)} of {EPOCHS} epochs and {job.restarts} restarts.",
                     "who got the signal, and what did it do with it? The job has to requeue itself before the limit")
    if not later:
        seen = f"{sentence([job])}, {len(epochs)} epochs done." if job.state == "RUNNING" else f"{sentence([job])}."
        return not_yet(f"{seen} It has not been through its own requeue yet.", "the signal and the new start take up to 50 s together")
    if later[0] != earlier[-1] + 1:
        return wrong(f"The second run began with epoch {later[0]}; the first one stopped after {earlier[-1]}.",
                     "one checkpoint, written after the last epoch of a run")
    return passed(f"Asked to stop after epoch {earlier[-1]}, requeued by itself, on again with epoch {later[0]}, "
                  "under a limit of one minute.")


def five(lab: Lab) -> Answer:
    """The five given jobs completed: their scripts check for themselves that they got what they need."""
    gpus = {"one": 2, "two": 0, "three": 0, "four": 10, "five": 6}
    done = []
    for name, wanted in gpus.items():
        found = lab.jobs(name)
        if not found:
            return not_yet(f"No job called {name} has been accepted." + (f" Done: {', '.join(done)}." if done else ""))
        newest = max(job.array_id or job.id for job in found)
        jobs = [job for job in found if (job.array_id or job.id) == newest]
        if waiting := next((job for job in jobs if job.state == "PENDING" and job.reason not in ("", "None", "Priority", "Resources")),
                           None):
            return not_yet(f"{name} waits: {waiting.reason}.", "it will wait for ever; scancel it, or change it with scontrol update")
        if not all(job.state in ENDED for job in jobs):
            return not_yet(f"{sentence(jobs)}.", settling=True)
        if bad := next((job for job in jobs if job.state != "COMPLETED"), None):
            return wrong(f"{name} ended {bad.state}. It wrote: {lab.output(bad.id).splitlines()[-1:] or ['nothing']}",
                         "read its script: it says what it needs")
        if jobs[0].gpus != wanted:
            return wrong(f"{name} held {jobs[0].gpus} GPUs; its script asks for {wanted}.", "ask for what it needs, not for less")
        done.append(name)
    return passed("All five have run, with what they asked for.")


def _newest(lab: Lab, name: str) -> Job | None:
    found = lab.jobs(name)
    return max(found, key=lambda job: job.id) if found else None


def _most_at_once(tasks: list[Job]) -> int:
    """How many tasks ran at the same time. Slurm notes whole seconds, and a task runs for one at least: an end and a start within one
    second are not together."""
    ran = [job for job in tasks if job.started and job.nodes]
    moments = {job.started for job in ran}
    return max((sum(job.started <= at and (job.ended is None or not job.ended_for_good or job.ended > at) for job in ran)
                for at in moments), default=0)
