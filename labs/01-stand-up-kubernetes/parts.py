"""Questions to the parts of a control plane, each to the process itself over its own TLS port."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import textwrap
from collections import Counter

import psutil

from orchlab.course import Lab, Text
from orchlab.environment import Environment

SECONDS = 10


def ask(env: Environment, process: str, path: str, body: dict | None = None) -> str:
    """GET `path` (or POST `body` to it) from a process of the control plane, with the client certificate that it accepts."""
    authority, pair = ("etcd-ca", "apiserver-etcd") if process == "etcd" else ("ca", "admin")
    context = ssl.create_default_context(cafile=env.folder / "pki" / f"{authority}.crt")
    context.load_cert_chain(env.folder / "pki" / f"{pair}.crt", env.folder / "pki" / f"{pair}.key")
    port = env.port(process.replace("-", "_"))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=context)
    try:
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def etcd_keys(env: Environment) -> Counter:
    """How many keys etcd holds under /registry/, by the part that follows: /v3/kv/range is etcd's API, keys travel in base64."""
    def coded(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    # "0" is the character after "/": the range is everything that begins with /registry/.
    answer = json.loads(ask(env, "etcd", "/v3/kv/range", {"key": coded("/registry/"), "range_end": coded("/registry0"), "keys_only": True}))
    return Counter(base64.b64decode(found["key"]).decode().split("/")[2] for found in answer["kvs"])


def clients_of_etcd(env: Environment) -> list[str]:
    """Which of the environment's processes hold connections to etcd, as the operating system sees them."""
    port = env.port("etcd")
    return sorted(state.name for state in env.health() if state.name != "etcd"
                  and any(c.raddr and c.raddr.port == port for c in psutil.Process(state.pid).net_connections("tcp")))


def controllers(env: Environment) -> list[str]:
    """The control loops inside kube-controller-manager, by its own health report."""
    lines = ask(env, "kube-controller-manager", "/healthz?verbose").splitlines()
    return sorted(line.split("]")[1].split()[0].removesuffix("-controller") for line in lines if line.startswith("[+]"))


def profile(env: Environment) -> Text:
    """The running scheduler's profile, as it gives it itself: its plugins, in order, and how NodeResourcesFit scores."""
    config = json.loads(ask(env, "kube-scheduler", "/configz"))["componentconfig"]["profiles"][0]
    arguments = {entry["name"]: entry["args"] for entry in config["pluginConfig"]}
    strategy = arguments["NodeResourcesFit"]["scoringStrategy"]
    plugins = ", ".join(plugin["name"] for plugin in config["plugins"]["multiPoint"]["enabled"])
    return Text(f"{textwrap.fill(f'plugins, in order: {plugins}', 100)}\n"
                f"score of NodeResourcesFit: {strategy['type']} of {', '.join(resource['name'] for resource in strategy['resources'])}")


def speakers(lab: Lab) -> Text:
    """Who said what about which kind of object: the events of the lab's namespace, each line once."""
    said = {(event.get("reportingComponent") or event["source"].get("component", ""), event["reason"], event["involvedObject"]["kind"])
            for event in lab.place.list("event")}
    return Text("\n".join(f"{who:<22} {reason:<18} about a {kind}" for who, reason, kind in sorted(said)))


def writers(lab: Lab, target: str) -> Text:
    """Who wrote which part of an object, by its managedFields."""
    lines = []
    for entry in (lab.get(target) or {"metadata": {}})["metadata"].get("managedFields", []):
        fields = entry["fieldsV1"]
        parts = ["status"] if "f:status" in fields else sorted(
            f"{top.removeprefix('f:')}.{name.removeprefix('f:')}" for top, below in fields.items() for name in below)
        lines.append(f"{entry['manager']:<24} {', '.join(parts)}")
    return Text("\n".join(sorted(lines)))


def columns(names: list[str], count: int = 2) -> Text:
    """Names side by side."""
    width = max(map(len, names)) + 2
    rows = [names[start:start + count] for start in range(0, len(names), count)]
    return Text("\n".join("".join(f"{name:<{width}}" for name in row).rstrip() for row in rows))
