"""What kubectl shows of a simulated pod: its log, and why exec, attach, port-forward and cp cannot be."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
import urllib3
from simulator_support import create, devices, namespace, phase_is, pod, restarts, until

KUBECTL = str(Path(sys.executable).parent / "kubectl")


@pytest.fixture(scope="module")
def client(environment):
    return environment.client()


@pytest.fixture(scope="module")
def where(client):
    with namespace(client) as name:
        create(client, name, pod("ended", 2, {"run-for": "1m"}), pod("runs", policy="Always"))
        phase_is(client, name, "ended", "Succeeded")
        phase_is(client, name, "runs", "Running")
        yield name


@pytest.fixture
def kubectl(environment, where):
    def run(*arguments: str, seconds: float = 20) -> subprocess.CompletedProcess:
        command = [KUBECTL, "--kubeconfig", str(environment.kubeconfig), "-n", where, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)

    return run


def test_a_log_says_first_that_it_is_simulated(kubectl, client, where):
    told = kubectl("logs", "ended").stdout.splitlines()
    assert told[0] == "SIMULATED by orchlab: image registry.invalid/train:1 was not pulled and its program does not run."
    found = phase_is(client, where, "ended", "Succeeded")
    assert f"2 simulated GPUs: NVIDIA_VISIBLE_DEVICES={','.join(devices(found)['main'])}" in told
    assert "run time 1m (simulated), 1s of real time" in told
    assert told[-1] == "ended: exit code 0 (Completed)"


def test_log_options(kubectl):
    assert kubectl("logs", "ended", "--tail=1").stdout == "ended: exit code 0 (Completed)\n"
    assert kubectl("logs", "ended", "--tail=0").stdout == ""
    assert kubectl("logs", "ended", "--limit-bytes=9").stdout == "SIMULATED"
    stamped = kubectl("logs", "ended", "--timestamps").stdout.splitlines()
    times = [line.split()[0] for line in stamped]
    assert times == sorted(times) and times[0].endswith("Z")
    later = kubectl("logs", "ended", f"--since-time={times[-1]}", "--timestamps").stdout.splitlines()
    assert later and later == stamped[-len(later):] and len(later) < len(stamped)
    assert "default" not in kubectl("logs", "runs", "--since=1s").stdout
    assert "previous terminated container" in kubectl("logs", "ended", "--previous").stderr
    assert "runs until it is deleted" in kubectl("logs", "runs").stdout


def test_a_container_that_waits_has_no_log(kubectl, client, where):
    create(client, where, pod("waits", notes={"start-after": "2h"}))
    until(lambda: client.get(f"/api/v1/namespaces/{where}/pods/waits")["status"].get("containerStatuses"))
    refused = kubectl("logs", "waits")
    assert refused.returncode == 1 and 'container "main" in pod "waits" is waiting to start: ContainerCreating' in refused.stderr


def test_following_ends_with_the_container(kubectl, client, where):
    create(client, where, pod("short", notes={"run-for": "2m"}))
    phase_is(client, where, "short", "Running", "Succeeded")
    told = kubectl("logs", "-f", "short").stdout.splitlines()
    assert told[-1] == "ended: exit code 0 (Completed)" and len(told) == len(set(told))
    assert told == kubectl("logs", "short").stdout.splitlines()


def test_a_follower_that_leaves_is_forgotten(environment, where):
    command = [KUBECTL, "--kubeconfig", str(environment.kubeconfig), "-n", where, "logs", "-f", "runs"]
    begun = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert b"SIMULATED" in begun.stdout.readline()
    begun.kill()
    begun.wait(timeout=5)
    begun.stdout.close()


def test_the_log_of_the_run_before(kubectl, client, where):
    create(client, where, pod("again", notes={"run-for": "20s", "exit": "error"}, policy="OnFailure"))
    until(lambda: restarts(client, where, "again"))
    assert kubectl("logs", "again", "--previous").stdout.splitlines()[-1] == "ended: exit code 1 (Error)"


@pytest.mark.parametrize("command", [["exec", "runs", "--", "id"], ["attach", "runs"], ["port-forward", "pod/runs", "0:80"],
                                     ["cp", "/etc/hostname", "runs:/tmp/x"]], ids=lambda command: command[0])
def test_what_needs_a_running_program_is_refused_with_the_reason(kubectl, command):
    refused = kubectl(*command)
    assert refused.returncode != 0
    assert "simulated by orchlab: no container runs in this pod" in refused.stderr
    assert "uid=" not in refused.stdout


def context(environment, pair: str | None) -> ssl.SSLContext:
    folder = environment.folder / "pki"
    made = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if pair:
        made.load_cert_chain(folder / f"{pair}.crt", folder / f"{pair}.key")
    return made


def ask(environment, pair: str | None, method: str, path: str) -> urllib3.BaseHTTPResponse:
    pool = urllib3.PoolManager(ssl_context=context(environment, pair), retries=False, timeout=5)
    return pool.request(method, f"https://127.0.0.1:{environment.port('simulator')}{path}")


def test_only_the_api_server_may_ask(environment, where):
    path = f"/containerLogs/{where}/ended/main"
    assert ask(environment, "apiserver-kubelet", "GET", path).status == 200
    # Another certificate of the same authority, even the administrator's, goes through the API server like everybody.
    assert ask(environment, "admin", "GET", path).status == 403
    with pytest.raises(urllib3.exceptions.HTTPError):
        ask(environment, None, "GET", path)


@pytest.mark.parametrize("method, path, status", [
    ("GET", "/healthz", 200), ("GET", "/pods", 404), ("POST", "/healthz", 404), ("POST", "/run/default/runs/main?cmd=id", 501),
    ("POST", "/exec/default/runs/main?command=id", 501), ("GET", "/exec/default/runs/main?command=id", 501),
    ("GET", "/containerLogs/default", 404), ("GET", "/containerLogs/default/none/main", 404),
    ("GET", "/containerLogs/{where}/ended/none", 400),
    ("GET", "/containerLogs/{where}/ended/main?tailLines=many", 400), ("GET", "/containerLogs/{where}/ended/main?sinceTime=yesterday", 400),
    ("GET", "/containerLogs/..%2f..%2fsecrets/x/y", 404)])
def test_answers(environment, where, method, path, status):
    answer = ask(environment, "apiserver-kubelet", method, path.format(where=where))
    assert answer.status == status, answer.data
    if status == 501:
        assert json.loads(answer.data)["kind"] == "Status"


def test_silent_and_broken_callers_hold_up_nobody(environment):
    port = environment.port("simulator")
    silent = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(20)]
    babble = socket.create_connection(("127.0.0.1", port), timeout=5)
    babble.sendall(b"GET / HTTP/1.0\r\n\r\n")
    began = time.monotonic()
    assert ask(environment, "apiserver-kubelet", "GET", "/healthz").status == 200
    assert time.monotonic() - began < 5
    for connection in (*silent, babble):
        connection.close()
