"""The docker backend's parts that need no engine: the compose file, the commands' stand-ins on this machine, what is said when Docker is missing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from orchlab.errors import EngineUnavailable
from orchlab.fleet import from_data
from orchlab.paths import repository
from orchlab.slurm import compose, containers, login

VALUES = dict.fromkeys(("ORCHLAB_IMAGE", "ORCHLAB_ID", "ORCHLAB_FOLDER", "ORCHLAB_USER", "ORCHLAB_REST_PORT", "ORCHLAB_TIMEZONE", "ORCHLAB_CONFIGURATION",
                        "ORCHLAB_DATABASE_CONFIGURATION"), "value")
FLEET = {"zones": {"zone-a": ["rack-a1"]}, "pools": [{"name": "gpu", "count": 2, "gpus": {"model": "H100-80", "count": 8}, "cpu": 96, "memory": "1Ti"}]}


def test_the_fleets_nodes_become_services_beside_the_daemons():
    data = yaml.safe_load(compose.render("try", VALUES | {"ORCHLAB_FOLDER": "/a $folder"}, from_data(FLEET).nodes(), {Path("/some/${where}"): True}))
    assert set(data["services"]) == {*compose.PARTS, "gpu-0", "gpu-1"}
    node = data["services"]["gpu-1"]
    assert (node["hostname"], node["container_name"], node["command"], node["labels"]["orchlab.gpu"]) == ("gpu-1", "orchlab-try-gpu-1", ["node"], "H100-80")
    assert {"type": "bind", "source": "/some/$${where}", "target": "/some/$${where}", "read_only": True} in node["volumes"]
    assert data["secrets"]["munge_key"]["file"] == "/a $$folder/keys/munge.key", "a dollar sign is no variable"
    assert data["services"]["restd"]["ports"] == ["127.0.0.1:value:6820"] and not any("ports" in service for name, service in data["services"].items() if name != "restd")
    assert "depends_on" in data["services"]["gpu-0"] and set(data["services"]["gpu-0"]["secrets"]) == {"munge_key"}
    with pytest.raises(KeyError, match="ORCHLAB_ID"):
        compose.render("try", {key: value for key, value in VALUES.items() if key != "ORCHLAB_ID"}, [], {})


def test_a_command_goes_to_the_login_node_with_its_settings_and_its_folder(tmp_path):
    fake = tmp_path / "docker"
    fake.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\ncat\n')
    fake.chmod(0o700)
    shared = tmp_path / "work with a blank"
    shared.mkdir()
    login.write(tmp_path, str(fake), {"DOCKER_HOST": "unix:///its/own"}, "orchlab-try-login", "ann", "/home/ann", [shared])
    environment = {"PATH": os.environ["PATH"], "WORD": "x", "SBATCH_ACCOUNT": "team-a", "SLURM_CONF": "/here", "ORCHLAB_HOME": "/h", "DOCKER_HOST": "unix:///other", "HTTPS_PROXY": "p"}

    def words(command: str, folder: Path, **more: str) -> list[str]:
        done = subprocess.run([tmp_path / command, "-n", "two words"], input="script", capture_output=True, text=True, cwd=folder, env=environment | more, timeout=20, check=True)
        return done.stdout.splitlines()

    said = words("sbatch", shared)
    assert said[:2] == ["exec", "--interactive"] and said[-3:] == ["-n", "two words", "script"]
    assert {said[index + 1] for index, word in enumerate(said) if word == "--env"} == {"WORD", "SBATCH_ACCOUNT"}
    assert said[said.index("--workdir") + 1] == str(shared) and said[said.index("--user") + 1] == "ann"
    said = words("squeue", tmp_path, ORCHLAB_SLURM_AS="slurm")
    assert {said[index + 1] for index, word in enumerate(said) if word == "--env"} == {"SBATCH_ACCOUNT"}
    assert said[said.index("--workdir") + 1] == "/home/ann" and said[said.index("--user") + 1] == "slurm"
    said = words("srun", shared)
    assert said[-3:] == ["-n", "two words", "script"] and "WORD" in said


@pytest.mark.parametrize("said, expected, remedy", [
    ("Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock", "you may not use the Docker Engine", "usermod -aG docker"),
    ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?", "no Docker Engine is running", "systemctl start docker")])
def test_why_an_engine_does_not_answer(tmp_path, monkeypatch, said, expected, remedy):
    fake = tmp_path / "docker"
    fake.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    fake.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(EngineUnavailable, match=expected) as refused:
        containers.find()
    assert remedy in refused.value.remedy


def test_without_docker_an_environment_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailable, match="no docker command"):
        containers.find()


def test_the_script_that_makes_a_base_refuses_what_it_does_not_know():
    done = subprocess.run([repository() / "scripts" / "build-slurm-base", "--fast"], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1 and "--fast is not an option" in done.stderr and "--unchecked" in done.stderr
