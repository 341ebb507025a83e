"""Faults of Slurm on a real cluster: what they show, that healing respects them, that clearing mends them; and a reset of accounts."""

from __future__ import annotations

import pytest
from slurm_support import cluster, until, work  # noqa: F401 - fixtures

from orchlab import environment, faults
from orchlab.environment import Environment
from orchlab.errors import BadInput
from orchlab.slurm import notebook, restore
from orchlab.slurm.client import Client
from orchlab.slurm.layout import Layout


@pytest.fixture
def env(cluster, work):
    yield Environment.load(cluster.name)
    faults.clear(Environment.load(cluster.name))
    with Client.of(cluster) as client:
        for node in ("a100-0", "a100-1"):
            until(lambda name=node: not {"NOT_RESPONDING", "INVALID_REG"} & set(_node(client, name).flags))
            notebook.slurm(cluster, f"scontrol update node={node} state=resume")
            until(lambda name=node: (found := _node(client, name)).state == "IDLE" and "DRAIN" not in found.flags)


@pytest.fixture
def client(cluster):
    with Client.of(cluster) as client:
        yield client


def _node(client, name):
    return next(node for node in client.nodes() if node.name == name)


def test_fewer_gpus_than_promised_make_a_node_invalid(env, client):
    faults.cause(env, "gres-short", "a100-0")
    found = until(lambda: node if "INVALID_REG" in (node := _node(client, "a100-0")).flags else None)
    assert "count reported lower than configured (3 < 4)" in found.reason and found.gres == {"gpu:a100": 3}
    assert "slurm_update error" in notebook.slurm(env, "scontrol update node=a100-0 state=resume")
    assert _node(client, "a100-1").state == "IDLE"
    environment.up(env.name)
    assert "INVALID_REG" in _node(client, "a100-0").flags, "healing respects a fault"


def test_without_grestypes_every_request_for_a_gpu_is_refused(env, client):
    faults.cause(env, "gres-types")
    until(lambda: not any(node.gres for node in client.nodes()))
    assert "Invalid generic resource (gres) specification" in notebook.slurm(env, "sbatch --gres=gpu:1 --wrap true")
    faults.clear(Environment.load(env.name), "gres-types")
    until(lambda: _node(client, "a100-0").gres == {"gpu:a100": 4})


def test_a_node_with_another_munge_key_is_not_believed_until_it_has_the_right_one(env, client):
    layout = Layout(env.folder)
    faults.cause(env, "munge-key", "a100-1")
    env = Environment.load(env.name)
    assert all(state.healthy for state in env.health()), "its daemons run; they are only not believed"
    assert layout.keys.joinpath("munge.a100-1.key").read_bytes() != layout.keys.joinpath("munge.key").read_bytes()
    until(lambda: "Invalid credential" in env.supervisor.log_tail("slurmd.a100-1", 200), 40)
    until(lambda: "NOT_RESPONDING" in _node(client, "a100-1").flags, 60)
    # What a learner does: the right key, the node's munged and slurmd started anew.
    layout.keys.joinpath("munge.a100-1.key").write_bytes(layout.keys.joinpath("munge.key").read_bytes())
    for name in ("munged.a100-1", "slurmd.a100-1"):
        env.supervisor.stop_process(name)
        env.supervisor.start_process(name)
    until(lambda: (node := _node(client, "a100-1")).state == "IDLE" and not node.flags, 60)
    faults.clear(env, "munge-key")
    assert not list(layout.keys.glob("munge.a100-1*")) and "munged.a100-1" not in [spec.name for spec in Environment.load(env.name).specs()]


def test_faults_need_a_node_that_they_can_happen_to(env):
    with pytest.raises(BadInput, match="no Slurm node"):
        faults.cause(env, "gres-short", "cpu-0")
    with pytest.raises(BadInput, match="needs a slurm node"):
        faults.cause(env, "munge-key")
    assert Environment.load(env.name).record.faults == []


def test_changed_accounts_and_levels_are_put_back(env):
    before = [notebook.slurm(env, f"sacctmgr -nP show {what}") for what in ("assoc", "qos")]
    for change in ("modify qos capped set MaxTRESPerUser=gres/gpu=1,cpu=3 GrpJobs=2 Flags=DenyOnLimit",
                   "modify qos high set Preempt= Priority=7", "add qos extra",
                   "modify account team-b set GrpTRES=cpu=1 Fairshare=3 MaxJobs=1", "add account extra Cluster=orchlab"):
        notebook.slurm(env, f"sacctmgr -Q {change}")
    assert restore.accounts(env) != [] and restore.accounts(env) == []
    assert [notebook.slurm(env, f"sacctmgr -nP show {what}") for what in ("assoc", "qos")] == before
