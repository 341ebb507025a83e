"""What `kubectl logs` shows of a simulated container. Its program never ran, and every log says so first.

The lines follow from the pod alone (its devices, its start and end), so they are the same whenever they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from orchlab import clock
from orchlab.simulator import pods
from orchlab.simulator.settings import DEFAULT_RUN_SECONDS

PROGRESS_LINES = 10


class NoLog(Exception):
    """There is nothing to show; the text is what a kubelet answers."""


@dataclass(frozen=True)
class Line:
    at: datetime
    text: str


@dataclass(frozen=True)
class Run:
    """One run of a container: `exit` is (code, reason) once it has ended."""

    started: datetime
    ended: datetime | None = None
    exit: tuple[int, str] | None = None


def lines(pod: dict, container: str, now: datetime, previous: bool = False, course: Sequence[tuple[datetime, int]] = ()) -> list[Line]:
    """The log up to `now` of the container's current run, or of the one before; `course` says how many pods of its barrier were Running
    when. Raises NoLog."""
    spec = next((c for key in ("containers", "initContainers") for c in pod["spec"].get(key) or [] if c["name"] == container), None)
    if spec is None:
        raise NoLog(f'container "{container}" in pod "{pod["metadata"]["name"]}" is not found')
    run = _run(pod, container, previous)
    return [line for line in _told(pod, spec, run, course) if line.at <= now]


def is_over(pod: dict, container: str) -> bool:
    """Whether the container's log is complete."""
    status = _status(pod, container)
    return pods.is_over(pod) or "terminated" in (status.get("state") or {})


def _status(pod: dict, container: str) -> dict:
    status = pod.get("status") or {}
    found = [s for key in ("containerStatuses", "initContainerStatuses") for s in status.get(key) or [] if s["name"] == container]
    return found[0] if found else {}


def _run(pod: dict, container: str, previous: bool) -> Run:
    status, name = _status(pod, container), pod["metadata"]["name"]
    state = status.get("state") or {}
    last = (status.get("lastState") or {}).get("terminated")
    if previous or ("waiting" in state and last):
        if not last:
            raise NoLog(f'previous terminated container "{container}" in pod "{name}" not found')
        return _ended(last)
    if "terminated" in state and state["terminated"].get("startedAt"):
        return _ended(state["terminated"])
    if "running" in state:
        return Run(_moment(state["running"]["startedAt"]))
    reason = (state.get("waiting") or {}).get("reason") or "ContainerCreating"
    raise NoLog(f'container "{container}" in pod "{name}" is waiting to start: {reason}')


def _ended(terminated: dict) -> Run:
    return Run(_moment(terminated["startedAt"]), _moment(terminated["finishedAt"]), (terminated["exitCode"], terminated.get("reason", "")))


def _told(pod: dict, spec: dict, run: Run, course: Sequence[tuple[datetime, int]]) -> Iterator[Line]:
    metadata, notes = pod["metadata"], pod["metadata"].get("annotations") or {}
    devices = pods.held_devices(pod).get(spec["name"], [])
    yield Line(run.started, f"SIMULATED by orchlab: image {spec.get('image', '')} was not pulled and its program does not run.")
    node = pod["spec"].get("nodeName", "")
    yield Line(run.started, f"pod {metadata['namespace']}/{metadata['name']}, container {spec['name']}, node {node}")
    if devices:
        many = "s" if len(devices) > 1 else ""
        yield Line(run.started, f"{len(devices)} simulated GPU{many}: NVIDIA_VISIBLE_DEVICES={','.join(devices)}")
    else:
        yield Line(run.started, "no GPU requested")
    if pods.LOG in notes and spec is pod["spec"]["containers"][0]:
        yield from (Line(run.started, line) for line in notes[pods.LOG].splitlines())
    if pods.INIT_ERROR in notes and run.exit and run.exit[0] and spec not in pod["spec"]["containers"]:
        yield Line(run.started, notes[pods.INIT_ERROR])
    seconds = float(notes.get(pods.REAL_SECONDS) or 0)
    begun: datetime | None = run.started
    if spec in pod["spec"]["containers"] and (barrier := pods.barrier(pod)):
        begun = _moment(notes[pods.RELEASED]) if pods.RELEASED in notes else None
        yield from _waited(pod, barrier, run, begun, course)
        begun = begun and max(begun, run.started)
    if begun is None:
        pass
    elif spec in pod["spec"]["containers"] and seconds:
        declared = notes.get(pods.RUN_FOR, f"{clock.format(DEFAULT_RUN_SECONDS)}, the default")
        yield Line(begun, f"run time {declared} (simulated), {clock.format(seconds)} of real time")
        for step in range(1, PROGRESS_LINES):
            at = begun + timedelta(seconds=seconds * step / PROGRESS_LINES)
            if run.ended is None or at < run.ended:
                yield Line(at, f"{100 * step // PROGRESS_LINES} % of the run time")
    elif run.ended is None:
        yield Line(begun, "runs until it is deleted")
    if run.exit and run.ended:
        code, reason = run.exit
        yield Line(run.ended, f"ended: exit code {code}{f' ({reason})' if reason else ''}")


def _waited(pod: dict, barrier: pods.Barrier, run: Run, released: datetime | None, course: Sequence[tuple[datetime, int]]) -> Iterator[Line]:
    """How a run waited at its barrier; the end of the wait stands on the pod, its course in between is known only while it lasts."""
    if released and released < run.started.replace(microsecond=0):
        yield Line(run.started, f"barrier {barrier.name}: was released before this run")
        return
    until = min((at for at in (released, run.ended) if at), default=None)
    limit = f", {clock.format(barrier.seconds)} of real time at most" if barrier.seconds is not None else ""
    yield Line(run.started, f"barrier {barrier.name}: waits until {barrier.size} of its pods are Running at once{limit}")
    for at, present in course:
        if at >= run.started and (until is None or at < until):
            yield Line(at, f"waiting at the barrier: {present} of {barrier.size}")
    missed = pods.missed(pod)
    if released:
        yield Line(released, f"the barrier is released after {clock.format(max(0.0, (released - run.started).total_seconds()))}")
    elif missed and run.ended and run.exit == (1, "Error"):
        yield Line(run.ended, f"barrier timeout: {missed[1]} of {missed[2]} pods were there")


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
