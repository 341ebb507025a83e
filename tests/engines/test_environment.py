"""Environments over the real control plane: up, heal, down, and what goes wrong on a real machine."""

from __future__ import annotations

import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from waiting import until

from orchlab import environment as environments
from orchlab.environment import Environment
from orchlab.errors import ApiError, BadInput, EnvironmentBroken, OrchlabError
from orchlab.kube.client import Client
from orchlab.supervisor import leftovers

ORCHLAB = str(Path(sys.executable).parent / "orchlab")
PROCESSES = ["etcd", "gpu-operator", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "simulator"]


def healthy(env: Environment) -> bool:
    return all(state.healthy for state in env.health())


def config_map(client: Client, name: str) -> None:
    client.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": name}})


def listening(env: Environment) -> list[int]:
    """Ports of the environment on which somebody still listens."""
    taken = []
    for port in env.record.ports.values():
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                taken.append(port)
    return taken


def test_everything_runs_and_is_healthy(environment):
    states = environment.health()
    assert sorted(state.name for state in states) == PROCESSES
    assert [state for state in states if not state.healthy] == []
    assert all(state.pid > 1 and state.memory > 0 and state.since > 0 for state in states)


def test_versions_and_the_gang_api(environment):
    client = environment.client()
    assert client.get("/version")["gitVersion"] == "v1.37.2"
    kinds = {resource["kind"] for resource in client.get("/apis/scheduling.k8s.io/v1beta1")["resources"]}
    assert "PodGroup" in kinds


def test_the_api_wants_a_certificate_and_a_right(environment):
    import urllib3

    pool = urllib3.PoolManager(ca_certs=str(environment.folder / "pki" / "ca.crt"), retries=False)
    assert pool.request("GET", f"https://127.0.0.1:{environment.port('kube_apiserver')}/api/v1/nodes", timeout=5).status == 401
    kwok = Client.from_kubeconfig(environment.folder / "kubeconfigs" / "kwok.kubeconfig")
    with pytest.raises(ApiError) as refused:
        kwok.list("/api/v1/secrets")
    assert refused.value.status == 403


def test_etcd_accepts_the_api_servers_certificate_only(environment):
    from orchlab.processes import NotReady, Probe

    pki = environment.folder / "pki"
    url = f"https://127.0.0.1:{environment.port('etcd')}/health"
    Probe(url, pki / "etcd-ca.crt", (pki / "apiserver-etcd.crt", pki / "apiserver-etcd.key")).check(5)
    for pair in (None, (pki / "admin.crt", pki / "admin.key")):
        with pytest.raises(NotReady):
            Probe(url, pki / "etcd-ca.crt", pair).check(5)


def test_nothing_listens_beyond_loopback(environment):
    pids = {state.pid for state in environment.health()}
    addresses = {connection.laddr.ip for connection in psutil.net_connections("inet") if connection.pid in pids and connection.status == psutil.CONN_LISTEN}
    assert addresses == {"127.0.0.1"}


def test_the_folder_is_private(environment):
    for path in [environment.folder, *environment.folder.rglob("*")]:
        if not path.is_symlink():
            assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path


def test_the_users_kubeconfig_is_not_touched(own, home, monkeypatch, small_fleet):
    monkeypatch.setenv("HOME", str(home))
    (home / ".kube").mkdir()
    (home / ".kube" / "config").write_text("mine")
    own(fleet=small_fleet)
    assert (home / ".kube" / "config").read_text() == "mine"
    assert sorted(path.name for path in (home / ".kube").iterdir()) == ["config"]


def test_proxies_do_not_catch_loopback(own, monkeypatch, small_fleet):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    env = own(fleet=small_fleet)
    assert healthy(env)
    shell = f'eval "$({ORCHLAB} env --name own)" && kubectl get nodes -o name'
    result = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=60)
    assert result.stdout.split() == ["node/gpu-0", "node/gpu-1"], result.stderr


def test_two_environments_side_by_side_and_up_again(own, small_fleet):
    one, two = own("one", fleet=small_fleet), own("two", fleet=small_fleet)
    assert not set(one.record.ports.values()) & set(two.record.ports.values())
    config_map(one.client(), "only-in-one")
    with pytest.raises(ApiError):
        two.client().get("/api/v1/namespaces/default/configmaps/only-in-one")
    pids = {state.name: state.pid for state in one.health()}
    again = environments.up("one")
    assert {state.name: state.pid for state in again.health()} == pids
    environments.down("two")
    assert healthy(one)


def test_down_leaves_nothing_and_up_finds_everything_again(own, small_fleet):
    env = own(fleet=small_fleet)
    config_map(env.client(), "kept")
    ports = dict(env.record.ports)
    environments.down("own")
    assert leftovers(str(env.folder)) == [] and listening(env) == []
    left = {path.name for path in env.folder.parent.iterdir()}
    assert left == {"own"}, "a lock was left"
    assert not list((env.folder / "tmp").iterdir())
    assert not (env.folder / "supervisor" / "sock").exists() and not (env.folder / "supervisor" / "pid").exists()
    env = environments.up("own")
    assert env.record.ports == ports
    env.client().get("/api/v1/namespaces/default/configmaps/kept")
    environments.down("own", purge=True)
    assert not env.folder.exists()
    assert environments.down("own") is False


@pytest.mark.timeout(600)
def test_cycles_of_killing_lose_nothing(own, small_fleet):
    """Any daemon, the supervisor too, is killed with -9; `up` heals; `down` leaves nothing. The full run is 20 cycles: ORCHLAB_CYCLES=20."""
    chance = random.Random(1)
    victims = [*PROCESSES, "supervisord"]
    chance.shuffle(victims)
    cycles = int(os.environ.get("ORCHLAB_CYCLES", 5))
    for cycle in range(cycles):
        env = own(fleet=small_fleet)
        config_map(env.client(), f"cycle-{cycle}")
        victim = victims[cycle % len(victims)]
        pids = {state.name: state.pid for state in env.health(probe=False)}
        pids["supervisord"] = psutil.Process(pids["etcd"]).ppid()
        assert pids[victim] > 1
        os.kill(pids[victim], signal.SIGKILL)
        env = environments.up("own")
        until(lambda env=env: healthy(env))
        kept, _ = env.client().list("/api/v1/namespaces/default/configmaps")
        assert {f"cycle-{number}" for number in range(cycle + 1)} <= {item["metadata"]["name"] for item in kept}
        environments.down("own")
        assert leftovers(str(env.folder)) == [] and listening(env) == []


def test_another_name_of_the_same_python_restarts_nothing(own, small_fleet):
    """The command line runs as python3.11, a kernel or a script as python: both heal the same environment."""
    env = own(fleet=small_fleet)
    before = {state.name: state.pid for state in env.health(probe=False)}
    names = {path for path in Path(sys.executable).parent.glob("python*") if path.resolve() == Path(sys.executable).resolve()}
    assert len(names) > 1
    for python in sorted(names):
        subprocess.run([python, "-c", "from orchlab import environment; environment.up('own')"], check=True, timeout=60)
        assert {state.name: state.pid for state in env.health(probe=False)} == before, python


def test_supervision_heals_without_up(own, small_fleet):
    env = own(fleet=small_fleet)
    for name in ("kube-scheduler", "simulator", "kwok"):
        os.kill(next(state.pid for state in env.health(probe=False) if state.name == name), signal.SIGKILL)
    until(lambda: healthy(env))


@pytest.mark.parametrize("moment", [0.4, 1.2, 2.5])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_up_can_be_repeated(own, home, moment, number):
    process = subprocess.Popen([ORCHLAB, "up", "--name", "own"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(moment)
    process.send_signal(number)
    process.wait(60)
    if number == signal.SIGINT and process.returncode != 0:
        assert leftovers(str(home / "own")) == []
    assert healthy(own())


def test_down_during_up_waits_for_it(own, small_fleet):
    failures = []

    def bring_up():
        try:
            own(fleet=small_fleet)
        except OrchlabError as error:
            failures.append(error)

    thread = threading.Thread(target=bring_up)
    thread.start()
    time.sleep(0.8)
    environments.down("own")
    thread.join(120)
    assert failures == []


def test_a_taken_port_is_named_with_its_holder(own, small_fleet):
    env = own(fleet=small_fleet)
    environments.down("own")
    with socket.create_server(("127.0.0.1", env.port("kube_apiserver"))):
        with pytest.raises(EnvironmentBroken, match=rf"port {env.port('kube_apiserver')} .kube_apiserver.*taken by process {os.getpid()}.*(?s:.)*--new-ports"):
            environments.up("own")
        assert leftovers(str(env.folder)) == []
        moved = environments.up("own", new_ports=True)
        assert moved.port("kube_apiserver") != env.port("kube_apiserver") and healthy(moved)


def test_a_broken_binary_ends_with_its_words_and_nothing_running(own, home, small_fleet, monkeypatch):
    from orchlab import engines

    real = engines.ensure

    def broken(names, progress=None):
        bad = home / "kube-apiserver"
        bad.write_text("#!/bin/sh\necho this is no API server; exit 1\n")
        bad.chmod(0o755)
        return real(names, progress) | {"kube-apiserver": bad}

    monkeypatch.setattr(engines, "ensure", broken)
    with pytest.raises(EnvironmentBroken, match="(?s)kube-apiserver does not start.*this is no API server"):
        own(fleet=small_fleet)
    assert leftovers(str(home / "own")) == []


def test_a_full_disk_is_said_and_nothing_started(home, monkeypatch):
    class Full:
        free = 3 * 2**20

    monkeypatch.setattr(environments.shutil, "disk_usage", lambda path: Full)
    with pytest.raises(EnvironmentBroken, match="only 3 MiB are free"):
        environments.up("own")
    assert leftovers(str(home / "own")) == []


def test_an_expiring_certificate_is_renewed_by_up(own, small_fleet):
    from datetime import UTC, datetime, timedelta

    from orchlab import pki
    from orchlab.kube import local

    env = own(fleet=small_fleet)
    environments.down("own")
    before = datetime.now(UTC) - timedelta(days=300)
    for pair in local.SERVERS:
        (env.folder / "pki" / f"{pair.file}.crt").unlink()
    pki.ensure(env.folder / "pki", local.SERVERS, now=before)
    old = pki.expires(env.folder / "pki" / "kube-apiserver.crt")
    assert healthy(environments.up("own"))
    assert pki.expires(env.folder / "pki" / "kube-apiserver.crt") > old + timedelta(days=200)


def test_status_and_logs_on_the_command_line(own, small_fleet):
    env = own(fleet=small_fleet)
    assert subprocess.run([ORCHLAB, "status", "--name", "own"], capture_output=True, timeout=60).returncode == 0
    env.supervisor.stop_process("kube-scheduler")
    result = subprocess.run([ORCHLAB, "status", "--name", "own"], capture_output=True, text=True, timeout=60, env=os.environ | {"COLUMNS": "200"})
    assert result.returncode == 3 and "kube-scheduler" in result.stdout and "stopped" in result.stdout and "orchlab up --name own" in result.stderr
    result = subprocess.run([ORCHLAB, "logs", "nobody", "--name", "own"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and "kube-apiserver" in result.stderr


@pytest.mark.parametrize(("settings", "field"), [({"name": "Bad Name"}, "--name"), ({"kubernetes": "cloud"}, "--kubernetes"), ({"slurm": "cloud"}, "--slurm"),
                                                 ({"clock": -1.0}, "clock"), ({"fleet": {"pools": []}}, "pools"), ({"kubernetes": "none", "slurm": "none"}, "--kubernetes")])
def test_bad_input_names_the_field_and_starts_nothing(home, settings, field):
    with pytest.raises(BadInput, match=field):
        environments.up(**({"name": "own"} | settings))
    assert leftovers(str(home / "own")) == []


def test_an_unwritable_state_folder_is_explained(home):
    """As an ordinary user: root may write anywhere."""
    home.chmod(0o755)
    (home / "locked").mkdir(mode=0o555)
    script = ("import os, sys\n"
              "from orchlab import environment\n"
              "from orchlab.errors import EnvironmentBroken\n"
              "os.getuid() or (os.setgroups([]), os.setgid(65534), os.setuid(65534))\n"
              "os.environ['ORCHLAB_HOME'] = sys.argv[1]\n"
              "try: environment.up('own')\n"
              "except EnvironmentBroken as error: print(error)\n")
    result = subprocess.run([sys.executable, "-c", script, str(home / "locked" / "state")], capture_output=True, text=True, timeout=60, cwd="/")
    assert "cannot be written" in result.stdout and "ORCHLAB_HOME" in result.stdout, result.stderr
