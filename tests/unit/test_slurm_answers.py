"""Slurm's answers read into the model: recorded from 22.05.8's commands and slurmrestd, and the typed form of later API versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchlab.errors import BadInput
from orchlab.slurm import commands, errors, feed, gres, shapes
from orchlab.slurm.model import Held, Job
from orchlab.slurm.request import JobRequest, directives, megabytes, minutes

DATA = Path(__file__).parents[1] / "data" / "slurm"


@pytest.fixture(scope="module")
def jobs() -> dict[int, Job]:
    return {data["job_id"]: shapes.job(data) for data in json.loads((DATA / "22.05-squeue.json").read_text())["jobs"]}


def test_recorded_jobs(jobs):
    assert {job.label: (job.state, job.reason) for job in jobs.values()} == {
        "1_[2-9%2]": ("PENDING", "JobArrayTaskLimit"),
        "2": ("RUNNING", ""),
        "3": ("PENDING", "PartitionTimeLimit"),
        "1_0": ("RUNNING", ""),
        "9": ("RUNNING", ""),
        "10": ("PENDING", "QOSMaxGRESPerUser"),
        "12": ("PENDING", "AssocGrpGRES"),
        "13": ("FAILED", "BadConstraints"),
        "17": ("COMPLETED", ""),
    }
    task = jobs[5]
    assert (task.array_id, task.array_task, task.nodes, task.limit, task.tres["gres/gpu:h100"], task.tres["mem"]) == (
        1,
        0,
        ("h100-0",),
        3600,
        2,
        2048,
    )
    assert task.held == (Held("h100-0", "gpu", "h100", 2, (0, 1)),)
    assert jobs[2].nodes == ("h100-2", "h100-3") and jobs[2].gpus == 16
    assert jobs[9].held == (Held("t4-0", "shard", "", 3, (0,)),)
    assert jobs[3].started is None and jobs[3].submitted > 1.7e9


def test_recorded_nodes_and_accounting():
    nodes = {data["name"]: shapes.node(data) for data in json.loads((DATA / "22.05-sinfo.json").read_text())["nodes"]}
    assert (nodes["t4-0"].state, nodes["t4-0"].gres, nodes["t4-0"].partitions) == (
        "MIXED",
        {"gpu:t4": 2, "shard:t4": 8},
        ("all", "short", "t4"),
    )
    assert nodes["cpu-0"].gres == {}
    past = {data["job_id"]: shapes.past_job(data) for data in json.loads((DATA / "22.05-sacct.json").read_text())["jobs"]}
    assert past[2].tres["gres/gpu"] == 16 and past[2].ended is None and {step.id for step in past[2].steps} == {"2.batch", "2.0"}
    assert (past[5].array_id, past[5].array_task) == (1, 0)
    assert past[18].nodes == ()


def test_typed_answers_of_later_versions():
    """The form of data_parser v0.0.40 and later, written by its documentation: numbers with set and infinite, states as lists."""

    def num(value, infinite=False):
        return {"set": value is not None, "infinite": infinite, "number": value or 0}

    job = shapes.job(
        {
            "job_id": 7,
            "job_state": ["RUNNING", "COMPLETING"],
            "array_job_id": num(4),
            "array_task_id": num(3),
            "array_max_tasks": num(None),
            "time_limit": num(None, True),
            "priority": num(12),
            "node_count": num(1),
            "cpus": num(2),
            "start_time": num(1800000000),
            "submit_time": num(1799999990),
            "nodes": "n-[01-02]",
            "exit_code": {"return_code": num(0), "signal": {"id": num(None)}},
            "gres_detail": ["gpu:h100:1(IDX:3)", "gpu:h100:1(IDX:0)"],
            "tres_alloc_str": "cpu=2,mem=4G,gres/gpu=2",
            "state_reason": "None",
            "user_name": "alice",
        }
    )
    assert (job.label, job.state, job.limit, job.priority, job.nodes, job.gpus, job.started) == (
        "4_3",
        "RUNNING",
        None,
        12,
        ("n-01", "n-02"),
        2,
        1800000000.0,
    )
    assert [held.indices for held in job.held] == [(3,), (0,)]
    node = shapes.node(
        {
            "name": "n",
            "state": ["DOWN", "NOT_RESPONDING"],
            "cpus": 4,
            "real_memory": 10,
            "features": ["a"],
            "partitions": ["p"],
            "gres": "gpu:h100:8(S:0-1)",
        }
    )
    assert (node.state, node.flags, node.gres) == ("DOWN", ("NOT_RESPONDING",), {"gpu:h100": 8})
    part = shapes.partition(
        {
            "name": "p",
            "nodes": {"configured": "n-[1-2]"},
            "maximums": {"time": num(10), "nodes": num(None, True)},
            "defaults": {"time": num(5)},
            "partition": {"state": ["UP"]},
            "priority": {"tier": 3},
        }
    )
    assert (part.state, part.nodes, part.limit, part.default_limit, part.max_nodes, part.priority_tier) == (
        "UP",
        ("n-1", "n-2"),
        600,
        300,
        None,
        3,
    )


@pytest.mark.parametrize(
    "text, names",
    [
        ("h100-[0-2,5],t4-0", ("h100-0", "h100-1", "h100-2", "h100-5", "t4-0")),
        ("n[008-011]", ("n008", "n009", "n010", "n011")),
        ("one", ("one",)),
        ("", ()),
        (None, ()),
        ("None assigned", ()),
        ("(null)", ()),
    ],
)
def test_host_lists(text, names):
    assert shapes.hosts(text) == names


@pytest.mark.parametrize(
    "text, held",
    [
        ("gpu:h100:2(IDX:0-1)", [("gpu", "h100", 2, (0, 1))]),
        ("gpu:2(IDX:1,3)", [("gpu", "", 2, (1, 3))]),
        ("gpu:a100_3g.20gb:1(IDX:7)", [("gpu", "a100_3g.20gb", 1, (7,))]),
        ("shard:3(IDX:0)", [("shard", "", 3, (0,))]),
        ("gpu:a100:4(S:0-1),shard:t4:8", [("gpu", "a100", 4, ()), ("shard", "t4", 8, ())]),
        ("", []),
        ("(null)", []),
    ],
)
def test_gres_words(text, held):
    assert gres.devices(text) == held


@pytest.mark.parametrize(
    "text, values",
    [
        ("cpu=2,mem=4G,gres/gpu:h100=1", {"cpu": 2, "mem": 4096, "gres/gpu:h100": 1}),
        ("mem=1500M", {"mem": 1500}),
        ("mem=0.50T", {"mem": 524288}),
        ("", {}),
    ],
)
def test_tres_words(text, values):
    assert shapes.tres(text) == values


def test_sacct_rows():
    fields = (
        "JobIDRaw",
        "JobID",
        "JobName",
        "User",
        "Account",
        "Partition",
        "QOS",
        "State",
        "NodeList",
        "AllocTRES",
        "Submit",
        "Start",
        "End",
        "ElapsedRaw",
        "ExitCode",
    )
    lines = [
        (
            "5|1_0|arr|alice|lab|all|normal|CANCELLED by"
            " 1000|cpu-0|cpu=1,gres/gpu=2|2026-11-30T17:07:59|2026-11-30T17:08:00|2026-11-30T17:08:10|10|0:15"
        ),
        "5.batch|1_0.batch|batch||lab|||CANCELLED|cpu-0|cpu=1|2026-11-30T17:08:00|2026-11-30T17:08:00|2026-11-30T17:08:10|10|0:15",
        "6|6|wait|alice|lab|all|normal|PENDING|None assigned||2026-11-30T17:08:00|Unknown|Unknown|0|0:0",
    ]
    first, second = commands.past_jobs(dict(zip(fields, line.split("|"), strict=True)) for line in lines)
    assert (first.id, first.array_id, first.array_task, first.state, first.exit_signal, first.ended - first.started) == (
        5,
        1,
        0,
        "CANCELLED",
        15,
        10,
    )
    assert [step.id for step in first.steps] == ["5.batch"]
    assert (second.state, second.started, second.nodes) == ("PENDING", None, ())


@pytest.mark.parametrize(
    "said, text, details",
    [
        (
            (
                "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed: Invalid partition name"
                " specified\n"
            ),
            "Invalid partition name specified",
            "invalid partition specified: nope",
        ),
        ("sbatch: error: Invalid generic resource (gres) specification", "Invalid generic resource (gres) specification", ""),
        (
            "scancel: Terminating job 9\nscancel: error: Kill job error on job id 9: Invalid job id specified",
            "Invalid job id specified",
            "Terminating job 9",
        ),
        (
            "srun: error: Unable to allocate resources: Requested node configuration is not available",
            "Requested node configuration is not available",
            "",
        ),
        ("", "sbatch failed without a word", ""),
    ],
)
def test_refusals_keep_slurms_words(said, text, details):
    error = errors.from_command(said, "sbatch")
    assert (error.text, error.details) == (text, details)


@pytest.mark.parametrize("text, expected", [("5", 5), ("0:30", 1), ("1:00:00", 60), ("1-0", 1440), ("1-2:30", 1590), ("2-01:00:01", 2941)])
def test_time_limits(text, expected):
    assert minutes(text) == expected


@pytest.mark.parametrize("function, text", [(minutes, "soon"), (minutes, "-5"), (megabytes, "much"), (megabytes, "4X")])
def test_bad_sizes_and_times(function, text):
    with pytest.raises(BadInput, match=text):
        function(text)


def test_sbatch_lines_end_at_the_first_command():
    script = (
        '#!/bin/bash\n# a comment\n#SBATCH -J "my job" --gres=gpu:2\n#SBATCH -N 2 # two\n#SBATCH --mem=4G\n#SBATCH'
        " --requeue\n\necho\n#SBATCH -p late\n"
    )
    assert directives(script) == {"job_name": "my job", "gres": "gpu:2", "nodes": 2, "mem": 4096, "requeue": True}
    assert JobRequest(script, job_name="given").with_directives().job_name == "given"
    with pytest.raises(BadInput, match="--exclusive is not known"):
        directives("#!/bin/bash\n#SBATCH --exclusive\n")
    with pytest.raises(BadInput, match="not a whole number"):
        directives("#!/bin/bash\n#SBATCH -N 1-4\n")


def test_options_of_sbatch():
    request = JobRequest("#!/bin/bash\n", job_name="x", nodes=2, cpus_per_task=4, gpus_per_task="1", hold=True, requeue=False)
    assert request.options() == ["--job-name=x", "--gpus-per-task=1", "--nodes=2", "--cpus-per-task=4", "--hold", "--no-requeue"]


def test_a_feed_shows_each_waiting_task_and_only_as_many_gpus_as_were_asked_for(jobs):
    units = list(feed.units_from(jobs[1], {}))
    assert [unit.id for unit in units] == [f"1_{task}" for task in range(2, 10)]
    assert {(unit.stage, unit.reason) for unit in units} == {("waiting", "JobArrayTaskLimit")}
    assert units[0].wanted == {"gpu:h100": 2}
    running = next(feed.units_from(jobs[5], {"h100-0": {"gpu:h100": 8}}))
    assert (running.id, running.stage, running.shares[0].devices) == ("1_0", "running", ("0", "1"))
    shard = next(feed.units_from(jobs[9], {"t4-0": {"gpu:t4": 2, "shard:t4": 8}}))
    assert (shard.shares[0].resource, shard.shares[0].count, shard.shares[0].devices) == ("shard:t4", 3, ())


@pytest.mark.parametrize(
    "text, found", [("2-9%2", list(range(2, 10))), ("0,3,5-7", [0, 3, 5, 6, 7]), ("0-10:5", [0, 5, 10]), ("1-3,9,...", [1, 2, 3, 9])]
)
def test_array_tasks(text, found):
    assert feed.tasks(text) == found


def test_a_feed_asks_once_a_second_at_most():
    with pytest.raises(BadInput, match="interval"):
        feed.Feed(None, interval=0.1)
