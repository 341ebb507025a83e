"""What lab 04's benches do, against the live cluster; and how the scheduler's points are read."""

import time

import pytest

from orchlab.course import Lab, folder, reset

LOG = """\
I1 schedule_one.go:984] "Plugin scored node for pod" pod="lab-04/w-0" plugin="TaintToleration" node="a-0" score=300
I1 schedule_one.go:984] "Plugin scored node for pod" pod="lab-04/w-0" plugin="ImageLocality" node="a-0" score=0
I1 schedule_one.go:1052] "Calculated node's final score for pod" pod="lab-04/w-0" node="a-0" score=300
I1 schedule_one.go:984] "Plugin scored node for pod" pod="other/w-0" plugin="TaintToleration" node="a-0" score=7
I1 schedule_one.go:984] "Plugin scored node for pod" pod="lab-04/w-0" plugin="TaintToleration" node="b-0" score=0
I1 schedule_one.go:984] "Plugin scored node for pod" pod="lab-04/w-0" plugin="NodeAffinity" node="b-0" score=200
I1 schedule_one.go:1052] "Calculated node's final score for pod" pod="lab-04/w-0" node="b-0" score=200
"""


@pytest.fixture
def lab(proved):
    reset.cluster(folder.lab("04"), proved)
    yield Lab("04", proved, quiet=True)
    reset.cluster(folder.lab("04"), proved)


def test_of_several_attempts_the_last_is_read_and_of_other_namespaces_nothing():
    scores = folder.lab("04").module("scores")
    found = scores.read(LOG, "lab-04")
    assert list(found) == ["w-0"] and found["w-0"].rows() == [(["b-0"], {"NodeAffinity": 200}, 200)]
    assert scores.table(found["w-0"]).splitlines() == ["total  NodeAffinity  nodes", "200    200           b-0"]
    assert scores.table(None) == "nothing was scored: at most one node had passed the filters"


def test_each_control_of_the_pools_reaches_the_real_scheduler(lab):
    bench = lab.widget("pools")
    try:
        assert bench.settled().splitlines()[0] == "8 pods: 8 placed (8 on h100), 0 pending"
        assert "'weight': 100" in str(bench._build(bench.values)[0]["spec"]["affinity"])
        assert "requiredDuringScheduling" in bench.manifest
        with bench.lab.load("scores").Listening(lab.env, lab.namespace):
            pass
        bench.controls["required"].value = "any"
        bench.controls["h100"].value = 0
        bench.controls["count"].value = 1
        assert bench.settled().splitlines()[0] == "1 pods: 1 placed (1 on a100), 0 pending", "free CPU decides"
        assert "NodeAffinity" not in bench.points() and "NodeResourcesFit" in bench.points("pools-0")
        bench.controls["tolerates"].value = False
        bench.controls["required"].value = "H100"
        assert "6 node(s) had untolerated taint(s)" in bench.settled() or "7 node(s) had untolerated taint(s)" in bench.settled()
        bench.controls["tolerates"].value = True
        bench.controls["required"].value = "H100 or A100"
        bench.controls["h100"].value = 100
        bench.controls["taint"].value = "PreferNoSchedule"
        assert bench.settled().splitlines()[0] == "1 pods: 1 placed (1 on a100), 0 pending", "300 points against 200"
        assert any(taint["key"] == "lab-04/drill" for taint in lab.get("node/h100-0")["spec"]["taints"])
        deadline = time.monotonic() + 10
        while "1 pods: 1 placed (1 on a100)" not in bench.status.text or "pools-0\ntotal" not in bench.view.text:
            assert time.monotonic() < deadline, (bench.status.text, bench.view.text)
            time.sleep(0.1)
        bench.controls["taint"].value = "none"
        bench.settled()
        assert [taint["key"] for taint in lab.get("node/h100-0")["spec"]["taints"]] == ["nvidia.com/gpu"]
    finally:
        bench.close()


def test_the_fields_of_a_constraint_reach_the_real_scheduler(lab):
    racks = lab.widget("spread")
    try:
        assert racks.settled().splitlines()[:2] == ["8 pods: 5 placed (5 on h100), 3 pending",
                                                    "by zone (by rack): zone-a 2 (1 1 0), zone-b 3 (1 1 1)"]
        racks.controls["taints"].value = "Honor"
        assert racks.settled().splitlines()[1] == "by zone (by rack): zone-a 4 (2 2 0), zone-b 4 (2 1 1)"
        racks.controls["domains"].value = 3
        assert racks.settled().splitlines()[0] == "8 pods: 2 placed (2 on h100), 6 pending"
        racks.controls["zone"].value = "ScheduleAnyway"
        assert racks.settled().splitlines()[0] == "8 pods: 8 placed (8 on h100), 0 pending", "minDomains is left out there"
        assert "minDomains" not in racks.manifest
    finally:
        racks.close()
