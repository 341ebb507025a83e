from datetime import UTC, datetime, timedelta

import pytest
from simulator_fakes import pod

from orchlab.simulator import logs
from orchlab.simulator.kubelet import _Options

START = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def at(seconds):
    return START + timedelta(seconds=seconds)


def stamp(moment):
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def with_state(state, last=None, seconds="10.000", **more):
    found = pod(notes={"orchlab/devices": '{"main": ["GPU-a", "GPU-b"]}', **({"orchlab/real-seconds": seconds} if seconds else {})}, **more)
    status = {"name": "main", "state": state, "lastState": {"terminated": last} if last else {}}
    found["status"] = {"phase": "Running", "containerStatuses": [status]}
    return found


def texts(found, now, container="main", previous=False):
    return [line.text for line in logs.lines(found, container, now, previous)]


RUNNING = {"running": {"startedAt": stamp(START)}}
ENDED = {"exitCode": 137, "reason": "OOMKilled", "startedAt": stamp(START), "finishedAt": stamp(at(5))}


def test_a_running_container_has_got_as_far_as_its_time():
    found = with_state(RUNNING)
    told = texts(found, at(4.5))
    assert told[0].startswith("SIMULATED by orchlab: image i was not pulled")
    assert "2 simulated GPUs: NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b" in told
    assert "run time 10m, the default (simulated), 10s of real time" in told
    assert told[-1] == "40 % of the run time"
    assert texts(found, at(100))[-1] == "90 % of the run time"


def test_lines_only_ever_come_on_top():
    found = with_state(RUNNING)
    earlier, later = texts(found, at(3)), texts(found, at(8))
    assert later[:len(earlier)] == earlier and len(later) > len(earlier)


def test_an_ended_container_tells_how_and_no_progress_after_that():
    told = texts(with_state({"terminated": ENDED}), at(60))
    assert told[-2:] == ["40 % of the run time", "ended: exit code 137 (OOMKilled)"]


def test_one_that_runs_until_deleted():
    assert texts(with_state(RUNNING, seconds=None), at(1))[-1] == "runs until it is deleted"


def test_the_previous_run():
    found = with_state(RUNNING, last=ENDED)
    assert texts(found, at(60), previous=True)[-1] == "ended: exit code 137 (OOMKilled)"
    # While it backs off, the log is that of the run before, as with a kubelet.
    assert texts(with_state({"waiting": {"reason": "CrashLoopBackOff"}}, last=ENDED), at(60))[-1] == "ended: exit code 137 (OOMKilled)"
    with pytest.raises(logs.NoLog, match='previous terminated container "main" in pod "p" not found'):
        texts(with_state(RUNNING), at(1), previous=True)


def test_nothing_to_show():
    with pytest.raises(logs.NoLog, match='container "main" in pod "p" is waiting to start: ContainerCreating'):
        texts(pod(), at(1))
    with pytest.raises(logs.NoLog, match='container "other" in pod "p" is not found'):
        texts(with_state(RUNNING), at(1), "other")


def test_when_a_log_is_complete():
    assert not logs.is_over(with_state(RUNNING), "main")
    assert logs.is_over(with_state({"terminated": ENDED}), "main")


LINES = [logs.Line(at(number), f"line {number}") for number in range(5)]


def shown(**query):
    options = _Options(query)
    return options.write(options.select(LINES)).decode()


def test_log_options():
    assert shown() == "".join(f"line {number}\n" for number in range(5))
    assert shown(tailLines="2") == "line 3\nline 4\n" and shown(tailLines="0") == "" and shown(tailLines="9") == shown()
    assert shown(sinceTime=stamp(at(3))) == "line 3\nline 4\n"
    assert shown(limitBytes="9") == "line 0\nli"
    assert shown(tailLines="1", timestamps="true") == "2026-01-01T12:00:04.000000000Z line 4\n"
    assert shown(sinceSeconds="1") == ""


@pytest.mark.parametrize("query", [{"tailLines": "x"}, {"limitBytes": "-1"}, {"sinceSeconds": "1.5"}, {"sinceTime": "yesterday"}])
def test_bad_log_options(query):
    with pytest.raises(ValueError):
        shown(**query)
