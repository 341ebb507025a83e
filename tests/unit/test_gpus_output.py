"""nvidia-smi and the DCGM exporter as text: form against lines of public output, figures against the inventory."""

import csv
import io
import re
from datetime import datetime

import pytest

from orchlab.errors import BadInput
from orchlab.gpus import catalog, dcgm, inventory, mig, smi
from orchlab.gpus.load import Holder, Load
from orchlab.gpus.sharing import Shared, Sharing


def node_of(model, *layouts, count=2):
    node = inventory.of_node("env", "gpu-a100-0", model, count)
    for gpu, profiles in zip(node.gpus, layouts, strict=False):
        inventory.partition(gpu, True, mig.place(gpu.figures, profiles))
    return node


BALANCED = ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]


def test_the_main_table():
    node = node_of("A100-80")
    text = smi.table(node, [Holder(node.gpus[0].uuid, "team", "train-0", "main", 61234)], {node.gpus[0].uuid: Load(0.97)},
                     datetime(2026, 11, 5, 3, 4, 5), smi.HEADER)
    lines = text.splitlines()
    assert lines[0] == smi.HEADER and "simulated" in lines[0] and lines[1] == "Thu Nov  5 03:04:05 2026"
    for line in ("| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |",
                 "|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |",
                 "| N/A   67C    P0            370W /  400W |   61234MiB /  81920MiB |     97%      Default |",
                 "|                                         |                        |             Disabled |",
                 "| N/A   32C    P0             60W /  400W |       0MiB /  81920MiB |      0%      Default |",
                 "|    0   N/A  N/A            10001      C   python                               61234MiB |"):
        assert line in lines
    assert "MIG devices" not in text


def test_the_table_with_mig_devices():
    node = node_of("A100-80", BALANCED)
    device = node.gpus[0].instances[1].uuid
    lines = smi.table(node, [Holder(device, "team", "p", "c", 12000)], {device: Load(0.5)}).splitlines()
    for line in ("|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                   On |",
                 # Half busy on 28 of 108 SMs: 400 W x (0.15 + 0.8 x 0.13).
                 "| N/A   37C    P0            101W /  400W |   12000MiB /  81920MiB |     N/A      Default |",
                 "|                                         |                        |              Enabled |",
                 "|  0    2   0   0  |               0MiB / 40192MiB    | 42      0 |  3   0    2    0    0 |",
                 "|  0    3   0   1  |           12000MiB / 19968MiB    | 28      0 |  2   0    1    0    0 |",
                 "|                  |               0MiB / 32767MiB    |           |                       |",
                 "|    0     3    0            10001      C   python                               12000MiB |"):
        assert line in lines
    assert sum("Enabled" in line for line in lines) == sum("Disabled" in line for line in lines) == 1


@pytest.mark.parametrize("model", catalog.models().values(), ids=lambda m: m.name)
def test_every_frame_is_straight(model):
    layouts = [[], [next(iter(model.mig.profiles))], list(model.mig.profiles)[-1:]] if model.mig else [None]
    for profiles in layouts:
        node = node_of(model.name, *([] if profiles is None else [profiles, profiles]))
        for text in (smi.table(node), smi.instances(node), smi.instance_profiles(node)):
            for block in text.split("\n\n"):
                framed = [line for line in block.splitlines() if line.startswith(("|", "+"))]
                assert len({len(line) for line in framed}) <= 1 and all(line[-1] in "|+" for line in framed)
    node.sharing = Sharing("mps", False, True, (Shared("nvidia.com/gpu", "nvidia.com/gpu", 2),))
    assert "E. Process" in smi.table(node)


def test_listing():
    node = node_of("A100-80", BALANCED)
    lines = smi.listing(node).splitlines()
    assert lines[0] == f"GPU 0: NVIDIA A100-SXM4-80GB (UUID: {node.gpus[0].uuid})"
    assert lines[1] == f"  MIG 3g.40gb     Device  0: (UUID: {node.gpus[0].instances[0].uuid})"
    assert lines[4].startswith("  MIG 1g.10gb     Device  3: (UUID: MIG-") and lines[5].startswith("GPU 1: ") and len(lines) == 6


def test_instances_and_profiles():
    node = node_of("A100-80", BALANCED, ["1g.10gb+me", "2g.20gb"])
    lines = smi.instances(node).splitlines()
    for line in ("|   0  MIG 3g.40gb            9        2          4:4     |",
                 "|   0  MIG 2g.20gb           14        3          0:2     |",
                 "|   0  MIG 1g.10gb           19       10          3:1     |"):
        assert line in lines
    profiles = smi.instance_profiles(node).splitlines()
    for line in ("|   0  MIG 1g.10gb         19     0/7        9.62       No     14     0     0   |",
                 "|   0  MIG 3g.40gb          9     0/2        39.25      No     42     2     0   |",
                 "|                                                               3     0     0   |"):
        assert line in profiles
    # Seen: 1g+me goes to slice 6 and 2g to slices 4-5; half of the GPU is free, and the media extensions are taken.
    assert {p: smi.free_count(node.gpus[1], p) for p in node.gpus[1].figures.mig.profiles} == {
        "1g.10gb": 4, "1g.10gb+me": 0, "1g.20gb": 2, "2g.20gb": 2, "3g.40gb": 1, "4g.40gb": 1, "7g.80gb": 0}
    assert smi.instances(node_of("A100-80")) == smi.instance_profiles(node_of("T4")) == "No MIG-enabled devices found.\n"
    assert smi.instances(node_of("A100-80", [])) == "No GPU instances found: Not Found\n"


def test_query():
    node = node_of("A100-80", BALANCED)
    used = {node.gpus[0].instances[0].uuid: Load(0.5, memory_mib=5000), node.gpus[1].uuid: Load(0.25, 0.1, 0.33, 700)}
    text = smi.query(node, "index,gpu_name,memory.used,memory.free,utilization.gpu,utilization.memory,mig.mode.current,power.limit",
                     loads=used)
    assert text.splitlines() == [
        "index, name, memory.used [MiB], memory.free [MiB], utilization.gpu [%], utilization.memory [%], mig.mode.current, power.limit [W]",
        "0, NVIDIA A100-SXM4-80GB, 5000 MiB, 76920 MiB, [N/A], [N/A], Enabled, 400.00 W",
        "1, NVIDIA A100-SXM4-80GB, 700 MiB, 81220 MiB, 25 %, 33 %, Disabled, 400.00 W"]
    bare = smi.query(node, ["uuid", "memory.total", "clocks.sm"], noheader=True, nounits=True)
    rows = list(csv.reader(io.StringIO(bare), skipinitialspace=True))
    assert rows == [[gpu.uuid, "81920", "210"] for gpu in node.gpus]
    everything = smi.query(node, list(smi._FIELDS), loads=used).splitlines()
    assert len(everything) == 3 and all(len(line.split(", ")) == len(smi._FIELDS) for line in everything)
    with pytest.raises(BadInput, match='Field "memory" is not a valid field to query.'):
        smi.query(node, "index,memory")
    assert "[N/A]" in smi.query(node_of("T4"), "mig.mode.current")


def test_without_gpus_or_driver():
    for call in (smi.table, smi.listing, smi.instances, smi.instance_profiles, lambda n, **k: smi.query(n, "index", **k)):
        assert call(inventory.of_node("e", "n", None, 0)) == "No devices were found\n"
        node = node_of("T4")
        node.driver_ok = False
        assert call(node).startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
        assert call(node, header=smi.HEADER).startswith(smi.HEADER)


SERIES = re.compile(r'([A-Z_]+)\{((?:[A-Za-z_]+="(?:[^"\\]|\\.)*",?)+)\} (-?[0-9.]+)')


def series(text):
    found = []
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SERIES.fullmatch(line)
            assert match, line
            found.append((match[1], dict(re.findall(r'([A-Za-z_]+)="((?:[^"\\]|\\.)*)"', match[2])), float(match[3])))
    return found


def test_metrics_of_whole_gpus():
    node = node_of("H100-80")
    inventory.report_xid(node.gpus[1], 79)
    text = dcgm.exposition(node, [Holder(node.gpus[0].uuid, "team", 'train "0"', "main", 40000)], {node.gpus[0].uuid: Load(0.9, 0.6, 0.5)})
    assert text.startswith("# simulated by orchlab")
    found = series(text)
    assert {name for name, _, _ in found} == set(dcgm.METRICS) and len(found) == 2 * len(dcgm.METRICS)
    values = {(name, labels["gpu"]): (labels, value) for name, labels, value in found}
    labels, busy = values["DCGM_FI_DEV_GPU_UTIL", "0"]
    assert busy == 90 and list(labels.items()) == [
        ("gpu", "0"), ("UUID", node.gpus[0].uuid), ("pci_bus_id", "00000000:07:00.0"), ("device", "nvidia0"),
        ("modelName", "NVIDIA H100 80GB HBM3"), ("Hostname", "gpu-a100-0"), ("DCGM_FI_DRIVER_VERSION", "580.95.05"),
        ("container", "main"), ("namespace", "team"), ("pod", 'train \\"0\\"')]
    assert values["DCGM_FI_DEV_FB_USED", "0"][1] == 40000 and values["DCGM_FI_DEV_FB_FREE", "0"][1] == 81559 - 40000
    assert values["DCGM_FI_PROF_GR_ENGINE_ACTIVE", "0"][1] == 0.9 and values["DCGM_FI_PROF_DRAM_ACTIVE", "0"][1] == 0.5
    xid, value = values["DCGM_FI_DEV_XID_ERRORS", "1"]
    assert value == 79 and xid["err_code"] == "79" and xid["err_msg"] == "GPU has fallen off the bus" and "pod" not in xid
    assert values["DCGM_FI_DEV_SM_CLOCK", "0"][1] == 1980 and values["DCGM_FI_DEV_SM_CLOCK", "1"][1] == 345
    assert values["DCGM_FI_DEV_POWER_USAGE", "0"][1] == pytest.approx(700 * (0.15 + 0.8 * 0.9))
    for name in dcgm.METRICS:
        assert text.count(f"# TYPE {name} ") == text.count(f"# HELP {name} ") == 1
    node.driver_ok = False
    assert series(dcgm.exposition(node)) == []


def test_metrics_of_mig_devices():
    node = node_of("A100-80", BALANCED, [])
    device = node.gpus[0].instances[3]
    holders = [Holder(device.uuid, "team", "notebook", "main", 3000)]
    found = series(dcgm.exposition(node, holders, {device.uuid: Load(0.8)}, hostname="host"))
    assert not {name for name, _, _ in found} & {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_DEC_UTIL"}
    assert {labels["gpu"] for _, labels, _ in found} == {"0"} and {labels["UUID"] for _, labels, _ in found} == {node.gpus[0].uuid}
    used = {(labels["GPU_I_PROFILE"], labels["GPU_I_ID"]): (labels.get("pod"), value, labels["Hostname"])
            for name, labels, value in found if name == "DCGM_FI_DEV_FB_USED"}
    assert used == {("3g.40gb", "2"): (None, 0, "host"), ("2g.20gb", "3"): (None, 0, "host"), ("1g.10gb", "9"): (None, 0, "host"),
                    ("1g.10gb", "10"): ("notebook", 3000, "host")}
    free = [value for name, labels, value in found if name == "DCGM_FI_DEV_FB_FREE" and labels["GPU_I_ID"] == "10"]
    assert free == [9856 - 3000]


def test_pods_under_time_slicing():
    node = node_of("T4", count=1)
    node.sharing = Sharing("time-slicing", False, False, (Shared("nvidia.com/gpu", "nvidia.com/gpu", 4),))
    slots = inventory.resources(node)["nvidia.com/gpu"]
    holders = [Holder(slot.id, "team", f"pod-{number}", "main", 1000) for number, slot in enumerate(slots[:3])]
    plain = [(labels, value) for name, labels, value in series(dcgm.exposition(node, holders)) if name == "DCGM_FI_DEV_FB_USED"]
    assert len(plain) == 1 and "pod" not in plain[0][0] and plain[0][1] == 3000
    named = [labels for name, labels, _ in series(dcgm.exposition(node, holders, virtual_gpus=True)) if name == "DCGM_FI_DEV_FB_USED"]
    assert [(labels["pod"], labels["vgpu"]) for labels in named] == [("pod-0", "0"), ("pod-1", "1"), ("pod-2", "2")]
