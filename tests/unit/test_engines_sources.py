"""Where a binary comes from: the cache, PATH, a release."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading

import pytest
from engines_support import Recorder, Releases, archive, engine, module, program, script, sha256, unfinished

from orchlab import engines
from orchlab.engines import acquire, cache, download
from orchlab.engines.spec import system
from orchlab.errors import BadInput, EngineUnavailable, OrchlabError

OS, ARCH = system()
BASE = "https://dl.example.invalid/v{version}/{os}/{arch}/tiny"
BARE = f'url = "{BASE}"\nchecksum = "{BASE}.sha256"'
PACKED = (
    'url = "https://dl.example.invalid/v{version}/tiny-{os}-{arch}.tar.gz"\nchecksum = "https://dl.example.invalid/v{version}/SHA256SUMS"\n'
    'member = "tiny-{os}-{arch}/bin/tiny"'
)
PATH = f"/v1.2.3/{OS}/{ARCH}/tiny"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder for engines; the cache, PATH and the network settings are the test's own."""
    monkeypatch.setenv("ORCHLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    for name in ("ORCHLAB_MIRROR", "ORCHLAB_NO_DOWNLOAD", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download, "_unreachable", {})
    return tmp_path / "engines"


@pytest.fixture
def releases(place, monkeypatch):
    server = Releases()
    monkeypatch.setenv("ORCHLAB_MIRROR", server.address)
    yield server
    server.close()


def serve_bare(releases: Releases, content: bytes = script("1.2.3"), digest: str = "") -> None:
    releases.files |= {PATH: content, f"{PATH}.sha256": (digest or sha256(content)).encode()}


# ---- PATH


def test_a_binary_on_path_with_the_pinned_version_is_used_where_it_is(place, tmp_path):
    engine(place, download=BARE)
    mine = program(tmp_path / "bin" / "tiny")
    assert engines.ensure(["tiny"], allow=["path"], folder=place) == {"tiny": mine}
    mine.rename(tmp_path / "tiny")
    with pytest.raises(EngineUnavailable, match="not in the cache"):
        engines.ensure(["tiny"], allow=["cache"], folder=place)


def test_the_version_command_is_not_run_again_for_a_known_binary(place, tmp_path):
    engine(place, download=BARE)
    mine = program(tmp_path / "bin" / "tiny")
    mine.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\necho v1.2.3\n")
    for _ in range(3):
        engines.ensure(["tiny"], allow=["cache", "path"], folder=place)
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.parametrize("says", ["v1.2.30", "v1.2", "v1.2.3-rc.1", "v1.2.3+k3s1", "v11.2.3", "nothing"])
def test_another_version_on_path_is_left_alone(place, tmp_path, says):
    engine(place, download=BARE)
    program(tmp_path / "bin" / "tiny").write_text(f"#!/bin/sh\necho {says}\n")
    with pytest.raises(EngineUnavailable, match=r"bin/tiny is not version 1\.2\.3: it says"):
        engines.ensure(["tiny"], allow=["path"], folder=place)


@pytest.mark.parametrize(
    ("body", "problem"), [("sleep 60", "did not end within"), ("exit 3", "ended with status 3"), ("kill -SEGV $$", "ended with status")]
)
def test_a_binary_on_path_that_does_not_answer(place, tmp_path, monkeypatch, body, problem):
    monkeypatch.setattr("orchlab.engines.running.VERSION_LIMIT", 0.5)
    engine(place, download=BARE)
    program(tmp_path / "bin" / "tiny").write_text(f"#!/bin/sh\necho v1.2.3\nexec sh -c '{body}'\n")
    with pytest.raises(EngineUnavailable, match=problem):
        engines.ensure(["tiny"], allow=["path"], folder=place)


# ---- releases


def test_a_release_is_fetched_checked_and_kept(place, releases):
    engine(place, download=BARE)
    serve_bare(releases)
    told = Recorder()
    found = engines.ensure(["tiny"], told, folder=place)["tiny"]
    assert found.read_bytes() == script("1.2.3")
    assert os.access(found, os.X_OK)
    assert [event.fraction for event in told if event.phase == "downloading"][-1] == 1.0
    assert told.said("found") == "1.2.3 (download)"
    asked = list(releases.asked)
    assert engines.ensure(["tiny"], folder=place)["tiny"] == found
    assert releases.asked == asked, "the second time nothing is asked for"
    assert not unfinished(place.parent / "cache")


def test_a_packed_release_gives_the_named_member(place, releases):
    engine(place, download=PACKED)
    packed = archive(f"tiny-{OS}-{ARCH}/bin/tiny", script("1.2.3"))
    sums = f"{'0' * 64}  other.tar.gz\n{sha256(packed)} *tiny-{OS}-{ARCH}.tar.gz\n"
    releases.files |= {f"/v1.2.3/tiny-{OS}-{ARCH}.tar.gz": packed, "/v1.2.3/SHA256SUMS": sums.encode()}
    assert engines.ensure(["tiny"], folder=place)["tiny"].read_bytes() == script("1.2.3")


def test_a_pinned_digest_needs_no_published_one(place, releases):
    content = script("1.2.3")
    engine(place, download=f'url = "https://dl.example.invalid/tiny"\nsha256 = {{{OS}-{ARCH} = "{sha256(content)}"}}')
    releases.files["/tiny"] = content
    assert engines.ensure(["tiny"], folder=place)["tiny"].read_bytes() == content
    assert releases.asked == ["/tiny"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda files: files.update({f"{PATH}.sha256": b"0" * 64}), "wrong checksum: [0-9a-f]{64} instead of 0{64}"),
        (lambda files: files.update({f"{PATH}.sha256": b"<html>Sign in</html>"}), "do not name tiny"),
        (lambda files: files.pop(f"{PATH}.sha256"), "tiny.sha256 answered 404"),
        (lambda files: files.pop(PATH), "tiny answered 404"),
    ],
)
def test_a_release_that_cannot_be_trusted_is_not_kept(place, releases, change, problem):
    engine(place, download=BARE)
    serve_bare(releases)
    change(releases.files)
    with pytest.raises(EngineUnavailable, match=problem):
        engines.ensure(["tiny"], folder=place)
    assert not list((place.parent / "cache" / "engines").glob("tiny/*"))
    assert not unfinished(place.parent / "cache")


def test_a_release_with_a_right_checksum_and_another_version_is_not_kept(place, releases):
    engine(place, download=BARE)
    serve_bare(releases, script("1.2.4"))
    with pytest.raises(EngineUnavailable, match=r"is not version 1\.2\.3: it says 'tiny v1\.2\.4'"):
        engines.ensure(["tiny"], folder=place)


def test_an_archive_without_the_member_or_of_another_kind(place, releases):
    engine(place, download=PACKED)
    for content, problem in ((archive("readme", b"x"), "has no file"), (b"not an archive", "cannot be read")):
        releases.files |= {
            f"/v1.2.3/tiny-{OS}-{ARCH}.tar.gz": content,
            "/v1.2.3/SHA256SUMS": f"{sha256(content)}  tiny-{OS}-{ARCH}.tar.gz".encode(),
        }
        with pytest.raises(EngineUnavailable, match=problem):
            engines.ensure(["tiny"], folder=place)


def test_a_connection_cut_once_is_tried_again_and_cut_twice_is_given_up(place, releases):
    engine(place, download=BARE)
    serve_bare(releases)
    releases.cut[PATH] = 2
    with pytest.raises(EngineUnavailable, match="was cut off twice"):
        engines.ensure(["tiny"], folder=place)
    assert not list((place.parent / "cache" / "engines").glob("tiny/*"))
    releases.cut[PATH] = 1
    assert engines.ensure(["tiny"], folder=place)["tiny"].read_bytes() == script("1.2.3")


def test_a_host_that_refuses_is_asked_once_per_run(place, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        monkeypatch.setenv("ORCHLAB_MIRROR", f"http://127.0.0.1:{taken.getsockname()[1]}")
        tried = []
        connect = socket.create_connection
        monkeypatch.setattr(socket, "create_connection", lambda *args, **more: (tried.append(args[0]), connect(*args, **more))[1])
        for name in ("tiny", "small"):
            engine(place, name, download=BARE)
        for name in ("tiny", "small"):
            with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:\d+ cannot be reached \(Connection refused\)"):
                engines.ensure([name], folder=place)
        assert len(tried) == 1


def test_a_host_that_never_answers_is_given_up(place, monkeypatch):
    monkeypatch.setattr(download, "REACH_LIMIT", 0.5)
    with socket.socket() as full, socket.socket() as filler:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        filler.connect(full.getsockname())  # the queue is full now: the kernel drops further attempts
        monkeypatch.setenv("ORCHLAB_MIRROR", f"http://127.0.0.1:{full.getsockname()[1]}")
        engine(place, download=BARE)
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            engines.ensure(["tiny"], folder=place)


def test_a_host_that_takes_the_connection_and_says_nothing_is_given_up(place, monkeypatch):
    monkeypatch.setattr(download, "READ_LIMIT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("ORCHLAB_MIRROR", f"http://127.0.0.1:{mute.getsockname()[1]}")
        engine(place, download=BARE)
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            engines.ensure(["tiny"], folder=place)


def test_a_name_that_hangs_in_the_resolver_is_given_up(place, monkeypatch):
    monkeypatch.setattr(download, "REACH_LIMIT", 0.2)
    answer = threading.Event()

    def hang(*_: object) -> None:
        answer.wait(60)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", hang)
    engine(place, download=BARE)
    with pytest.raises(EngineUnavailable, match=r"dl\.example\.invalid cannot be reached \(no answer within 0 s\)"):
        engines.ensure(["tiny"], folder=place)
    answer.set()


def test_downloads_can_be_switched_off(place, releases, monkeypatch):
    monkeypatch.setenv("ORCHLAB_NO_DOWNLOAD", "1")
    engine(place, download=BARE)
    serve_bare(releases)
    with pytest.raises(EngineUnavailable, match="switched off by ORCHLAB_NO_DOWNLOAD"):
        engines.ensure(["tiny"], folder=place)
    assert not releases.asked


@pytest.mark.parametrize("mirror", ["http://mirror.example.invalid", "mirror.example.invalid", "ftp://x"])
def test_a_mirror_without_tls_or_that_is_no_address_is_refused(place, monkeypatch, mirror):
    monkeypatch.setenv("ORCHLAB_MIRROR", mirror)
    engine(place, download=BARE)
    with pytest.raises(BadInput, match="ORCHLAB_MIRROR"):
        engines.ensure(["tiny"], folder=place)


def test_a_proxy_is_used_for_other_hosts_and_never_for_loopback(place, releases, monkeypatch):
    serve_bare(releases)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTPS_PROXY", releases.address)
    engine(place, download=BARE)
    assert engines.ensure(["tiny"], folder=place)["tiny"]
    monkeypatch.delenv("ORCHLAB_MIRROR")
    engine(place, "small", download=BARE)
    with pytest.raises(EngineUnavailable, match=r"dl\.example\.invalid cannot be reached"):
        engines.ensure(["small"], folder=place)
    assert releases.asked[-1] == "CONNECT dl.example.invalid:443"
    monkeypatch.setenv("NO_PROXY", "dl.example.invalid")
    assert download._proxy("https://dl.example.invalid/x") == ""


@pytest.mark.parametrize("text", ["", "zz  tiny", f"{'a' * 64}  other", f"{'a' * 63}  tiny", f"{'a' * 64}\n{'b' * 64}"])
def test_a_checksum_file_that_does_not_settle_it(text):
    with pytest.raises(download.DownloadFailed):
        download.find_digest(text, "tiny")


def test_a_failed_release_is_explained_in_one_line_and_leads_to_the_build(place, releases, monkeypatch):
    made = []
    module(place, "tiny", "small")
    monkeypatch.setattr(acquire, "_build", lambda members, *_: made.extend(each.name for each in members) or {})
    for name in ("tiny", "small"):
        file = place / name / "engine.toml"
        file.write_text(file.read_text().replace("[build]", f"[download]\n{BARE}\n[build]"))
    told = Recorder()
    with pytest.raises(EngineUnavailable):
        engines.ensure(["tiny", "small"], told, folder=place)
    assert made == ["tiny", "small"]
    assert len([event for event in told if event.phase == "note"]) == 1
    assert told.said("note").endswith("answered 404 Not Found; building from source")


# ---- the cache


@pytest.fixture
def kept(place, releases):
    engine(place, download=BARE)
    serve_bare(releases)
    found = engines.ensure(["tiny"], folder=place)["tiny"]
    releases.asked.clear()
    return found


def test_a_binary_that_was_changed_is_made_anew(place, releases, kept):
    kept.write_bytes(kept.read_bytes() + b"# more\n")
    assert engines.ensure(["tiny"], folder=place)["tiny"].read_bytes() == script("1.2.3")
    assert releases.asked


def test_a_binary_that_was_cut_short_or_is_gone_is_made_anew(place, releases, kept):
    kept.write_bytes(b"")
    assert engines.ensure(["tiny"], folder=place)["tiny"].read_bytes() == script("1.2.3")
    kept.unlink()
    assert engines.ensure(["tiny"], folder=place)["tiny"].read_bytes() == script("1.2.3")
    (kept.parent / cache.RECORD).write_text("{")
    assert engines.ensure(["tiny"], folder=place)["tiny"].read_bytes() == script("1.2.3")


def test_a_copied_cache_is_read_once_and_believed(place, releases, kept):
    os.utime(kept, (1, 1))
    assert engines.ensure(["tiny"], folder=place)["tiny"] == kept
    assert not releases.asked
    assert cache.read(kept.parent).mtime_ns == 1_000_000_000


def test_a_change_with_the_same_size_and_time_is_found_by_the_listing(place, releases, kept):
    status = kept.stat()
    kept.write_bytes(kept.read_bytes().replace(b"tiny", b"evil"))
    os.utime(kept, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [state.state for state in engines.listing(place)] == ["corrupt"]
    assert engines.ensure(["tiny"], folder=place)["tiny"].read_bytes() == script("1.2.3")
    (ready,) = engines.listing(place)
    assert (ready.state, ready.source, ready.path, ready.size) == ("ready", "download", kept, len(script("1.2.3")))
    assert ready.sha256 == sha256(script("1.2.3"))
    assert ready.detail == releases.address + PATH


def test_another_version_asks_for_another_binary_and_prune_removes_the_old(place, releases, kept):
    engine(place, version="1.2.4", download=BARE)
    assert [state.state for state in engines.listing(place)] == ["missing", "unused"]
    newer = PATH.replace("1.2.3", "1.2.4")
    releases.files |= {newer: script("1.2.4"), f"{newer}.sha256": sha256(script("1.2.4")).encode()}
    new = engines.ensure(["tiny"], folder=place)["tiny"]
    assert new != kept
    assert kept.exists()
    assert engines.prune(folder=place) > len(script("1.2.3"))
    assert not kept.parent.exists()
    assert [(state.version, state.state) for state in engines.listing(place)] == [("1.2.4", "ready")]
    assert engines.prune(folder=place) == 0


def test_prune_leaves_what_is_running(place, kept):
    shutil.copy("/bin/sleep", kept)
    with subprocess.Popen([kept, "60"]) as process:
        try:
            engine(place, version="1.2.4", download=BARE)
            engines.prune(folder=place)
            assert kept.exists()
        finally:
            process.kill()
    engines.prune(folder=place)
    assert not kept.exists()


def test_prune_removes_what_dead_runs_left_and_our_go_caches_only_when_asked(place, kept):
    home = place.parent / "cache"
    left = home / "engines" / ".work" / "tiny@dead"
    left.mkdir()
    (left / "half").write_bytes(b"x" * 1000)
    module_file = home / "go" / "mod" / "example@v1" / "x.go"
    module_file.parent.mkdir(parents=True)
    module_file.write_bytes(b"y" * 5000)
    module_file.chmod(0o444)
    module_file.parent.chmod(0o555)  # as Go leaves it
    assert engines.prune(folder=place) == 1000
    assert not left.exists()
    assert engines.prune(everything=True, folder=place) == 5000
    assert not (home / "go").exists()
    assert kept.exists()


def test_prune_leaves_the_work_of_another(place, kept):
    with cache.lock("tiny", lambda _: None, "tiny", 1) as work:
        (work / "half").write_bytes(b"x")
        assert engines.prune(everything=True, folder=place) == 0
        assert (work / "half").exists()
    assert not work.exists()


def test_a_cache_that_cannot_be_made_is_said_so(place, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ORCHLAB_CACHE", str(tmp_path / "file" / "cache"))
    engine(place, download=BARE)
    with pytest.raises(OrchlabError, match="set ORCHLAB_CACHE"):
        engines.ensure(["tiny"], folder=place)


def test_a_source_that_does_not_exist_is_refused(place):
    with pytest.raises(BadInput, match="known are: cache, path, download, build"):
        engines.ensure([], allow=["internet"], folder=place)
