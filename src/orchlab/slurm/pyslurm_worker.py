"""The other end of orchlab.slurm.pyslurm: runs with whichever Python has a pyslurm that matches Slurm, standard library only besides that.

One JSON request a line on standard input, one JSON answer a line on standard output. A process of its own always: importing pyslurm
without a
readable slurm.conf ends the process (Slurm's library calls exit), and a library call that hangs can then be ended from outside.
"""

import json
import os
import sys


def plain(value):
    """pyslurm's objects as JSON."""
    if hasattr(value, "items"):  # dicts and pyslurm's collections
        value = dict(value.items())
    elif hasattr(value, "to_dict"):
        value = attributes(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def attributes(thing):
    """Like to_dict, which stops at the first property that fails (22.5.3: the memory of a job that asks for it per node)."""
    found = {}
    for name in dir(thing):
        if not name.startswith("_"):
            try:
                value = getattr(thing, name)
            except AttributeError:
                continue
            if not callable(value):
                found[name] = value
    return found


def jobs(slurm):
    found = []
    for job in slurm.Jobs.load().values():
        data = plain(job)
        data["layout"] = plain(job.get_resource_layout_per_node()) if data.get("state") == "RUNNING" else {}
        found.append(data)
    return found


def steps(slurm):
    found = []
    for job_id, job in slurm.Jobs.load().items():
        if job.state == "RUNNING":
            found.extend({**plain(step), "job_id": job_id} for step in slurm.JobSteps.load(job_id).values())
    return found


def submit(slurm, script, **options):
    description = slurm.JobSubmitDescription(script=script)
    for names, value in options.values():
        # The name of an attribute changed between releases.
        name = next((name for name in names if hasattr(description, name)), None)
        if name is None:
            raise ValueError(f"this pyslurm cannot set {names[0]}")
        setattr(description, name, value)
    return description.submit()


def accounting(slurm, ids, since):
    condition = slurm.db.JobFilter(ids=ids) if ids else slurm.db.JobFilter(start_time=since)
    return [plain(job) for job in slurm.db.Jobs.load(condition).values()]


OPERATIONS = {
    "version": lambda slurm: ".".join(
        str(slurm.version.__version__ if hasattr(slurm.version, "__version__") else slurm.__version__).split(".")[:3]
    ),
    "jobs": jobs,
    "steps": steps,
    "nodes": lambda slurm: [plain(node) for node in slurm.Nodes.load().values()],
    "partitions": lambda slurm: [plain(partition) for partition in slurm.Partitions.load().values()],
    "submit": submit,
    "cancel": lambda slurm, job: slurm.Job.load(job).cancel(),
    "signal": lambda slurm, job, signal: slurm.Job.load(job).send_signal(signal),
    "hold": lambda slurm, job: slurm.Job(job).hold(),
    "release": lambda slurm, job: slurm.Job(job).release(),
    "requeue": lambda slurm, job: slurm.Job(job).requeue(),
    "accounting": accounting,
    "reservations": lambda slurm: (
        list(slurm.reservation().get().items())
        if not hasattr(slurm, "Reservations")
        else [(name, plain(item)) for name, item in slurm.Reservations.load().items()]
    ),
}


def main():
    # Slurm's library may print to standard output: keep that for answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    del sys.path[0]  # this file's own folder
    import pyslurm

    answers.write(json.dumps({"ready": OPERATIONS["version"](pyslurm)}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": OPERATIONS[request.pop("operation")](pyslurm, **request)}
        except Exception as error:  # whatever the library raises goes to the asker in words
            answer = {"error": getattr(error, "msg", None) or str(error), "kind": type(error).__name__}
        answers.write(json.dumps(answer, default=str) + "\n")


if __name__ == "__main__":
    main()
