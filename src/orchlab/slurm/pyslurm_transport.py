"""Slurm by pyslurm, in a worker process. pyslurm's major.minor has to be Slurm's: versions.pyslurm_requirement says which one that is.

The worker's Python is $ORCHLAB_PYSLURM_PYTHON, else the one that runs orchlab. Tried: pyslurm 22.5.3 with Slurm 22.05.8.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchlab.errors import BadInput, EngineUnavailable, TimeLimitReached
from orchlab.slurm import errors, gres, shapes
from orchlab.slurm.model import Held, Job, Node, Partition, PastJob, PastStep, Reservation, Step
from orchlab.slurm.request import JobRequest, minutes
from orchlab.slurm.transport import DAY, Transport

# Where Slurm's library looks by itself, the last for clusters that hand their configuration out.
CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
WORKER = Path(__file__).with_name("pyslurm_worker.py")


def python() -> str:
    """The interpreter that is asked for pyslurm."""
    return os.environ.get("ORCHLAB_PYSLURM_PYTHON") or sys.executable


def installed(seconds: float = 20) -> str:
    """pyslurm's version in that interpreter, read without importing it; "" if it has none."""
    code = "import importlib.metadata as m; print(m.version('pyslurm'))"
    try:
        done = subprocess.run([python(), "-c", code], capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


class PySlurm(Transport):
    """`environment` comes on top of the caller's and has to name a readable SLURM_CONF (or /etc/slurm/slurm.conf is used)."""

    name = "pyslurm"

    def __init__(self, environment: Mapping[str, str] | None = None, seconds: float = 20) -> None:
        super().__init__(seconds)
        self._environment = os.environ | dict(environment or {})
        self._worker: subprocess.Popen | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._worker:
            self._worker.kill()
            self._worker.communicate()
            self._worker = None

    def _ask(self, operation: str, **arguments):
        with self._lock:
            deadline = time.monotonic() + self.seconds
            if self._worker is None or self._worker.poll() is not None:
                self._start(deadline)
            self._worker.stdin.write(json.dumps({"operation": operation, **arguments}) + "\n")
            self._worker.stdin.flush()
            answer = self._line(deadline, operation)
        if "error" in answer:
            raise (
                BadInput("option", operation, answer["error"], "use the commands")
                if answer["kind"] == "ValueError"
                else errors.from_words(answer["error"])
            )
        return answer["ok"]

    def _start(self, deadline: float) -> None:
        conf = [self._environment["SLURM_CONF"]] if self._environment.get("SLURM_CONF") else list(CONFIGURATIONS)
        if not any(os.access(path, os.R_OK) for path in conf):
            raise EngineUnavailable(
                f"pyslurm needs a readable slurm.conf, and {' or '.join(conf)} is not", 'eval "$(orchlab env)" sets SLURM_CONF'
            )
        self._worker = subprocess.Popen(
            [python(), str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=self._environment,
        )
        self._line(deadline, "import pyslurm")

    def _line(self, deadline: float, what: str) -> dict:
        """One answer. A worker that ends or hangs takes nothing else along."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._worker.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                self._end()
                raise TimeLimitReached(
                    f"pyslurm gave no answer to {what} within {self.seconds:g} s", "see whether the daemons run: orchlab status"
                )
        # The worker writes whole lines only.
        line = self._worker.stdout.readline()
        if not line:
            said = self._worker.communicate()[1].strip().splitlines()
            self._worker = None
            raise EngineUnavailable(
                f"pyslurm ended at {what}: {said[-1] if said else 'no word'}", "orchlab doctor says which pyslurm goes with this Slurm"
            )
        return json.loads(line)

    # -- what can be asked

    def version(self) -> str:
        return self._ask("version")

    def submit(self, request: JobRequest) -> int:
        request = request.with_directives()
        options = {
            "name": (["name"], request.job_name),
            "account": (["account"], request.account),
            "partition": (["partitions", "partition"], request.partition),
            "qos": (["qos"], request.qos),
            "nodes": (["nodes"], request.nodes),
            "ntasks": (["ntasks"], request.ntasks),
            "cpus": (["cpus_per_task"], request.cpus_per_task),
            "gres": (["gres_per_node"], request.gres),
            "gpus": (["gpus"], request.gpus),
            "gpus_per_task": (["gpus_per_task"], request.gpus_per_task),
            "memory": (["memory_per_node"], f"{request.mem}M" if request.mem else None),
            "time": (["time_limit"], minutes(request.time) if request.time else None),
            "array": (["array"], request.array),
            "dependency": (["dependencies"], request.dependency),
            "directory": (["working_directory"], request.chdir or os.getcwd()),
            "output": (["standard_output"], request.output),
            "error": (["standard_error"], request.error),
            "reservation": (["reservations", "reservation"], request.reservation),
            "constraint": (["constraints"], request.constraint),
            "comment": (["comment"], request.comment),
            "signal": (["signal"], request.signal),
            "requeue": (["is_requeueable"], request.requeue),
            "hold": (["priority"], 0 if request.hold else None),
            "environment": (["environment"], {**os.environ, **request.environment} if request.environment else None),
        }
        return int(
            self._ask("submit", script=request.script, **{key: value for key, value in options.items() if value[1] not in (None, "")})
        )

    def cancel(self, job: str, signal: str = "") -> None:
        if signal:
            self._ask("signal", job=_id(job), signal=signal)
        else:
            self._ask("cancel", job=_id(job))

    def hold(self, job: str) -> None:
        self._ask("hold", job=_id(job))

    def release(self, job: str) -> None:
        self._ask("release", job=_id(job))

    def requeue(self, job: str) -> None:
        self._ask("requeue", job=_id(job))

    def jobs(self) -> list[Job]:
        return sorted((_job(data) for data in self._ask("jobs")), key=lambda job: job.id)

    def steps(self) -> list[Step]:
        return [
            Step(
                f"{data['job_id']}.{data['id']}",
                data.get("name") or "",
                data.get("state") or "",
                _hosts(data.get("allocated_nodes")),
                data.get("start_time"),
            )
            for data in self._ask("steps")
        ]

    def nodes(self) -> list[Node]:
        return [_node(data) for data in self._ask("nodes")]

    def partitions(self) -> list[Partition]:
        return [
            Partition(
                data["name"],
                data.get("state") or "",
                shapes.hosts(data.get("nodes") or ""),
                _minutes(data.get("max_time")),
                _minutes(data.get("default_time")),
                _number(data.get("max_nodes")),
                _number(data.get("priority_tier")) or 0,
            )
            for data in self._ask("partitions")
        ]

    def reservations(self) -> list[Reservation]:
        return [
            Reservation(
                name,
                shapes.hosts(data.get("node_list") or data.get("nodes") or ""),
                tuple(shapes.words(data.get("users"))),
                tuple(shapes.words(data.get("accounts"))),
                data.get("start_time"),
                data.get("end_time"),
                tuple(shapes.words(data.get("flags"))),
            )
            for name, data in self._ask("reservations")
        ]

    def accounting(self, jobs: Sequence[str] = (), since: float | None = None) -> list[PastJob]:
        found = self._ask("accounting", ids=[_id(job) for job in jobs], since=int(since if since is not None else time.time() - DAY))
        return [_past_job(data) for data in found]


def _id(job: str) -> int:
    if not str(job).isdecimal():
        raise BadInput(
            "job", job, "is not a whole job; pyslurm knows tasks by their own ids only", "use the commands, or the task's id from jobs()"
        )
    return int(job)


def _number(value) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _minutes(value) -> int | None:
    return None if (found := _number(value)) is None else found * 60


def _hosts(value) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else shapes.hosts(value or "")


def _job(data: dict) -> Job:
    tasks, most = data.get("array_tasks_waiting") or "", _number(data.get("array_tasks_parallel"))
    state = data.get("state") or ""
    running = state in ("RUNNING", "SUSPENDED")
    names = shapes.hosts(data.get("allocated_nodes") or "")
    gpus = sum(int(count) for kind, count in (data.get("gres_per_node") or {}).items() if kind.startswith("gpu")) * (
        data.get("num_nodes") or 1
    )
    gpus = gpus or sum(_gpus(data.get(key)) for key in ("gpus", "gres_per_job"))
    held = tuple(
        _held(node, kind, item) for node, layout in (data.get("layout") or {}).items() for kind, item in (layout.get("gres") or {}).items()
    )
    counted = sum(item.count for item in held if item.name == "gpu")
    waiting = not running and state == "PENDING"
    return Job(
        id=data["id"],
        name=data.get("name") or "",
        user=data.get("user_name") or "",
        account=data.get("account") or "",
        partition=data.get("partition") or "",
        qos=data.get("qos") or "",
        state=state,
        reason="" if data.get("state_reason") in (None, "None") else data["state_reason"],
        array_id=data.get("array_id"),
        array_task=None if tasks else _number(data.get("array_task_id")),
        array_tasks=f"{tasks}%{most}" if tasks and most else tasks,
        het_id=data.get("heterogeneous_id"),
        het_offset=_number(data.get("heterogeneous_offset")),
        dependency=_dependency(data.get("dependencies")),
        priority=_number(data.get("priority")),
        nodes=names,
        node_count=data.get("num_nodes") or 0,
        cpus=data.get("cpus") or 0,
        tres={"gres/gpu": counted or gpus} if counted or gpus else {},
        held=held,
        submitted=data.get("submit_time"),
        started=None if waiting else data.get("start_time"),
        ended=None if waiting or running else data.get("end_time"),
        limit=_minutes(data.get("time_limit")),
        restarts=data.get("requeue_count") or 0,
        exit_code=data.get("exit_code") or 0,
        exit_signal=data.get("exit_code_signal") or 0,
        directory=data.get("working_directory") or "",
        output=data.get("standard_output") or "",
        reservation=data.get("reservation") or "",
    )


def _dependency(value) -> str:
    """pyslurm takes it apart; "" for none, else its own words."""
    return "" if not value else value if isinstance(value, str) else json.dumps(value)


def _gpus(value) -> int:
    if isinstance(value, dict):
        return sum(int(count) for count in value.values())
    return _number(value) or 0


def _held(node: str, kind: str, item: dict) -> Held:
    name, _, of_type = kind.partition(":")
    return Held(node, name, of_type, int(item.get("count") or 0), gres.indices(str(item.get("indexes") or "")))


def _node(data: dict) -> Node:
    state, *flags = (data.get("state") or "").split("+")
    return Node(
        data["name"],
        "MIXED" if state == "ALLOCATED" and 0 < (data.get("allocated_cpus") or 0) < (data.get("total_cpus") or 0) else state,
        tuple(flags),
        data.get("total_cpus") or 0,
        data.get("allocated_cpus") or 0,
        data.get("real_memory") or 0,
        data.get("allocated_memory") or 0,
        {kind: int(count) for kind, count in (data.get("configured_gres") or {}).items()},
        tuple(data.get("available_features") or ()),
        tuple(data.get("partitions") or ()),
        data.get("reason") or "",
    )


def _past_job(data: dict) -> PastJob:
    steps = tuple(
        PastStep(
            f"{data['id']}.{name}",
            step.get("name") or "",
            step.get("state") or "",
            step.get("start_time"),
            step.get("end_time"),
            step.get("exit_code") or 0,
        )
        for name, step in (data.get("steps") or {}).items()
    )
    return PastJob(
        data["id"],
        data.get("name") or "",
        data.get("user_name") or "",
        data.get("account") or "",
        data.get("partition") or "",
        str(data.get("qos") or ""),
        (data.get("state") or "").split()[0] if data.get("state") else "",
        data.get("array_id") or data.get("array_job_id"),
        _number(data.get("array_task_id")),
        shapes.hosts(data.get("nodelist") or ""),
        {},
        data.get("submit_time"),
        data.get("start_time"),
        data.get("end_time"),
        data.get("elapsed_time") or 0,
        data.get("exit_code") or 0,
        data.get("exit_code_signal") or 0,
        steps,
    )
