"""What lab 13 works out from accounting: the report that `seff` gives where it is installed."""

from __future__ import annotations

import re

from orchlab.course import Lab, Text

FIELDS = ("JobID", "JobName", "State", "ElapsedRaw", "AllocCPUS", "TotalCPU", "ReqMem", "MaxRSS", "AllocTRES", "TimelimitRaw")


def efficiency(lab: Lab, job: int, seconds: float = 15) -> Text:
    """What a job had and what it used, from sacct: CPU time by all its steps over CPUs x elapsed time, the largest step's memory
    over what was asked for, time over the time limit. GPUs: only what was held. Waits for accounting, which hears of an end late."""
    def look() -> list[dict[str, str]]:
        said = lab.command(f"sacct -P -n -j {job} -o {','.join(FIELDS)}")
        rows = [dict(zip(FIELDS, line.split("|"), strict=True)) for line in said.splitlines()]
        return rows if rows and all(row["State"] == "COMPLETED" for row in rows) else []

    whole, *steps = lab.until(look, seconds, f"accounting does not call job {job} completed")
    elapsed, cpus = int(whole["ElapsedRaw"]), int(whole["AllocCPUS"])
    used = span(whole["TotalCPU"])
    memory, asked = max((megabytes(step["MaxRSS"]) for step in steps if step["MaxRSS"]), default=0), megabytes(whole["ReqMem"])
    gpus = int(re.search(r"gres/gpu=(\d+)", whole["AllocTRES"])[1]) if "gres/gpu=" in whole["AllocTRES"] else 0
    return Text("\n".join([
        f"{whole['JobName']}: {whole['State']} after {elapsed} s of {int(whole['TimelimitRaw']) * 60} s",
        f"CPU     {used:.2f} s used, {elapsed * cpus} s held ({cpus} CPUs): {100 * used / max(1, elapsed * cpus):.0f} %",
        f"memory  {memory:.0f} MiB at most in one step, {asked:.0f} MiB asked for: {100 * memory / max(1, asked):.1f} %",
        f"GPU     {gpus} held for {elapsed} s: {gpus * elapsed} GPU-seconds. How busy they were Slurm does not know"]))


def span(text: str) -> float:
    """Seconds in sacct's [D-[HH:]]MM:SS[.mmm]."""
    days, _, rest = text.rpartition("-")
    parts = [float(part) for part in rest.split(":")]
    return int(days or 0) * 86400 + sum(part * 60 ** power for power, part in enumerate(reversed(parts)))


def megabytes(text: str) -> float:
    """MiB in sacct's 12345K, 8G, 512M; a trailing n or c (older releases: per node, per CPU) is left out."""
    found = re.fullmatch(r"([\d.]+)([KMGT]?)[nc]?", text)
    return float(found[1]) * {"": 1 / 2**20, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}[found[2]] if found else 0.0


def states(lab: Lab, prefix: str) -> Text:
    """The jobs whose name begins with `prefix`, as squeue has them: name, state, reason. In the order in which they were submitted."""
    lines = []
    for job in lab.jobs():
        if job.name.startswith(prefix):
            why = job.reason if job.state == "PENDING" else f"exit status {job.exit_code}" if job.ended_for_good and job.exit_code else ""
            lines.append(f"{job.name:<14}  {job.state:<10}  {why}".rstrip())
    return Text("\n".join(lines))


def config(lab: Lab, *names: str) -> Text:
    """Lines of `scontrol show config`."""
    return Text("\n".join(line for line in lab.command("scontrol show config").splitlines() if line.split(" ")[0] in names))


def sorted_steps(output: str) -> Text:
    """Steps that run side by side print in any order: sorted within each paragraph, without the number of the job."""
    lines, block = [], []
    for line in [*output.splitlines(), ":"]:
        if line.endswith(":"):
            lines += [*sorted(block), line]
            block = []
        else:
            block.append("    " + re.sub(r"^srun: Job \d+ ", "srun: ", line))
    return Text("\n".join(lines[:-1]))


def by_rank(output: str) -> Text:
    """Ranks print in any order: theirs first, sorted, then the steps of the training."""
    lines = output.splitlines()
    return Text("\n".join([*sorted(line for line in lines if line.startswith("rank")),
                           *(line for line in lines if not line.startswith("rank"))]))
