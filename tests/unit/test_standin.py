"""What runs on real kubelets: the workloads' stand-in as a process, the operands' pods as data, the wait of an init container."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from orchlab.gpu_operator import names, operands, policy, real_kubelets
from orchlab.gpu_operator.install import node_feature_discovery
from orchlab.simulator.pods import CRASH, INIT, INIT_ERROR, LOG
from orchlab.standin import operand

SITE = operands.Site("orchlab/standin:1", "an-environment")


def workload(**variables: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "orchlab.standin.workload"], capture_output=True, text=True, timeout=30, check=False,
                          env=os.environ | {"ORCHLAB_CLOCK": "600", **variables})


def test_a_workload_runs_as_long_as_declared_and_says_what_it_is():
    done = workload(ORCHLAB_RUN_FOR="1m", ORCHLAB_RESTART_POLICY="Never", NVIDIA_VISIBLE_DEVICES="GPU-1,GPU-2")
    assert done.returncode == 0
    assert "STAND-IN by orchlab" in done.stdout and "NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-2 (simulated GPUs)" in done.stdout
    assert "90 % of the run time" in done.stdout and done.stdout.endswith("ended: exit code 0\n")


@pytest.mark.parametrize(("variables", "code"), [({"ORCHLAB_EXIT": "error"}, 1), ({"ORCHLAB_EXIT_CODE": "42"}, 42), ({"ORCHLAB_EXIT": "oom"}, -9)])
def test_a_workload_ends_as_declared(variables, code):
    assert workload(ORCHLAB_RUN_FOR="1s", ORCHLAB_RESTART_POLICY="Never", **variables).returncode == code


def test_a_workload_warns_of_what_it_cannot_read():
    done = workload(ORCHLAB_RUN_FOR="soon", ORCHLAB_CLOCK="6000", ORCHLAB_RESTART_POLICY="Never")
    assert "warning: annotation orchlab/run-for: 'soon'" in done.stdout and done.returncode == 0


def test_a_workload_says_that_it_does_not_wait_at_a_barrier():
    done = workload(ORCHLAB_RUN_FOR="1s", ORCHLAB_RESTART_POLICY="Never", ORCHLAB_BARRIER="g", ORCHLAB_BARRIER_SIZE="6")
    assert "warning: annotation orchlab/barrier: 'g': pods on real kubelets do not wait" in done.stdout and done.returncode == 0


def _pods(site: operands.Site | None) -> dict[str, dict]:
    made = operands.wanted(policy.Policy("cluster-policy", "uid", policy.default()["spec"], 1), site)
    return {name: manifest["spec"]["template"]["spec"] for name, manifest in made.items()}


def test_operands_on_real_kubelets_keep_their_containers_and_get_image_and_command():
    simulated, real = _pods(None), _pods(SITE)
    assert real.keys() == simulated.keys()
    for name, pod in real.items():
        for part in ("initContainers", "containers"):
            assert [one["name"] for one in pod.get(part, [])] == [one["name"] for one in simulated[name].get(part, [])]
            assert all(one["image"] == SITE.image and one["command"][0] == "python3" for one in pod.get(part, []))
        assert pod["serviceAccountName"] == real_kubelets.ACCOUNT and pod["tolerations"] == simulated[name]["tolerations"]
    assert all("command" not in one for pod in simulated.values() for one in pod["containers"])


def test_only_the_device_plugin_is_privileged_and_has_kubelets_sockets():
    privileged = {name for name, pod in _pods(SITE).items() if any(one.get("securityContext", {}).get("privileged") for one in pod["containers"])}
    sockets = {name for name, pod in _pods(SITE).items() if any(v.get("hostPath", {}).get("path", "").startswith("/var/lib/kubelet") for v in pod["volumes"])}
    assert privileged == sockets == {operands.PLUGIN_DS}


def test_node_feature_discovery_fits_as_well():
    pod = node_feature_discovery("orchlab/standin:1")["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][-1] == "worker" and "initContainers" not in pod
    assert node_feature_discovery()["metadata"]["name"] == names.NFD_WORKER


def test_an_init_container_waits_for_its_number_and_fails_with_the_operators_words(monkeypatch, capsys):
    told = iter([None, {INIT: "0"}, {INIT: "2"}])
    monkeypatch.setattr(operand, "EVERY", 0)
    monkeypatch.setattr(operand, "notes", lambda client: next(told))
    operand.wait(None, 1)
    monkeypatch.setattr(operand, "notes", lambda client: {INIT: "1", INIT_ERROR: "specified config typo does not exist"})
    with pytest.raises(SystemExit) as ended:
        operand.wait(None, 1)
    assert ended.value.code == 1 and "specified config typo does not exist" in capsys.readouterr().out


def test_a_program_prints_its_log_once_and_crashes_when_told(monkeypatch, capsys):
    told = iter([{LOG: "one"}, {LOG: "one"}, {LOG: "one\ntwo"}, {LOG: "one\ntwo", CRASH: "true"}])
    monkeypatch.setattr(operand, "EVERY", 0)
    monkeypatch.setattr(operand, "notes", lambda client: next(told))
    with pytest.raises(SystemExit) as ended:
        operand.run(None, "nvidia-mig-manager")
    assert ended.value.code == 1 and capsys.readouterr().out == "one\ntwo\n"
