"""kind's configuration: what a fleet becomes, and that kind-config.yaml is the default fleet."""

from __future__ import annotations

from pathlib import Path

import yaml

from orchlab import fleet
from orchlab.fleet_nodes import with_real_kubelet
from orchlab.kube import kind_cluster, kind_config, kind_machines
from orchlab.paths import repository

NODES = fleet.load(None).nodes()


def workers(content: dict) -> list[dict]:
    return [node for node in content["nodes"] if node["role"] == "worker"]


def test_kind_config_yaml_is_the_default_fleet_rendered():
    written = (repository() / "kind-config.yaml").read_text()
    assert written == kind_config.HEADER + kind_config.render(kind_config.cluster(NODES))


def test_the_first_node_of_each_gpu_pool_is_a_worker_with_its_name_labels_and_taints():
    content = kind_config.cluster(NODES)
    joined = [yaml.safe_load(worker["kubeadmConfigPatches"][0])["nodeRegistration"] for worker in workers(content)]
    assert [one["name"] for one in joined] == ["h100-0", "a100-0", "t4-0"]
    assert all(one["taints"] == [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}] for one in joined)
    first = workers(content)[0]["labels"]
    assert first["topology.kubernetes.io/zone"] == "zone-a" and first["orchlab/rack"] == "rack-a1" and first["orchlab/kubelet"] == "real"


def test_no_kubelet_is_asked_for_a_label_that_it_may_not_set():
    for worker in workers(kind_config.cluster(NODES)):
        restricted = [key for key in worker["labels"] if "kubernetes.io/" in key]
        assert all(key.startswith(("topology.kubernetes.io/", "node.kubernetes.io/instance-type")) for key in restricted)


def test_at_most_three_nodes_have_a_kubelet_and_nodes_without_gpus_have_none():
    pools = [{"name": f"p{number}", "count": 2, "gpus": {"model": "T4", "count": 1}, "cpu": 4, "memory": "8Gi"} for number in range(5)]
    pools.append({"name": "plain", "count": 1, "cpu": 4, "memory": "8Gi"})
    found = with_real_kubelet(fleet.from_data({"pools": pools}).nodes())
    assert [node.name for node in found] == ["p0-0", "p1-0", "p2-0"]


def test_an_environments_own_copy_has_its_port_and_mounts_its_folder_read_only():
    content = kind_config.cluster(NODES, "orchlab-x-123456", 34567, "/state/x", "orchlab/kind-node:v1", cgroup_v1=False)
    assert content["networking"] == {"apiServerAddress": "127.0.0.1", "apiServerPort": 34567}
    control = content["nodes"][0]
    assert control["extraMounts"] == [{"hostPath": "/state/x", "containerPath": "/orchlab", "readOnly": True}]
    assert {node["image"] for node in content["nodes"]} == {"orchlab/kind-node:v1"}
    patches = [yaml.safe_load(text) for text in content["kubeadmConfigPatches"]]
    assert [patch["kind"] for patch in patches] == ["ClusterConfiguration", "KubeletConfiguration"] and "failCgroupV1" not in patches[1]
    assert patches[0]["scheduler"]["extraArgs"] == [{"name": "config", "value": "/orchlab/kube-scheduler.yaml"}]


def test_a_workers_machine_is_the_fleets_and_changes_in_place(tmp_path):
    node = fleet.from_data({"pools": [{"name": "big", "count": 1, "gpus": {"model": "T4", "count": 1}, "cpu": 6, "memory": "2Gi"}]}).nodes()[0]
    small = fleet.from_data({"pools": [{"name": "big", "count": 1, "gpus": {"model": "T4", "count": 1}, "cpu": 4, "memory": "1Gi"}]}).nodes()[0]
    kind_machines.write(tmp_path, [node], cpus=4)
    mounts = {mount["containerPath"]: Path(mount["hostPath"]) for mount in kind_machines.mounts(str(tmp_path), node)}
    meminfo, numa = mounts["/proc/meminfo"], mounts["/sys/devices/system/node"] / "node0"

    def cores() -> dict[str, str]:
        return {path.parent.parent.name: path.read_text().strip() for path in numa.glob("cpu*/topology/core_id")}

    assert cores() == {"cpu0": "0", "cpu1": "1", "cpu2": "2", "cpu3": "3", "cpu0_4": "4", "cpu1_5": "5"} and (numa / "hugepages").is_dir()
    assert "MemTotal:           2097152 kB" in meminfo.read_text() and "MemTotal:       2097152 kB" in (numa / "meminfo").read_text()
    files = [path.stat().st_ino for path in (meminfo, mounts["/sys/devices/system/node"])]
    kind_machines.write(tmp_path, [small], cpus=8)
    assert cores() == {f"cpu{number}": str(number) for number in range(4)} and "1048576 kB" in meminfo.read_text()
    assert [path.stat().st_ino for path in (meminfo, mounts["/sys/devices/system/node"])] == files, "a mount holds on to the very file"


def test_workers_mount_their_machines_and_the_rendered_default_does_not():
    assert not any("extraMounts" in node for node in kind_config.cluster(NODES)["nodes"])
    own = kind_config.cluster(NODES, folder="/state/x")
    assert workers(own)[2]["extraMounts"][1] == {"hostPath": "/state/x/kind/machines/t4-0/meminfo", "containerPath": "/proc/meminfo", "readOnly": True}


def test_the_api_server_listens_on_loopback_only():
    assert kind_config.cluster(NODES)["networking"]["apiServerAddress"] == "127.0.0.1"


def test_a_machine_without_cap_sys_resource_is_recognised(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert kind_cluster.lacks_sys_resource("CapBnd:\t000001fffeffffff\n")
    assert not kind_cluster.lacks_sys_resource("CapBnd:\t000001ffffffffff\n")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert not kind_cluster.lacks_sys_resource("CapBnd:\t000001fffeffffff\n")
