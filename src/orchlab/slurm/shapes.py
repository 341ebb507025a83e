"""Slurm's JSON in both generations (REST API up to v0.0.39 and 22.05's --json; typed numbers from v0.0.40 on) turned into the model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from orchlab.slurm import gres
from orchlab.slurm.model import Held, Job, Node, Partition, PastJob, PastStep, Qos, Reservation


def number(value: Any) -> int | None:
    """A number that may be plain, {"set", "infinite", "number"}, null, or one of Slurm's "no value" and "infinite" (the top of a type)."""
    if isinstance(value, dict):
        if value.get("infinite") or not value.get("set", True):
            return None
        value = value.get("number")
    if (
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or value < 0
        or value in (0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFE)
    ):
        return None
    return int(value)


def moment(value: Any) -> float | None:
    """A time; 0 means there is none."""
    return float(found) if (found := number(value)) else None


def words(value: Any) -> list[str]:
    """A list that may be a list, comma-separated text, or nothing."""
    if isinstance(value, str):
        return [word for word in value.split(",") if word and word != "(null)"]
    return [str(item) for item in value or []]


def hosts(text: Any) -> tuple[str, ...]:
    """Node names in a host list: "h100-[0-2,5],t4-0" → h100-0 … Zeros in front are kept."""
    if not isinstance(text, str) or text in ("", "(null)", "None assigned", "N/A"):
        return tuple(words(text)) if isinstance(text, list) else ()
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if not match:
            names.append(part)
            continue
        for span in match[2].split(","):
            low, _, high = span.partition("-")
            names.extend(f"{match[1]}{index:0{len(low)}d}{match[3]}" for index in range(int(low), int(high or low) + 1))
    return tuple(names)


def tres(text: Any) -> dict[str, int]:
    """ "cpu=2,mem=4G,gres/gpu=2" → numbers, memory in MiB; also accounting's list of {type, name, count}."""
    if isinstance(text, list):
        return {
            f"{item['type']}/{item['name']}" if item.get("name") else item["type"]: int(item["count"])
            for item in text
            if item.get("count") is not None
        }
    found = {}
    for pair in (text or "").split(","):
        name, _, value = pair.partition("=")
        if match := re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)", value):
            scale = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}[match[2]]
            found[name] = round(float(match[1]) * scale)
    return found


def state(value: Any) -> tuple[str, tuple[str, ...]]:
    """The base state and the flags beside it."""
    given = [word.upper() for word in (value if isinstance(value, list) else str(value or "").replace("+", ",").split(","))]
    base = [
        word
        for word in given
        if word not in (
            "COMPLETING",
            "CONFIGURING",
            "REQUEUED",
            "RESIZING",
            "SIGNALING",
            "STAGE_OUT",
            "SPECIAL_EXIT",
            "UPDATE_DB",
            "POWER_UP_NODE",
        )
    ]
    return (base or given or [""])[0], tuple(word for word in given if word not in base[:1])


def job(data: dict) -> Job:
    array_id, task = number(data.get("array_job_id")) or None, number(data.get("array_task_id"))
    tasks = _array_tasks(data)
    names = hosts(data.get("nodes") or (data.get("job_resources") or {}).get("nodes"))
    running = state(data.get("job_state"))[0] in ("RUNNING", "SUSPENDED", "COMPLETING")
    code, signal = _exit(data.get("exit_code"))
    het = number(data.get("het_job_id")) or None
    ended = state(data.get("job_state"))[0] not in ("PENDING", "RUNNING", "SUSPENDED")
    return Job(
        id=data["job_id"],
        name=data.get("name") or "",
        user=data.get("user_name") or "",
        account=data.get("account") or "",
        partition=data.get("partition") or "",
        qos=data.get("qos") or "",
        state=state(data.get("job_state"))[0],
        reason=_reason(data.get("state_reason")),
        array_id=array_id,
        array_task=task if array_id and not tasks else None,
        array_tasks=tasks,
        het_id=het,
        het_offset=number(data.get("het_job_offset")) if het else None,
        dependency=data.get("dependency") or "",
        priority=number(data.get("priority")),
        nodes=names,
        node_count=number(data.get("node_count")) or 0,
        cpus=number(data.get("cpus")) or 0,
        tres=tres(data.get("tres_alloc_str") if running else data.get("tres_req_str")) or tres(data.get("tres_req_str")),
        held=_held(names, data.get("gres_detail") or []) if running else (),
        submitted=moment(data.get("submit_time")),
        started=moment(data.get("start_time")) if running or ended else None,
        ended=moment(data.get("end_time")) if ended else None,
        limit=_seconds(data.get("time_limit")),
        restarts=number(data.get("restart_cnt")) or 0,
        exit_code=code,
        exit_signal=signal,
        directory=data.get("current_working_directory") or "",
        output=data.get("standard_output") or "",
        reservation=data.get("resv_name") or "",
    )


def _array_tasks(data: dict) -> str:
    """Waiting tasks as squeue writes them: the tasks and, behind %, how many may run at once."""
    tasks, most = data.get("array_task_string") or "", number(data.get("array_max_tasks"))
    return f"{tasks}%{most}" if tasks and most and "%" not in tasks else tasks


def _held(names: tuple[str, ...], details: Iterable[str]) -> tuple[Held, ...]:
    return tuple(
        Held(node, name, kind, count, indices)
        for node, text in zip(names, details, strict=False)
        for name, kind, count, indices in gres.devices(text)
    )


def _reason(text: Any) -> str:
    return "" if text in (None, "None", "NoReason") else str(text)


def _seconds(minutes: Any) -> int | None:
    found = number(minutes)
    return None if found is None else found * 60


def _exit(value: Any) -> tuple[int, int]:
    """Exit code and signal, from a wait status or from {"return_code", "signal"}."""
    if isinstance(value, dict):
        signal = value.get("signal") or {}
        return number(value.get("return_code")) or 0, number(signal.get("signal_id", signal.get("id"))) or 0
    status = number(value) or 0
    return status >> 8, status & 0x7F


def node(data: dict) -> Node:
    base, flags = state(data.get("state"))
    flags = tuple(dict.fromkeys([*flags, *(flag.upper() for flag in data.get("state_flags") or [])]))
    return Node(
        data["name"],
        base,
        flags,
        number(data.get("cpus")) or 0,
        number(data.get("alloc_cpus")) or 0,
        number(data.get("real_memory")) or 0,
        number(data.get("alloc_memory")) or 0,
        counts(data.get("gres")),
        tuple(words(data.get("features"))),
        tuple(words(data.get("partitions"))),
        data.get("reason") or "",
    )


def counts(text: Any) -> dict[str, int]:
    """ "gpu:t4:2,shard:t4:8" → {"gpu:t4": 2, "shard:t4": 8}. Sockets in brackets (S:0-1) are left out."""
    return {f"{name}:{kind}" if kind else name: count for name, kind, count, _ in gres.devices(text or "")}


def partition(data: dict) -> Partition:
    typed = isinstance(data.get("maximums"), dict)
    limits, defaults = data.get("maximums") or {}, data.get("defaults") or {}
    names = data["nodes"].get("configured") if isinstance(data.get("nodes"), dict) else data.get("nodes")
    most = number(limits.get("nodes") if typed else data.get("maximum_nodes_per_job"))
    up = data.get("partition", {}).get("state") if typed else data.get("state")
    return Partition(
        data["name"],
        state(up)[0],
        hosts(names),
        _seconds(limits.get("time") if typed else data.get("max_time_limit")),
        _seconds(defaults.get("time") if typed else data.get("default_time_limit")),
        most,
        number(data.get("priority", {}).get("tier") if typed else data.get("priority_tier")) or 0,
    )


def reservation(data: dict) -> Reservation:
    return Reservation(
        data["name"],
        hosts(data.get("node_list")),
        tuple(words(data.get("users"))),
        tuple(words(data.get("accounts"))),
        moment(data.get("start_time")),
        moment(data.get("end_time")),
        tuple(words(data.get("flags"))),
    )


def past_job(data: dict) -> PastJob:
    times, array = data.get("time") or {}, data.get("array") or {}
    code, signal = _exit(data.get("exit_code"))
    array_id = number(array.get("job_id")) or None
    return PastJob(
        data["job_id"],
        data.get("name") or "",
        data.get("user") or (data.get("association") or {}).get("user") or "",
        data.get("account") or "",
        data.get("partition") or "",
        data.get("qos") or "",
        state((data.get("state") or {}).get("current"))[0],
        array_id,
        number(array.get("task_id")) if array_id else None,
        hosts(data.get("nodes")),
        tres((data.get("tres") or {}).get("allocated")),
        moment(times.get("submission")),
        moment(times.get("start")),
        moment(times.get("end")),
        number(times.get("elapsed")) or 0,
        code,
        signal,
        tuple(_past_step(data["job_id"], step) for step in data.get("steps") or []),
    )


def _past_step(job_id: int, data: dict) -> PastStep:
    step, times = data.get("step") or {}, data.get("time") or {}
    name = str(step.get("id", "")).rpartition(".")[2] or str(step.get("id", ""))
    return PastStep(
        f"{job_id}.{name}",
        step.get("name") or "",
        state(data.get("state"))[0],
        moment(times.get("start")),
        moment(times.get("end")),
        _exit(data.get("exit_code"))[0],
    )


def qos(data: dict) -> Qos:
    limits, preempt = data.get("limits") or {}, data.get("preempt") or {}
    most = (limits.get("max") or {}).get("tres") or {}
    return Qos(
        data["name"],
        number(data.get("priority")) or 0,
        tuple(words(preempt.get("list"))),
        ",".join(words(preempt.get("mode"))).lower().replace("disabled", "cluster") or "cluster",
        _tres_text((most.get("per") or {}).get("user")),
        _tres_text(most.get("total")),
    )


def _tres_text(items: Any) -> str:
    return ",".join(f"{name}={count}" for name, count in tres(items or []).items())
