"""The supervisor over real processes: start, order, heal, restart on change, give up with the log, leave nothing."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from orchlab.errors import BadInput, EnvironmentBroken, TimeLimitReached
from orchlab.processes import Probe, ProcessSpec, levels
from orchlab.supervisor import MARK, Supervisor, leftovers

# Listens on a unix socket until it is told to stop; writes down when it started.
SERVER = """
import socket, sys, time
path, log = sys.argv[1:3]
import os
if os.path.exists(path): os.unlink(path)
server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen(64)
open(log, "a").write(f"{time.monotonic()} {os.getpid()}\\n")
print("listening", flush=True)
while True: server.accept()[0].close()
"""


@pytest.fixture
def supervisor(home):
    folder = home / "env"
    folder.mkdir()
    supervisor = Supervisor(folder)
    specs: list[ProcessSpec] = []
    supervisor.known = specs
    yield supervisor
    supervisor.stop(specs)
    assert leftovers(str(folder)) == []


def server(supervisor: Supervisor, name: str, **more) -> ProcessSpec:
    root = supervisor.folder.parent
    spec = ProcessSpec(name, (sys.executable, "-S", "-c", SERVER, str(root / f"{name}.sock"), str(root / f"{name}.started")),
                       Probe(f"unix:{root / f'{name}.sock'}"), stop_seconds=2, **more)
    supervisor.known.append(spec)
    return spec


def start(supervisor: Supervisor) -> bool:
    return supervisor.start(supervisor.known, {"PATH": os.environ["PATH"], MARK: str(supervisor.folder.parent)})


def pid(supervisor: Supervisor, name: str) -> int:
    return next(state.pid for state in supervisor.states(supervisor.known, {}) if state.name == name)


def kill(number: int) -> None:
    assert number > 1, "0 would be our own process group"
    os.kill(number, signal.SIGKILL)


def until(condition, seconds: float = 20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def started(supervisor: Supervisor, name: str) -> list[float]:
    return [float(line.split()[0]) for line in (supervisor.folder.parent / f"{name}.started").read_text().splitlines()]


def test_what_is_needed_starts_first(supervisor):
    server(supervisor, "second", needs=("first",))
    server(supervisor, "first")
    assert start(supervisor) is True
    supervisor.wait_ready(supervisor.known, 20)
    assert started(supervisor, "first") < started(supervisor, "second")
    assert all(state.healthy and state.memory > 0 for state in supervisor.states(supervisor.known, {}))


def test_a_killed_process_comes_back(supervisor):
    server(supervisor, "one")
    start(supervisor)
    supervisor.wait_ready(supervisor.known, 20)
    before = pid(supervisor, "one")
    kill(before)
    until(lambda: pid(supervisor, "one") not in (0, before))
    supervisor.wait_ready(supervisor.known, 20)


def test_a_killed_supervisor_takes_its_processes_along_and_start_heals(supervisor):
    server(supervisor, "one")
    start(supervisor)
    supervisor.wait_ready(supervisor.known, 20)
    child = psutil.Process(pid(supervisor, "one"))
    assert child.pid > 1
    child.parent().kill()
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert start(supervisor) is True
    supervisor.wait_ready(supervisor.known, 20)


def test_start_again_leaves_what_runs_alone_and_restarts_what_changed(supervisor):
    settings = supervisor.folder.parent / "settings"
    settings.write_text("a")
    server(supervisor, "one", files=(settings,))
    server(supervisor, "two")
    start(supervisor)
    supervisor.wait_ready(supervisor.known, 20)
    one, two = pid(supervisor, "one"), pid(supervisor, "two")
    assert start(supervisor) is False
    assert (pid(supervisor, "one"), pid(supervisor, "two")) == (one, two)
    settings.write_text("b")
    start(supervisor)
    supervisor.wait_ready(supervisor.known, 20)
    assert pid(supervisor, "one") != one and pid(supervisor, "two") == two


def test_start_adds_and_removes_processes(supervisor):
    server(supervisor, "one")
    start(supervisor)
    server(supervisor, "two")
    supervisor.known.pop(0)
    start(supervisor)
    supervisor.wait_ready(supervisor.known, 20)
    assert [line["name"] for line in supervisor._ask("getAllProcessInfo")] == ["two"]


def test_a_held_down_process_is_started_again_by_start(supervisor):
    server(supervisor, "one")
    start(supervisor)
    supervisor.wait_ready(supervisor.known, 20)
    supervisor.stop_process("one")
    assert [state.state for state in supervisor.states(supervisor.known, {})] == ["STOPPED"]
    start(supervisor)
    supervisor.wait_ready(supervisor.known, 20)


def test_a_program_that_is_not_there_is_named_at_once(supervisor):
    supervisor.known.append(ProcessSpec("ghost", ("/no/such/program",), Probe("file:/no/such/file")))
    start(supervisor)
    with pytest.raises(EnvironmentBroken, match="cannot execute /no/such/program: No such file or directory"):
        supervisor.wait_ready(supervisor.known, 20)


def test_a_process_that_keeps_dying_is_given_up_with_its_last_words(supervisor):
    supervisor.known.append(ProcessSpec("mayfly", ("/bin/sh", "-c", "echo the reason is this; exit 3"), Probe("file:/no/such/file")))
    start(supervisor)
    with pytest.raises(EnvironmentBroken, match="(?s)mayfly does not start.*the reason is this"):
        supervisor.wait_ready(supervisor.known, 60)


def test_a_process_that_never_gets_ready_ends_in_a_time_limit(supervisor):
    supervisor.known.append(ProcessSpec("slow", ("/bin/sh", "-c", "echo still thinking; exec sleep 60"), Probe("file:/no/such/file"), stop_seconds=1))
    start(supervisor)
    with pytest.raises(TimeLimitReached, match="(?s)slow not ready within 1 s.*/no/such/file is not there yet.*still thinking"):
        supervisor.wait_ready(supervisor.known, 1)


def test_stop_leaves_no_socket_and_no_process_even_of_one_that_ignores_sigterm(supervisor):
    stubborn = ProcessSpec("stubborn", (sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', flush=True); time.sleep(60)"),
                           Probe(f"unix:{supervisor.socket}"), stop_seconds=1)
    supervisor.known.append(stubborn)
    start(supervisor)
    until(lambda: "here" in supervisor.log_tail("stubborn"))
    supervisor.stop(supervisor.known)
    assert sorted(path.name for path in supervisor.folder.iterdir()) == ["stubborn.json", "supervisord.conf"]
    assert leftovers(str(supervisor.folder.parent)) == []


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path):
    with pytest.raises(BadInput, match="ORCHLAB_HOME"):
        Supervisor(tmp_path / ("x" * 100))


def test_levels_order_by_need_and_refuse_circles():
    def spec(name, *needs):
        return ProcessSpec(name, ("x",), Probe("file:x"), needs=needs)

    assert levels([spec("c", "b"), spec("a"), spec("b", "a"), spec("d", "a")]) == [["a"], ["b", "d"], ["c"]]
    with pytest.raises(ValueError, match="circle"):
        levels([spec("a", "b"), spec("b", "a")])


def test_percent_signs_and_spaces_in_paths(home):
    folder = home / "a %d b"
    folder.mkdir()
    supervisor = Supervisor(folder)
    supervisor.known = []
    server(supervisor, "one")
    try:
        start(supervisor)
        supervisor.wait_ready(supervisor.known, 20)
    finally:
        supervisor.stop(supervisor.known)


def test_logs_of_an_unknown_process(supervisor):
    assert supervisor.log_tail("nobody") == "(it wrote nothing)"
    assert isinstance(supervisor.logs, Path)
