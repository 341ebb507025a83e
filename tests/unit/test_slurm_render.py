"""Slurm's configuration from a fleet: nodes, typed GPUs, MIG, shards, partitions, switches, releases; and what cannot be expressed."""

from __future__ import annotations

import re

import pytest

from orchlab import fleet as fleets
from orchlab.errors import BadInput, EngineUnavailable
from orchlab.slurm import gres, render, versions
from orchlab.slurm.render import Address, Site
from orchlab.slurm.versions import Release


def site(**more) -> Site:
    values = {
        "release": Release(22, 5, "22.05.8"),
        "cluster": "c",
        "user": "alice",
        "slurmd_user": "alice",
        "controller": "localhost(127.0.0.1)",
        "controller_port": 20001,
        "slurmd_port": 20003,
        "dbd_hostname": "localhost",
        "dbd_host": "127.0.0.1",
        "dbd_port": 20002,
        "munge_socket": "/e/run/munge.socket",
        "jwt_key": "/e/keys/jwt.key",
        "state": "/e/state",
        "spool": "/e/spool/%n",
        "run": "/e/run",
        "devices": "/e/dev",
        "database_host": "localhost",
        "database_user": "alice",
    }
    return Site(**(values | more))


def settings(text: str) -> dict[str, str]:
    return dict(
        line.split("=", 1)
        for line in text.splitlines()
        if re.match(r"[A-Z]\w+=", line) and not line.startswith(("NodeName", "PartitionName", "SwitchName"))
    )


@pytest.fixture
def nodes():
    return fleets.load().nodes()


def pools(*given: dict) -> list:
    return fleets.from_data({"pools": [{"count": 1, "cpu": 8, "memory": "32Gi"} | pool for pool in given]}).nodes()


def test_node_lines_say_what_the_fleet_says(nodes):
    text = render.files(site(addresses={"h100-0": Address("localhost", "127.0.0.1", 20011)}), nodes)["slurm.conf"]
    assert (
        "NodeName=h100-0 NodeHostname=localhost NodeAddr=127.0.0.1 Port=20011 Sockets=2 CoresPerSocket=96 ThreadsPerCore=1"
        " RealMemory=2097152 Gres=gpu:h100:8 Feature=zone-a,rack-a1,h100 Weight=81"
        in text.splitlines()
    )
    assert (
        "NodeName=cpu-0 Sockets=2 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=65536 Feature=zone-a,rack-a1,cpu Weight=1"
        in text.splitlines()
    )
    assert settings(text)["AccountingStorageTRES"] == "gres/gpu,gres/gpu:h100,gres/gpu:a100,gres/gpu:t4,gres/shard"


def test_no_setting_is_empty_or_unfilled(nodes):
    for name, text in render.files(site(), nodes).items():
        assert "$" not in text, name
        assert not re.search(r"^\w+=\s*$", text, re.M), f"{name}: an empty value is a parse error"


def test_gres_lines_name_a_device_file_for_every_gpu(nodes):
    lines = render.files(site(), nodes)["gres.conf"].splitlines()
    assert "AutoDetect=off" in lines
    assert "NodeName=h100-3 Name=gpu Type=h100 File=/e/dev/nvidia[0-7]" in lines
    assert "NodeName=t4-0 Name=shard Count=8" in lines
    assert not [line for line in lines if "cpu-" in line]


def test_one_gpu_is_not_a_range():
    assert "File=/e/dev/nvidia0" in render.files(site(), pools({"name": "g", "gpus": {"model": "L40S", "count": 1}}))["gres.conf"]


def test_mig_instances_are_types_of_their_own_numbered_over_the_node():
    nodes = pools({"name": "m", "gpus": {"model": "H100-80", "count": 2}, "labels": {"nvidia.com/mig.config": "all-balanced"}})
    files = render.files(site(), nodes)
    assert "Gres=gpu:h100_1g.10gb:4,gpu:h100_2g.20gb:2,gpu:h100_3g.40gb:2 " in files["slurm.conf"]
    assert [line.split("Type=")[1] for line in files["gres.conf"].splitlines() if "Type=" in line] == [
        "h100_1g.10gb File=/e/dev/mig[0-3]",
        "h100_2g.20gb File=/e/dev/mig[4-5]",
        "h100_3g.40gb File=/e/dev/mig[6-7]",
    ]
    assert "gres/gpu:h100_3g.40gb" in files["slurm.conf"]


@pytest.mark.parametrize(
    "model, names",
    [
        ("A100-40", ["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]),
        ("A100-80", ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]),
        ("H100-80", ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]),
        ("H200-141", ["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]),
        ("A30", ["1g.6gb", "2g.12gb", "4g.24gb"]),
        ("B200-180", ["1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"]),
    ],
)
def test_a_node_is_partitioned_as_the_mig_manager_would(model, names):
    made = []
    for name in names:
        pool = {"name": "m", "gpus": {"model": model, "count": 2}, "labels": {"nvidia.com/mig.config": f"all-{name}"}}
        [(kind, count)] = gres.of(pools(pool)[0], {model: "x"}).gpus
        assert kind == f"x_{name}"
        made.append(count)
    assert made == ([8, 4, 2] if model == "A30" else [14, 8, 6, 4, 2, 2])


@pytest.mark.parametrize(
    "model, layout, problem", [("A100-40", "all-3g.40gb", "is not a layout of A100-40"), ("T4", "all-balanced", "T4 has no MIG")]
)
def test_a_layout_that_the_model_has_not_is_refused(model, layout, problem):
    with pytest.raises(BadInput, match=problem) as refused:
        render.files(site(), pools({"name": "m", "gpus": {"model": model, "count": 1}, "labels": {"nvidia.com/mig.config": layout}}))
    assert refused.value.field == "pools.m.labels.nvidia.com/mig.config"


def test_two_models_of_a_family_are_told_apart():
    nodes = pools(
        {"name": "a", "gpus": {"model": "A100-40", "count": 1}},
        {"name": "b", "gpus": {"model": "A100-80", "count": 1}},
        {"name": "c", "gpus": {"model": "T4", "count": 1}},
    )
    assert gres.short_names(nodes) == {"A100-40": "a100_40", "A100-80": "a100_80", "T4": "t4"}


def test_partitions_are_all_short_and_one_per_pool(nodes):
    lines = render.partition_lines(nodes)
    assert [line.split()[0] for line in lines] == [f"PartitionName={name}" for name in ("all", "short", "h100", "a100", "t4", "cpu")]
    assert sum("Default=YES" in line for line in lines) == 1
    assert "Nodes=a100-0,a100-1 " in lines[3]


def test_a_pool_called_like_a_partition_of_ours_gets_none_of_its_own():
    assert [line.split()[0] for line in render.partition_lines(pools({"name": "all"}, {"name": "short"}))] == [
        "PartitionName=all",
        "PartitionName=short",
    ]


def test_racks_are_leaf_switches_under_their_zones(nodes):
    text = render.files(site(), nodes)["topology.conf"]
    assert "SwitchName=rack-a1 Nodes=h100-0,h100-1,a100-0,t4-0,cpu-0" in text
    assert "SwitchName=zone.zone-b Switches=rack-b1" in text and "SwitchName=spine Switches=zone.zone-a,zone.zone-b" in text


def test_every_node_can_fill_all_its_cpus(nodes):
    assert render.memory_per_cpu(nodes) == 2048
    small = pools({"name": "s", "cpu": 64, "memory": "16Gi"})
    assert render.memory_per_cpu(small) == 256 and 256 * 64 <= 16 * 1024


def test_an_odd_number_of_cpus_is_one_socket():
    assert "Sockets=1 CoresPerSocket=7" in render.node_line(pools({"name": "o", "cpu": 7})[0], gres.NodeGres(), Address())


@pytest.mark.parametrize("release, plugin", [((22, 5), "cgroup/v1"), ((23, 11), "disabled"), ((24, 11), "disabled")])
def test_cgroups_are_switched_off_in_each_releases_words(nodes, release, plugin):
    assert f"CgroupPlugin={plugin}" in render.files(site(release=Release(*release)), nodes)["cgroup.conf"]


@pytest.mark.parametrize(
    "text, release",
    [("slurm-wlm 22.05.8", (22, 5, "22.05.8")), ("slurm 24.11.5", (24, 11, "24.11.5")), ("slurm-wlm 23.11.4", (23, 11, "23.11.4"))],
)
def test_versions_are_read(text, release):
    assert versions.parse(text) == Release(*release)


@pytest.mark.parametrize("text, problem", [("slurm 21.08.5", "older than 22.05"), ("slurm unknown", "no version in it")])
def test_versions_that_cannot_be_used(text, problem):
    with pytest.raises(EngineUnavailable, match=problem):
        versions.parse(text)


def test_which_pyslurm_goes_with_which_slurm():
    assert "22.5.3" in versions.pyslurm_requirement(Release(22, 5)) and "PyPI has no 22.5" in versions.pyslurm_requirement(Release(22, 5))
    assert versions.pyslurm_requirement(Release(25, 11)) == "pip install 'pyslurm==25.11.*'"
