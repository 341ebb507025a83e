"""Images of the docker backend are removed only if they are ours and no environment uses them."""

from __future__ import annotations

import json

import pytest

from orchlab.slurm import images

DOCKER = """#!/bin/sh
echo "$@" >>{log}
case "$1 $2" in
    "image ls") printf 'orchlab-slurm:old\\norchlab-slurm:mine\\norchlab-slurm:busy\\norchlab-slurm:<none>\\nsomebody/orchlab-slurm:1\\n';;
    "image rm") [ "$3" != orchlab-slurm:busy ];;
esac
"""


@pytest.fixture
def docker(tmp_path, home, monkeypatch):
    """A docker command of the test's own; returns what it was asked."""
    log, program = tmp_path / "log", tmp_path / "docker"

    def write(text: str):
        program.write_text(text)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return log

    return write


def test_ours_that_nobody_uses_are_removed(docker, home, tmp_path):
    log = docker(DOCKER.format(log=tmp_path / "log"))
    (home / "lab" / "slurm-docker").mkdir(parents=True)
    (home / "lab" / "slurm-docker" / "chosen.json").write_text(json.dumps({"image": "orchlab-slurm:mine"}))
    assert images.prune() == ["orchlab-slurm:old"]
    asked = log.read_text().splitlines()
    assert "label=orchlab=slurm" in asked[0]
    assert asked[1:] == ["image rm orchlab-slurm:busy", "image rm orchlab-slurm:old"], "never by force, never another name"


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nexec sleep 60\n"], ids=["refuses", "hangs"])
def test_an_engine_that_does_not_answer_is_passed_over(docker, monkeypatch, text):
    monkeypatch.setattr(images, "SECONDS", 0.3)
    docker(text)
    assert images.prune() == []


def test_without_docker(home, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert images.prune() == []
