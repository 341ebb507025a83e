"""What a container gets with its devices, nvidia-smi among it, which is really run."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from device_plugin_fakes import folder, node

from orchlab.device_plugin import containers, smi_files
from orchlab.device_plugin.containers import Containers
from orchlab.device_plugin.node import OwnNode
from orchlab.device_plugin.smi_files import FIELDS, Folders
from orchlab.gpu_operator.smi import HEADER
from orchlab.gpus import smi
from orchlab.simulator.inventory import registered
from orchlab.simulator.plugins import INVENTORY

GPU = "nvidia.com/gpu"
SHELLS = [shell for shell in ("sh", "dash", "bash", "busybox") if shutil.which(shell)]


class Given:
    """A container that was given devices of a node; `run` runs its nvidia-smi."""

    def __init__(self, root: Path, found: dict, resource: str, *numbers: int) -> None:
        self.node = OwnNode("n", "env")
        self.node.take("LIST", [found])
        every = registered(found["metadata"]["annotations"][INVENTORY])[resource].ids
        self.ids = [every[number] for number in numbers]
        self.folders = Folders(root / "smi")
        (root / "dev").mkdir(exist_ok=True)
        self.answer = Containers(self.node, self.folders, root / "dev").response(resource, self.ids)
        self.mounts = {mount.container_path: Path(mount.host_path) for mount in self.answer.mounts if mount.read_only}

    def run(self, *words: str, shell: str = "sh", code: int = 0) -> tuple[str, str]:
        """(stdout, stderr); an empty PATH, since a container need not have any programs."""
        command = [shutil.which(shell), *(["sh"] if shell == "busybox" else []), self.mounts["/usr/bin/nvidia-smi"], *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False,
                              env={"PATH": "", "ORCHLAB_SMI": str(self.mounts["/usr/local/orchlab/smi"])})
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr


@pytest.fixture
def root():
    made = folder()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def given(root):
    return lambda found, *numbers, resource=GPU: Given(root, found, resource, *numbers)


@pytest.mark.parametrize("shell", SHELLS)
def test_nvidia_smi_shows_only_what_was_given(given, shell):
    container = given(node(), 1, 3)
    table, _ = container.run(shell=shell)
    assert table.splitlines()[0] == HEADER and "NVIDIA A100" in table
    listing, _ = container.run("-L", shell=shell)
    assert [line.split("UUID: ")[1].rstrip(")") for line in listing.splitlines()[1:]] == container.ids
    said, notice = container.run("--query-gpu=index,name, uuid,memory.total", "--format=csv", shell=shell)
    assert said.splitlines() == ["index, name, uuid, memory.total [MiB]",
                                 *(f"{index}, NVIDIA A100-SXM4-40GB, {uuid}, 40960 MiB" for index, uuid in zip((0, 1), container.ids, strict=True))]
    assert notice.strip() == HEADER
    bare, _ = container.run("--query-gpu=memory.total", "--format=csv,noheader,nounits", shell=shell)
    assert bare == "40960\n40960\n"


def test_queries_say_what_gpus_smi_says(given):
    container = given(node(), 0)
    found = containers.only(container.node.readings([containers._somebody("n", container.ids)]), "", "", "", container.ids)
    said, _ = container.run(f"--query-gpu={','.join(FIELDS)}", "--format=csv")
    assert said == smi.query(found.inventory, FIELDS, found.holders, found.loads)


def test_mig_devices_and_their_listings(given):
    layout = {"0": [["1g.5gb", 0, 1], ["1g.5gb", 1, 1], ["3g.20gb", 4, 4]]}
    container = given(node(count=2, strategy="mixed", mig=layout), 1, resource="nvidia.com/mig-1g.5gb")
    listing, _ = container.run("-L")
    assert listing.count("MIG 1g.5gb") == 1 and "3g.20gb" not in listing and container.ids[0] in listing
    assert "Instance" in container.run("mig", "-lgip")[0]
    assert container.run("mig", "-lgi")[0].count("MIG 1g.5gb") == 1


@pytest.mark.parametrize(("words", "said"), [
    (("--query-gpu=index,fan.speed",), 'Field "fan.speed" is not a valid field to query'), (("-q",), '"-q" is not simulated'),
    (("--query-gpu=index", "--format=xml"), 'the format "xml" is not simulated'), (("--format=csv",), "give the fields"),
    (("--query-gpu=*",), 'Field "*" is not a valid'), (("--query-gpu=index:0) ;; *",), "is not a valid field")])
def test_what_is_not_simulated_is_refused_in_words(given, words, said):
    out, err = given(node(), 0).run(*words, code=1)
    assert out == "" and said in err and err.startswith("nvidia-smi (simulated by orchlab): ")


def test_without_a_driver_it_says_so(given):
    found = node()
    notes = found["metadata"]["annotations"]
    notes["orchlab/gpu-state"] = notes["orchlab/gpu-state"].replace('"driver":true', '"driver":false')
    container = given(found, 0)
    said, _ = container.run("--query-gpu=index", code=1)
    assert said.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    assert "NVIDIA-SMI has failed" in container.run()[0]


def test_device_nodes_are_null_devices_and_a_real_gpus_is_left_alone(root, given):
    probe = root / "probe"
    try:
        os.mknod(probe, stat.S_IFCHR | 0o666, containers.NULL)
    except OSError:
        assert [mount.container_path for mount in given(node(), 2).answer.mounts] and not given(node(), 2).answer.devices
        return
    [spec] = given(node(), 2).answer.devices
    assert (spec.container_path, spec.host_path, spec.permissions) == ("/dev/nvidia2", str(root / "dev" / "nvidia2"), "rw")
    Path(spec.host_path).unlink()
    Path(spec.host_path).touch()
    assert not given(node(), 2).answer.devices


def test_a_folder_that_cannot_be_written_costs_nvidia_smi_only(root):
    (root / "smi").touch()
    container = Given(root, node(), GPU, 0)
    assert container.answer.envs["NVIDIA_VISIBLE_DEVICES"] == container.ids[0] and not container.mounts


def test_old_folders_go_and_held_ones_stay(given, monkeypatch):
    container = given(node(), 0)
    there = container.mounts["/usr/bin/nvidia-smi"].parent
    other = container.folders.write(["GPU-x"], container.node.readings([]))
    now = smi_files.time.monotonic()
    monkeypatch.setattr(smi_files.time, "monotonic", lambda: now + smi_files.KEEP / 2)
    container.folders.sweep(set())
    assert there.is_dir() and other.is_dir()
    monkeypatch.setattr(smi_files.time, "monotonic", lambda: now + smi_files.KEEP + 1)
    container.folders.sweep({there.name})
    assert there.is_dir() and not other.exists()
    # Given out again, it is made again.
    container.folders.write(["GPU-x"], container.node.readings([]))
    assert (other / "nvidia-smi").stat().st_mode & 0o111


def test_the_mounted_script_is_never_replaced(given):
    container = given(node(), 0)
    script = container.mounts["/usr/bin/nvidia-smi"]
    before = script.stat().st_ino
    nothing = containers.only(container.node.readings([]), "", "", "", [])
    container.folders.write(container.ids, nothing)
    assert script.stat().st_ino == before
    assert "No devices were found" in container.run()[0]
