"""JupyterLab as `orchlab lab` starts it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from orchlab import jupyter
from orchlab.course import kernels, working
from orchlab.environment import Environment
from orchlab.errors import BadInput


def ask(server, path, token=None, method="GET"):
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}", method=method, headers={"Authorization": f"token {token}"} if token else {}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read() or b"null")


@pytest.fixture
def env(course):
    working.update()
    return Environment.load(course)


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A user who has a kernel and a Jupyter configuration of their own, both of which would do harm here."""
    home = tmp_path / "user"
    spec = home / ".local/share/jupyter/kernels/python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps({"argv": ["/bin/false"], "display_name": "theirs", "language": "python"}))
    (home / ".jupyter").mkdir()
    (home / ".jupyter" / "jupyter_server_config.py").write_text("c.ServerApp.ip = '0.0.0.0'\nc.IdentityProvider.token = ''\n")
    monkeypatch.setenv("HOME", str(home))
    return home


def children_of(server) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children(recursive=True)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_on_loopback_with_a_token_with_our_kernel_and_nothing_of_the_user_s_is_read_or_written(env, user):
    before = everything(user)
    server = jupyter.start(env, 18888)
    try:
        listening = {
            connection.laddr.ip
            for process in [psutil.Process(server.process.pid)]
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}
        assert server.token not in " ".join(psutil.Process(server.process.pid).cmdline())
        with pytest.raises(urllib.error.HTTPError, match="403"):
            ask(server, "/api/contents")
        names = {item["name"] for item in ask(server, "/api/contents", server.token)["content"]}
        assert {"00-welcome.ipynb", "01-stand-up-kubernetes.ipynb"} <= names and "checks.py" not in names
        specs = ask(server, "/api/kernelspecs", server.token)
        assert specs["default"] == "python3" and specs["kernelspecs"]["python3"]["spec"]["argv"][0] == sys.executable
        ask(server, "/api/kernels", server.token, "POST")
        deadline = time.monotonic() + 60
        while not (children := [child for child in children_of(server) if "ipykernel_launcher" in " ".join(child.cmdline())]):
            assert time.monotonic() < deadline, "no kernel was started"
            time.sleep(0.1)
        assert {child.environ().get("ORCHLAB_ENVIRONMENT") for child in children} == {env.name}
    finally:
        server.stop()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert alive == [] and not psutil.pid_exists(server.process.pid)
    assert everything(user) == before


def test_a_server_that_is_killed_leaves_no_kernel(env):
    server = jupyter.start(env, 18888)
    ask(server, "/api/kernels", server.token, "POST")
    children = children_of(server)
    server.process.kill()
    server.process.wait()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


def test_the_first_time_it_opens_the_first_lab_and_a_killed_command_leaves_no_server(env):
    # As for a newcomer, whatever other tests had opened in this environment.
    shutil.rmtree(kernels.jupyter_folder() / "workspaces", ignore_errors=True)
    command = subprocess.Popen(
        [str(Path(sys.executable).with_name("orchlab")), "lab", "--no-browser", "--port", "18900"], stdout=subprocess.PIPE, text=True
    )
    children = []
    try:
        lines = []
        for line in command.stdout:
            lines.append(line)
            if "stop" in line:
                break
        shown = "".join(lines)
        children = psutil.Process(command.pid).children()
        port = re.search(r"http://127\.0\.0\.1:(\d+)/lab/tree/00-welcome\.ipynb\?token=", shown)
        assert port and f"ssh -N -L {port[1]}:127.0.0.1:{port[1]}" in shown, shown
        assert len(children) == 1
    finally:
        command.kill()
        command.wait()
        command.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def test_a_taken_port_gives_the_next_and_a_bad_one_is_refused(env):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 18888))
        taken.listen()
        server = jupyter.start(env, 18888)
        try:
            assert 18888 < server.port < 18950
        finally:
            server.stop()
    with pytest.raises(BadInput, match="--port: 80"):
        jupyter.start(env, 80)


@pytest.mark.parametrize("profile", ["export PATH=/usr/bin:/bin KUBECONFIG=/theirs\n", ""])
def test_a_terminal_has_the_environment_s_kubectl_whatever_the_user_s_own_files_say(env, user, profile):
    (user / ".bashrc").write_text(profile)
    command = [
        *kernels.terminal(env, "/bin/bash"),
        "-i",
        "-c",
        "command -v orchlab kubectl; echo $KUBECONFIG; kubectl get nodes -o name | head -1",
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, env=kernels.variables(env)).stdout.splitlines()
    folder = Path(sys.executable).parent
    assert shown == [str(folder / "orchlab"), str(folder / "kubectl"), str(env.kubeconfig), "node/a100-0"]
    assert kernels.terminal(env, "/usr/bin/zsh") == ["/usr/bin/zsh"]
