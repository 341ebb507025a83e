"""The whole program, its client of the API server and what it follows of its own pod."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from device_plugin_fakes import SECONDS, Cluster, Kubelet, folder, node, until
from simulator_fakes import pod

from orchlab.device_plugin import __main__ as program
from orchlab.device_plugin import incluster
from orchlab.errors import BadInput
from orchlab.simulator import pods

GPU = "nvidia.com/gpu"


@pytest.fixture
def root():
    made = folder()
    (made / "dev").mkdir()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def kubelet(root):
    (root / "plugins").mkdir()
    made = Kubelet(root / "plugins").start()
    yield made
    made.stop()


def words(root) -> list[str]:
    return ["--node", "n", "--environment", "env", "--plugins", str(root / "plugins"), "--pod-resources",
            str(root / "plugins" / "pod-resources.sock"), "--smi", str(root / "smi"), "--dev", str(root / "dev")]


def test_follows_the_node_and_its_own_pod(root, kubelet, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setenv("POD_NAMESPACE", "gpu-operator")
    monkeypatch.setenv("POD_NAME", "plugin")
    own = {"metadata": {"name": "plugin", "namespace": "gpu-operator", "uid": "o", "annotations": {}}, "spec": {}, "status": {}}
    cluster = Cluster(pod("a"), own)
    cluster.node = node()
    stop, wakes, codes = threading.Event(), [], []
    thread = threading.Thread(target=lambda: codes.append(program.run(program.options(words(root)), cluster, stop, wakes.append)), daemon=True)
    thread.start()
    first = next(iter(kubelet.devices(GPU)))
    own["metadata"]["annotations"]["orchlab/log"] = f"Registered device plugin for '{GPU}' with Kubelet\n'{GPU}' device marked unhealthy: {first}"
    cluster.node = node(ill={"0": 79})
    until(lambda: kubelet.devices(GPU)[first] == "Unhealthy")
    kubelet.held = {("ns", "a"): {"main": {GPU: [first]}}}
    until(lambda: pods.held_devices(cluster.pods["ns", "a"]) == {"main": [first]})
    until(lambda: f"'{GPU}' device marked unhealthy: {first}" in caplog.messages)
    assert caplog.messages.count(f"Registered device plugin for '{GPU}' with Kubelet") == 1
    own["metadata"]["annotations"] |= {"orchlab/log": "error starting plugins: bad", "orchlab/crash": "true"}
    thread.join(SECONDS)
    assert codes == [1] and stop.is_set() and "error starting plugins: bad" in caplog.messages
    assert not list((root / "plugins").glob("nvidia-*"))


class Answers(http.server.BaseHTTPRequestHandler):
    """An API server that knows one node, and remembers the tokens that it was shown."""

    tokens: list[str] = []

    def do_GET(self):
        self.tokens.append(self.headers["Authorization"])
        listed = {"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [node()]}
        body = json.dumps(listed).encode() if "watch=1" not in self.path else b""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Answers.tokens = []
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()


def test_the_token_is_read_again_when_it_was_renewed(tmp_path, server):
    token = tmp_path / "token"
    token.write_text("one\n")
    client = incluster.PodClient(server, None, token)
    client.get("/api/v1/nodes")
    (tmp_path / "new").write_text("two\n")
    os.replace(tmp_path / "new", token)
    client.get("/api/v1/nodes")
    token.unlink()
    client.get("/api/v1/nodes")
    assert Answers.tokens == ["Bearer one", "Bearer two", "Bearer two"]


def test_outside_of_a_pod_there_is_no_client(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BadInput, match="this is no pod"):
        incluster.client(tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    with pytest.raises(BadInput, match="token"):
        incluster.client(tmp_path)


def test_in_a_pod_it_asks_the_service_with_its_ca(tmp_path, monkeypatch):
    trustme = pytest.importorskip("trustme")
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("t")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert incluster.client(tmp_path).server == "https://[fd00::1]:6443"


def test_sigterm_ends_it_with_its_sockets_gone(root, kubelet, server):
    code = ("import sys; from pathlib import Path; from orchlab.device_plugin import incluster, __main__ as program; "
            f"incluster.client = lambda: incluster.PodClient({server!r}, None, Path({str(root / 'token')!r})); program.main()")
    (root / "token").write_text("t")
    process = subprocess.Popen([sys.executable, "-c", code, *words(root)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert len(kubelet.devices(GPU)) == 4
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0
    assert [line for line in said.splitlines() if "watch" not in line and "not yet" not in line] == [
        "SIMULATED by orchlab: a real device plugin for a real kubelet; the GPUs are made up.", f"Starting GRPC server for '{GPU}'",
        f"Starting to serve '{GPU}' on {root}/plugins/nvidia-gpu.sock", f"Registered device plugin for '{GPU}' with Kubelet",
        'Received signal "terminated", shutting down.', "Stopping plugins.", f"Stopping to serve '{GPU}' on {root}/plugins/nvidia-gpu.sock"]
    assert not list((root / "plugins").glob("nvidia-*"))
