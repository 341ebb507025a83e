"""What a fault writes down for the containers: which daemon is held where, and whose key a node gets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from test_slurm_containers import FLEET, VALUES

from orchlab.fleet import from_data
from orchlab.slurm import compose, daemons, docker_daemons, faults


@pytest.fixture
def env():
    record = SimpleNamespace(slurm="docker", left_out={}, faults=[])

    def held():
        return frozenset(fault["target"] for fault in record.faults if fault["kind"] == "daemon-down")

    return SimpleNamespace(name="try", record=record, fleet=from_data(FLEET), held=held, specs=lambda: [], folder=Path("/nowhere"))


def hold(env, *names):
    env.record.faults += [{"kind": "daemon-down", "target": name} for name in names]


def test_daemons_bear_the_names_that_they_have_on_local(env):
    assert daemons.names(env) == ["slurmctld", "slurmdbd", "mariadbd", "slurmrestd",
                                  "slurmd.gpu-0", "slurmd.gpu-1", "munged.gpu-0", "munged.gpu-1"]
    env.record.slurm = "local"
    assert daemons.names(env) == []


def test_what_is_held_is_told_to_its_own_container_only(env):
    hold(env, "slurmctld", "slurmd.gpu-1", "kube-scheduler")
    assert docker_daemons.held_file(env) == "ctld slurmctld\ngpu-1 slurmd\n"
    assert docker_daemons.held_services(env) == {"ctld": "slurmctld", "gpu-1": "slurmd.gpu-1"}
    assert daemons.held_states(env) == {"slurmctld", "slurmd.gpu-1", "kube-scheduler", "ctld", "gpu-1"}
    env.record.slurm = "local"
    assert daemons.held_states(env) == {"slurmctld", "slurmd.gpu-1", "kube-scheduler"}


def test_a_stranger_gets_a_key_of_its_own_under_the_usual_name():
    key = Path("/some/munge.gpu-1.key")
    data = yaml.safe_load(compose.render("try", VALUES, from_data(FLEET).nodes(), {}, {"gpu-1": key}))
    assert data["services"]["gpu-1"]["secrets"] == [{"source": "munge_key_gpu-1", "target": "munge_key"}]
    assert data["secrets"]["munge_key_gpu-1"] == {"file": str(key)}
    assert data["services"]["gpu-0"]["secrets"] == ["munge_key"]


def test_in_containers_a_stranger_needs_no_slurm_conf_of_its_own(env):
    env.record.faults.append({"kind": "munge-key", "target": "gpu-1"})
    files = {"slurm.conf": "AuthInfo=socket=/run/munge/munge.socket.2\n", "gres.conf": ""}
    assert faults.configuration(env, files) == files
