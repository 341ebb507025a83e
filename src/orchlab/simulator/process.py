"""The simulator's threads: publish nodes, watch nodes, watch pods, answer as kubelets, follow changes of the environment's record."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchlab.errors import EnvironmentBroken
from orchlab.kube.client import Client
from orchlab.kube.watching import Watcher
from orchlab.simulator import kubelet, nodes, settings
from orchlab.simulator.admission import ON_NODES, PODS, Admission
from orchlab.simulator.barriers import Barriers
from orchlab.simulator.plugins import Plugins
from orchlab.simulator.stages import KUBELET_LABEL

# More workers than that only queue at Python's lock.
WORKERS = 12
LOOK_AT_RECORD = 0.5

log = logging.getLogger("simulator")


class Process:
    """Runs until `stop` is set."""

    def __init__(self, folder: Path, stop: threading.Event) -> None:
        self._folder = folder
        self._stop = stop
        self._settings = settings.Watched(folder)
        self._client = Client.from_kubeconfig(folder / "kubeconfigs" / "simulator.kubeconfig", connections=WORKERS + 8)
        self._watcher = Watcher(self._client, stop)
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="write")
        self._admission = Admission(self._client, self._workers, lambda: self._settings.current.clock)
        self._barriers = Barriers(self._admission.note, self._admission.warn)
        self._plugins = Plugins(self._client, self._workers, self._admission, lambda: self._settings.current.clock)

    def run(self) -> None:
        """Raises OSError when the port for the kubelets' API is taken."""
        kubelet.serve(self._folder / "pki", self._settings.current.port, self._client, lambda: self._settings.current.down, self._barriers.course)
        for name, path, query, take in (("nodes", nodes.NODES, {}, self._on_node), ("pods", PODS, ON_NODES, self._on_pod)):
            threading.Thread(target=self._watcher.keep, args=(name, path, query, take), name=name, daemon=True).start()
        self._watcher.insist("publish nodes", self._publish)
        while not self._stop.wait(LOOK_AT_RECORD):
            self._plugins.tick()
            self._barriers.tick(time.time())
            try:
                if self._settings.changed():
                    log.info("the environment's record changed")
                    self._watcher.insist("publish nodes", self._publish)
            except EnvironmentBroken as error:
                log.error("%s", error.args[0])

    def _publish(self) -> None:
        now = self._settings.current
        version = self._client.get("/version")["gitVersion"].split("+")[0]
        wanted = [nodes.manifest(node, now.environment_id, now.port, version, node.name in now.down) for node in now.nodes]
        nodes.Publisher(self._client, self._workers).publish(wanted)

    def _on_pod(self, kind: str, what: dict | list[dict]) -> None:
        if kind == "LIST":
            self._admission.relisted(what)
            self._barriers.relisted(what, time.time())
        elif kind == "DELETED":
            self._admission.pod_gone(what)
            self._barriers.pod_gone(what["metadata"]["uid"])
        else:
            self._admission.pod(what)
            self._barriers.pod(what, time.time())

    def _on_node(self, kind: str, what: dict | list[dict]) -> None:
        if kind == "LIST":
            self._admission.only_nodes({node["metadata"]["name"] for node in what})
        elif kind == "DELETED":
            self._admission.node_gone(what["metadata"]["name"])
            self._plugins.gone(what["metadata"]["name"])
            return
        in_fleet = {node.name for node in self._settings.current.nodes}
        for node in what if kind == "LIST" else [what]:
            name = node["metadata"]["name"]
            if (node["metadata"].get("labels") or {}).get(KUBELET_LABEL[0]) == KUBELET_LABEL[1]:
                self._plugins.node(node, name in in_fleet)
            elif name in in_fleet:
                self._plugins.silent(name)
