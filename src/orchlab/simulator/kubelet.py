"""The part of a kubelet's HTTPS API that the API server calls for `kubectl logs`, exec, attach and port-forward.

Loopback only; callers show a certificate of the environment's authority whose common name is the API server's kubelet client. Nothing that
a caller sends is ever run: there is no container to run it in, and the host is not ours.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from orchlab.errors import ApiError, EnvironmentBroken
from orchlab.kube.client import Client
from orchlab.simulator import logs

CALLER = "kube-apiserver-kubelet-client"
# A handshake, a request line or an answer that takes longer is given up (s).
PATIENCE = 10
# How long `logs -f` is served before the caller has to ask again, and how often the pod is looked at (s).
LONGEST_FOLLOW, LOOK = 3600, 0.5
REFUSED = re.compile(r"/(exec|attach|portForward|run|checkpoint|cri)(/|$)")
LOGS = re.compile(r"/containerLogs/([a-z0-9-]+)/([a-z0-9.-]+)/([a-z0-9-]+)")
REFUSAL = "simulated by orchlab: no container runs in this pod, so there is nothing to {}; kubectl logs and kubectl describe work"
VERBS = {"exec": "execute a command in", "attach": "attach to", "portForward": "forward a port to"}

log = logging.getLogger("kubelet")


def serve(folder: Path, port: int, client: Client, down: Callable[[], frozenset[str]] = frozenset,
          course: Callable[[dict], list[tuple[datetime, int]]] = lambda _: []) -> ThreadingHTTPServer:
    """Starts answering in threads of its own. `folder` holds ca.crt, simulator.crt and simulator.key; `down` gives the nodes whose kubelets
    do not answer now, `course` how many pods of a pod's barrier were Running when. Raises OSError for a taken port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(folder / "simulator.crt", folder / "simulator.key")
    context.load_verify_locations(folder / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    server = _Server(("127.0.0.1", port), _handler(client, down, course))
    server.context = context
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 3600}, name="kubelet", daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    context: ssl.SSLContext

    def process_request_thread(self, request, client_address) -> None:
        # The handshake belongs in the caller's own thread: a silent caller must not hold up the others.
        try:
            request.settimeout(PATIENCE)
            request = self.context.wrap_socket(request, server_side=True)
        except OSError as error:
            log.info("no TLS with %s: %s", client_address[0], error)
            self.shutdown_request(request)
            return
        super().process_request_thread(request, client_address)

    def handle_error(self, request, client_address) -> None:
        log.exception("a request of %s failed", client_address[0])


def _handler(client: Client, down: Callable[[], frozenset[str]], gathering: Callable[[dict], list[tuple[datetime, int]]]) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        api = client
        silent = staticmethod(down)
        course = staticmethod(gathering)

    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "orchlab-simulator"
    sys_version = ""
    timeout = PATIENCE
    api: Client
    silent: Callable[[], frozenset[str]]
    course: Callable[[dict], list[tuple[datetime, int]]]

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    do_PUT = do_DELETE = do_POST

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        # One request a connection: what an upgrade (exec) has sent behind its head is not a next request.
        self.close_connection = True
        try:
            path = urlsplit(self.path)
            if not self._is_api_server():
                self._text(403, f"only a certificate with the common name {CALLER} may ask")
            elif match := REFUSED.match(path.path):
                what = match[1] if match[1] in VERBS else "exec"
                self._refuse(REFUSAL.format(VERBS[what]))
            elif self.command == "GET" and path.path == "/healthz":
                self._text(200, "ok")
            elif self.command == "GET" and (match := LOGS.fullmatch(path.path)):
                self._logs(*match.groups(), {k: v[-1] for k, v in parse_qs(path.query).items()})
            else:
                self._text(404, "the simulated kubelet knows /healthz and /containerLogs/NAMESPACE/POD/CONTAINER")
        except (BrokenPipeError, ConnectionError, TimeoutError):
            # The caller has left; there is nobody to tell.
            pass

    def _is_api_server(self) -> bool:
        subject = self.connection.getpeercert().get("subject", ())
        return ("commonName", CALLER) in [pair for part in subject for pair in part]

    def _refuse(self, text: str) -> None:
        # A Status object: kubectl shows its message, of plain text it may show nothing.
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotImplemented", "code": 501,
                  "message": text}
        self._text(501, json.dumps(status), "application/json")

    def _text(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _logs(self, namespace: str, pod: str, container: str, query: dict[str, str]) -> None:
        try:
            options = _Options(query)
            found = self.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")
            if found["spec"].get("nodeName") in self.silent():
                return None
            told = logs.lines(found, container, datetime.now(UTC), options.previous, self.course(found))
        except ValueError as error:
            return self._text(400, str(error))
        except logs.NoLog as error:
            return self._text(400, str(error))
        except ApiError as error:
            return self._text(error.status, error.args[0])
        except EnvironmentBroken as error:
            return self._text(503, error.args[0])
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        shown = options.select(told)
        self._chunk(options.write(shown))
        if options.follow:
            self._follow(found, container, options, told)
        self.wfile.write(b"0\r\n\r\n")
        return None

    def _follow(self, pod: dict, container: str, options: _Options, told: list[logs.Line]) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        deadline, uid = time.monotonic() + LONGEST_FOLLOW, pod["metadata"]["uid"]
        start, count = told[0].at if told else None, len(told)
        while not logs.is_over(pod, container) and not options.previous and time.monotonic() < deadline:
            time.sleep(LOOK)
            try:
                pod = self.api.get(path)
                now = logs.lines(pod, container, datetime.now(UTC), course=self.course(pod))
            except (ApiError, EnvironmentBroken, logs.NoLog):
                return
            # Another pod of that name, or the container's next run: this log is over.
            if pod["metadata"]["uid"] != uid or not now or now[0].at != start:
                return
            self._chunk(options.write(now[count:]))
            count = len(now)

    def _chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()


class _Options:
    """The query of a log request, as the API server passes it on. Raises ValueError naming what is wrong."""

    def __init__(self, query: dict[str, str]) -> None:
        self.follow, self.previous, self.timestamps = (query.get(name) == "true" for name in ("follow", "previous", "timestamps"))
        self.tail = _number(query, "tailLines")
        self.limit = _number(query, "limitBytes")
        self.since: datetime | None = None
        if "sinceSeconds" in query:
            self.since = datetime.now(UTC) - timedelta(seconds=_number(query, "sinceSeconds") or 0)
        elif "sinceTime" in query:
            self.since = datetime.fromisoformat(query["sinceTime"].replace("Z", "+00:00"))

    def select(self, lines: list[logs.Line]) -> list[logs.Line]:
        if self.since:
            lines = [line for line in lines if line.at >= self.since]
        return lines if self.tail is None else lines[max(0, len(lines) - self.tail):]

    def write(self, lines: list[logs.Line]) -> bytes:
        stamp = "%Y-%m-%dT%H:%M:%S.%f000Z "
        text = "".join(f"{line.at.strftime(stamp) if self.timestamps else ''}{line.text}\n" for line in lines).encode()
        if self.limit is not None:
            text, self.limit = text[:self.limit], max(0, self.limit - len(text))
        return text


def _number(query: dict[str, str], name: str) -> int | None:
    if name not in query:
        return None
    if not query[name].isdigit():
        raise ValueError(f"{name}: {query[name]!r} is not a whole number")
    return int(query[name])
