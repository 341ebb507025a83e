"""scripts/build-node-image without building: its options, its refusals, the image's name, the stand-in for docker."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchlab import engines
from orchlab.paths import repository

SCRIPT = repository() / "scripts" / "build-node-image"
STAND_IN = repository() / "node-image" / "docker-without-sys-resource"


@pytest.fixture(scope="module")
def builder():
    spec = importlib.util.spec_from_file_location("build_node_image", repository() / "node-image" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path) -> Path:
    """A checkout's engines and node-image, to be changed."""
    for name in ("engines", "node-image"):
        shutil.copytree(repository() / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"} | variables
    return subprocess.run([str(SCRIPT), *words], capture_output=True, text=True, timeout=60, check=False, env=env)


def programs(folder: Path, **scripts: str) -> str:
    """A PATH of a few commands only."""
    folder.mkdir()
    for name in ("bash", "dirname", "readlink", "rm"):
        (folder / name).symlink_to(shutil.which(name))
    (folder / "python").write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    for path in folder.iterdir():
        if not path.is_symlink():
            path.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("words", [("--suite", "sid"), ("--uncheck",), ("extra",)])
def test_an_unknown_option_is_named(words):
    done = run(*words)
    assert done.returncode == 2 and f"unrecognized arguments: {' '.join(words)}" in done.stderr and "usage: scripts/build-node-image" in done.stderr


def test_without_docker_it_says_what_to_install(tmp_path):
    done = run(PATH=programs(tmp_path / "bin"))
    assert done.returncode == 1 and done.stderr.startswith("error: there is no docker command\n→ install the Docker Engine")


def test_without_an_engine_that_answers_it_says_so(tmp_path):
    done = run(PATH=programs(tmp_path / "bin", docker="echo 'Cannot connect to the Docker daemon at unix:///x' >&2; exit 1"))
    assert done.returncode == 1 and done.stderr.startswith("error: ") and "→" in done.stderr and "Traceback" not in done.stderr


def test_an_image_that_is_there_is_not_built_again(tmp_path):
    path = programs(tmp_path / "bin", docker=f'echo "$*" >>{tmp_path}/asked')
    done = run(PATH=path)
    assert done.returncode == 0 and done.stdout == f"{run('--tag').stdout.strip()} is there\n"
    assert "build" not in (tmp_path / "asked").read_text().split()


def test_a_failed_build_leaves_nothing_and_shows_its_last_words(tmp_path, builder, monkeypatch, capsys):
    path = programs(tmp_path / "bin", docker=f'echo "$*" >>{tmp_path}/asked\ncase $1 in version) ;; image) [ "$4 $5" = "{{{{.Id}}}} here" ];; '
                                             'build) echo "E: no such package"; exit 100;; *) exit 1;; esac')
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(builder.engines, "ensure", lambda names, progress: dict.fromkeys(names, Path("/bin/true")))
    monkeypatch.setattr(builder, "_gather", lambda context, *_: context.mkdir() or "pause:1")
    monkeypatch.setattr(builder.tempfile, "mkdtemp", lambda: (tmp_path / "work").mkdir() or str(tmp_path / "work"))
    assert builder.main(["--base", "here"]) == 1
    said = capsys.readouterr()
    assert "docker build failed (status 100); it said last:\nE: no such package" in said.err and "step 4 of 4" in said.out
    assert not (tmp_path / "work").exists()
    assert "image prune --force --filter label=orchlab=kind-node" in (tmp_path / "asked").read_text()


def test_the_name_says_the_version_of_kubernetes(builder):
    assert builder.tag(builder.BASE, repository()).startswith(f"orchlab/kind-node:v{engines.load('kube-apiserver').version}-")
    versions = {engines.load(name).version for name in (*builder.ON_NODE, *builder.IN_IMAGES) if name.startswith("kube")}
    assert versions == {engines.load("kube-apiserver").version}


def test_the_name_changes_with_each_input(builder, copy):
    assert builder.tag("base", copy) == builder.tag("base", copy) == builder.tag("base", repository())
    seen = {builder.tag("base", copy), builder.tag("other", copy)}
    paths = builder.inputs(copy)
    assert {"Dockerfile", "prepare-node", "import-images", "main.go", "build.py", "go.sum", "engine.toml", "default-cni.yaml"} <= {path.name for path in paths}
    for path in paths:
        old = path.read_bytes()
        path.write_bytes(old + b"\n")
        seen.add(builder.tag("base", copy))
        path.write_bytes(old)
    assert len(seen) == len(paths) + 2
    (copy / "node-image" / "docker-without-sys-resource").write_text("not in the image")
    assert builder.tag("base", copy) in seen


def test_the_manifest_names_the_image_that_is_made(builder):
    assert f"image: {builder.OWN_IMAGE}\n" in (repository() / "node-image/files/kind/manifests/default-cni.yaml").read_text()


def stand_in(tmp_path: Path, *words: str) -> list[str]:
    """What the real docker is given."""
    path = programs(tmp_path / "bin", docker="printf '%s\\n' \"$@\"")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "docker").symlink_to(STAND_IN)
    done = subprocess.run([tmp_path / "first" / "docker", *words], capture_output=True, text=True, timeout=30, check=True,
                          env={"PATH": f"{tmp_path / 'first'}:{path}"})
    return done.stdout.splitlines()


def test_the_stand_in_asks_for_all_but_one_capability(tmp_path):
    given = stand_in(tmp_path, "run", "--name", "a b", "--privileged", "image", "echo", "--privileged")
    assert given[:7] == ["run", "--name", "a b", "--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE"]
    assert given[-5:] == ["--device-cgroup-rule", "a *:* rwm", "image", "echo", "--privileged"]


def test_the_stand_in_changes_nothing_else(tmp_path):
    assert stand_in(tmp_path, "ps", "--privileged", "-a") == ["ps", "--privileged", "-a"]


def test_in_exec_the_stand_in_drops_the_flag(tmp_path):
    assert stand_in(tmp_path, "exec", "--privileged", "-i", "node", "cat", "a b") == ["exec", "-i", "node", "cat", "a b"]


def test_the_stand_in_alone_says_so(tmp_path):
    path = programs(tmp_path / "bin")
    (tmp_path / "bin" / "docker").symlink_to(STAND_IN)
    done = subprocess.run([tmp_path / "bin" / "docker", "ps"], capture_output=True, text=True, timeout=30, check=False, env={"PATH": path})
    assert done.returncode == 127 and "there is none on PATH" in done.stderr
