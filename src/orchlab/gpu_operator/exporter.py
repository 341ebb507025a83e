"""The DCGM exporters of all nodes in one place: Prometheus text on loopback, at /metrics, and /metrics?node=NAME for one node.

A real exporter answers on port 9400 of its own pod; here there is no pod network, so one server answers for every node whose exporter runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from orchlab.errors import ApiError, EnvironmentBroken
from orchlab.gpu_operator import gates, names, operands, readings
from orchlab.gpus import dcgm
from orchlab.kube.client import Client
from orchlab.simulator import pods

PATIENCE = 10

log = logging.getLogger("exporter")


def serve(port: int, client: Client, environment_id: Callable[[], str]) -> ThreadingHTTPServer:
    """Starts answering in threads of its own. Raises OSError for a taken port."""
    handler = type("Handler", (_Handler,), {"api": client, "environment_id": staticmethod(environment_id)})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 3600}, name="exporter", daemon=True).start()
    return server


def metrics(client: Client, environment_id: str, wanted: str = "") -> str:
    """The text of all nodes whose exporter's pod is Ready, or of one of them; "" if there is none. Raises ApiError, EnvironmentBroken."""
    query = {"fieldSelector": "spec.nodeName=" + wanted} if wanted else {"fieldSelector": "spec.nodeName!="}
    found, _ = client.list("/api/v1/pods", **query)
    exporting = set()
    for pod in found:
        if pod["metadata"]["namespace"] == names.NAMESPACE and (one := gates.of(pod)).operand == operands.EXPORTER_DS and one.runs:
            exporting.add(one.node)
    holding = [pod for pod in found if pods.DEVICES in (pod["metadata"].get("annotations") or {})]
    texts, note = [], dcgm.NOTE
    for node in client.list("/api/v1/nodes")[0]:
        if node["metadata"]["name"] in exporting:
            seen = readings.of_node(environment_id, node, holding)
            texts.append(dcgm.exposition(seen.inventory, seen.holders, seen.loads, note=note))
            note = ""
    return _merged("".join(texts))


def _merged(text: str) -> str:
    """One HELP and one TYPE for each metric, with its series behind them, as the format wants it."""
    heads: dict[str, list[str]] = {}
    series: dict[str, list[str]] = {}
    notes: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if line.startswith(("# HELP ", "# TYPE ")):
            heads.setdefault(words[2], [])
            if line not in heads[words[2]]:
                heads[words[2]].append(line)
        elif line.startswith("#"):
            notes.append(line)
        elif line:
            series.setdefault(line.partition("{")[0], []).append(line)
    parts = [*notes, *(line for name, head in heads.items() for line in (*head, *series.get(name, [])))]
    return "\n".join(parts) + "\n" if parts else ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "orchlab-dcgm-exporter", ""
    timeout = PATIENCE
    api: Client
    environment_id: Callable[[], str]

    def do_GET(self) -> None:
        self.close_connection = True
        path = urlsplit(self.path)
        if path.path == "/healthz":
            return self._text(200, "ok")
        if path.path != "/metrics":
            return self._text(404, "ask for /metrics, or /metrics?node=NAME\n")
        wanted = (parse_qs(path.query).get("node") or [""])[-1]
        try:
            return self._text(200, metrics(self.api, self.environment_id(), wanted))
        except (ApiError, EnvironmentBroken) as error:
            return self._text(503, f"{error.args[0]}\n")

    def log_message(self, *_: object) -> None:
        pass

    def _text(self, status: int, text: str) -> None:
        body = text.encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionError, TimeoutError):
            pass  # the caller has left
