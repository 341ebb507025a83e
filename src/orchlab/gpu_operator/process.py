"""The operator's threads: watches fill a cache, workers bring nodes and the ClusterPolicy in line with what is wanted.

Watches of our own instead of an operator framework: a thread and a handler per object and per timer would cost more at 1,000 nodes with
eight operands each than the whole work, which is one queue of node names for a few threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from orchlab.errors import ApiError, EnvironmentBroken
from orchlab.gpu_operator import exporter, migration, names, node, operands, status
from orchlab.gpu_operator.cache import Cache
from orchlab.gpu_operator.gates import OperandPod
from orchlab.gpu_operator.names import CONFIG_MAPS, DAEMONSETS, PODS
from orchlab.gpu_operator.node import Memory, View
from orchlab.gpu_operator.policy import Policy
from orchlab.gpu_operator.queue import WorkQueue
from orchlab.kube.client import APPLY, Client
from orchlab.kube.watching import Watcher
from orchlab.simulator import pods, settings
from orchlab.simulator.nodes import NODES

WORKERS = 8
# Changes that matter to the ClusterPolicy's status come in crowds (s).
GATHER = 0.05
# The key of the queue that stands for the ClusterPolicy: no node is called so.
POLICY = "/policy"
LOOK_AT_RECORD, TRY_AGAIN = 0.5, 0.5
MANAGER = {"fieldManager": "gpu-operator"}

log = logging.getLogger("operator")


class Process:
    """Runs until `stop` is set."""

    def __init__(self, folder: Path, stop: threading.Event) -> None:
        self._stop = stop
        self.settings = settings.Watched(folder)
        self.client = Client.from_kubeconfig(folder / "kubeconfigs" / "gpu-operator.kubeconfig", connections=WORKERS + 8)
        self._watcher = Watcher(self.client, stop)
        self.cache = Cache()
        self._queue = WorkQueue()
        self._memory: dict[str, Memory] = {}
        self._unlisted: set[str] = set()
        self._complete = threading.Event()
        self._broken = self.settings.current.broken

    def run(self) -> None:
        """Raises OSError when the port for the metrics is taken."""
        watches = [("nodes", NODES, self._on_node), ("pods", PODS, self._on_pod),
                   *((kind, path, partial(self._on_object, kind)) for kind, path in
                     (("daemonsets", DAEMONSETS), ("configmaps", CONFIG_MAPS), ("policies", names.POLICIES)))]
        self._unlisted = {name for name, _, _ in watches}
        for name, path, take in watches:
            arguments = (name, path, {}, partial(self._take, name, take))
            threading.Thread(target=self._watcher.keep, args=arguments, name=name, daemon=True).start()
        exporter.serve(self.settings.current.metrics_port, self.client, lambda: self.settings.current.environment_id)
        for number in range(WORKERS):
            threading.Thread(target=self._work, name=f"worker-{number}", daemon=True).start()
        while not self._stop.wait(LOOK_AT_RECORD):
            try:
                if self.settings.changed():
                    self._driver_faults()
                    self._all_nodes()
            except EnvironmentBroken as error:
                log.error("%s", error.args[0])

    # -- what the watches bring

    def _take(self, name: str, take: Callable[[str, dict | list[dict]], None], kind: str, what: dict | list[dict]) -> None:
        take(kind, what)
        self._unlisted.discard(name)
        if not self._unlisted:
            self._complete.set()

    def _on_node(self, kind: str, what: dict | list[dict]) -> None:
        if kind == "DELETED":
            self.cache.drop_node(what["metadata"]["name"])
        elif kind == "LIST":
            self.cache.only_nodes({found["metadata"]["name"] for found in what})
        for found in what if kind == "LIST" else [what] if kind != "DELETED" else []:
            if self.cache.put_node(found):
                self._queue.add(found["metadata"]["name"])
                self._queue.add(POLICY, GATHER)

    def _on_pod(self, kind: str, what: dict | list[dict]) -> None:
        if kind == "DELETED":
            touched = [self.cache.drop_pod(what["metadata"]["uid"])]
        else:
            if kind == "LIST":
                self.cache.only_pods({found["metadata"]["uid"] for found in what})
            touched = [self.cache.put_pod(found) for found in (what if kind == "LIST" else [what])]
        for name in filter(None, touched):
            self._queue.add(name)

    def _on_object(self, kind: str, event: str, what: dict | list[dict]) -> None:
        if event == "LIST":
            self.cache.only_objects(kind, {found["metadata"]["name"] for found in what})
        for found in what if event == "LIST" else [what]:
            if event == "DELETED":
                self.cache.drop_object(kind, found["metadata"]["name"])
            else:
                self.cache.put_object(kind, found)
        self._queue.add(POLICY, 0 if kind == "policies" else GATHER)
        if kind == "policies":
            self._all_nodes()
        elif kind == "configmaps":
            for found in what if event == "LIST" else [what]:
                owner = found["metadata"]["name"].removesuffix(migration.generated_name(""))
                if self.cache.node(owner) is None:
                    self._all_nodes()
                    break
                self._queue.add(owner)

    def _all_nodes(self) -> None:
        for found in self.cache.nodes():
            self._queue.add(found.name)

    # -- the work

    def _work(self) -> None:
        # Before everything has been listed once, pods or the policy would seem to be missing.
        self._complete.wait()
        while not self._stop.is_set():
            key = self._queue.get(timeout=5)
            if key is None:
                continue
            try:
                if key == POLICY:
                    self._reconcile_policy()
                else:
                    self._reconcile_node(key)
            except (ApiError, EnvironmentBroken) as error:
                if getattr(error, "status", 500) not in (404, 409):
                    log.info("%s: %s", key, error.args[0])
                self._queue.add(key, TRY_AGAIN)
            except Exception:
                # One node that is beyond us must not stop the work on the others.
                log.exception("%s", key)
                self._queue.add(key, 10 * TRY_AGAIN)
            finally:
                self._queue.done(key)

    def policy(self) -> Policy | None:
        """The ClusterPolicy that counts: the oldest."""
        found = sorted(self.cache.objects("policies").values(),
                       key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]))
        return Policy.of(found[0]) if found and "deletionTimestamp" not in found[0]["metadata"] else None

    def view(self, name: str) -> View | None:
        """A node as it is known now; None if there is none."""
        found = self.cache.node(name)
        if found is None:
            return None
        maps, now = self.cache.objects("configmaps"), self.settings.current
        return View(name, found.labels, found.notes, found.allocatable, self.policy(), self.cache.pods(name),
                    lambda wanted: maps[wanted].get("data") or {} if wanted in maps else None, now.environment_id,
                    partial(self._held, name), name in now.broken, now.clock.simulated_seconds(time.monotonic()))

    def _site(self) -> operands.Site | None:
        now = self.settings.current
        return operands.Site(now.operand_image, now.environment_id) if now.operand_image else None

    def _held(self, name: str) -> frozenset[str]:
        """The devices that the pods on a node hold, by the API server's word: what the MIG manager does to a busy GPU is final."""
        found, _ = self.client.list("/api/v1/pods", fieldSelector=f"spec.nodeName={name}")
        held = (pods.held_devices(pod) for pod in found if not pods.is_over(pod))
        return frozenset(device for containers in held for devices in containers.values() for device in devices)

    def _reconcile_node(self, name: str) -> None:
        view = self.view(name)
        if view is None:
            self._memory.pop(name, None)
            return
        memory = self._memory.setdefault(name, Memory())
        made = node.decide(view, memory)
        if made.mig_config is not None:
            self._write_mig_config(name, made.mig_config)
        for pod in made.delete:
            self._delete(pod)
        for pod, notes in made.pods:
            body = {"metadata": {"uid": pod.uid, "annotations": notes}}
            self.cache.put_pod(self.client.patch(f"{PODS}/{pod.name}", body, **MANAGER), own=True)
        if made.labels or made.notes:
            change = {"metadata": {"labels": made.labels, "annotations": made.notes}}
            self.cache.put_node(self.client.patch(f"{NODES}/{name}", change, **MANAGER), own=True)
            # The watch brings this as well, but then it is no news any more.
            self._queue.add(POLICY, GATHER)
        if made.pods or made.labels or made.notes:
            self._queue.add(name)
        if made.after is not None:
            self._queue.add(name, max(0.01, self.settings.current.clock.real_seconds(made.after)))

    def _write_mig_config(self, name: str, text: str) -> None:
        wanted = migration.generated_name(name)
        known = self.cache.objects("configmaps").get(wanted)
        if known is not None and (known.get("data") or {}) == {migration.KEY: text}:
            return
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": wanted, "namespace": names.NAMESPACE},
                    "data": {migration.KEY: text}}
        if known is not None:
            self.client.patch(f"{CONFIG_MAPS}/{wanted}", {"data": dict.fromkeys(known.get("data") or {}) | manifest["data"]}, **MANAGER)
        else:
            self.client.create(CONFIG_MAPS, manifest, **MANAGER)

    def _delete(self, pod: OperandPod) -> None:
        try:
            self.client.delete(f"{PODS}/{pod.name}", {"preconditions": {"uid": pod.uid}})
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _driver_faults(self) -> None:
        """A driver that breaks, or is mended, starts anew; whatever uses it goes with it and waits for it again."""
        changed, self._broken = self._broken ^ self.settings.current.broken, self.settings.current.broken
        for name in changed:
            for pod in self.cache.pods(name).values():
                if pod.operand in operands.BY_NAME and not pod.deleting:
                    self._delete(pod)

    # -- the ClusterPolicy

    def _reconcile_policy(self) -> None:
        policy = self.policy()
        if policy is None:
            return
        found = self.cache.objects("policies")
        for name in found.keys() - {policy.name}:
            self._write_status(found[name], {"state": status.IGNORED, "namespace": names.NAMESPACE})
        nodes = self.cache.nodes()
        has_labels = any(key.startswith("feature.node.kubernetes.io/") for known in nodes for key in known.labels)
        has_gpus = any(known.labels.get(names.PRESENT) == "true" for known in nodes)
        there, wanted = self.cache.objects("daemonsets"), operands.wanted(policy, self._site())
        for name, manifest in wanted.items():
            known = there.get(name)
            digest = ((known or {}).get("metadata", {}).get("annotations") or {}).get(names.HASH)
            if has_gpus and digest != manifest["metadata"]["annotations"][names.HASH]:
                query = {"force": "true", **MANAGER}
                made = self.client.request("PATCH", f"{DAEMONSETS}/{name}", manifest, APPLY, **query)
                self.cache.put_object("daemonsets", made, own=True)
        for name in (operands.BY_NAME.keys() & there.keys()) - wanted.keys():
            self.client.delete(f"{DAEMONSETS}/{name}", {"propagationPolicy": "Background"})
            self.cache.drop_object("daemonsets", name)
        missing = operands.states(policy, self.cache.objects("daemonsets").get, self._site()) if has_gpus else []
        known = found[policy.name]
        self._write_status(known, status.of(known.get("status") or {}, missing, has_labels, has_gpus, names.NAMESPACE))

    def _write_status(self, found: dict, wanted: dict) -> None:
        if (found.get("status") or {}) != wanted:
            path = f"{names.POLICIES}/{found['metadata']['name']}/status"
            self.cache.put_object("policies", self.client.patch(path, {"status": wanted}, **MANAGER), own=True)
