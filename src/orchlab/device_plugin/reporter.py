"""Writes on the node's pods which devices kubelet has given them: the annotation orchlab/devices, which the simulated kubelets write too.

kubelet tells it by its podresources API, without the pods' uids, so the pods are listed as well.
"""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import grpc

from orchlab.device_plugin import api
from orchlab.device_plugin.containers import only
from orchlab.device_plugin.node import OwnNode
from orchlab.device_plugin.smi_files import Folders, digest
from orchlab.errors import ApiError, OrchlabError
from orchlab.kube.client import MERGE, Client
from orchlab.simulator import pods
from orchlab.simulator.inventory import PREFIX

EVERY, LIST_SECONDS = 2.0, 5.0
MANAGER = {"fieldManager": "orchlab-device-plugin"}
# {(namespace, pod): {container: {resource: [device id, …]}}}
Held = dict[tuple[str, str], dict[str, dict[str, list[str]]]]

log = logging.getLogger("reporter")


class Reporter:
    """`socket` is the one of kubelet's podresources API."""

    def __init__(self, client: Client, node: OwnNode, socket: Path, folders: Folders) -> None:
        self._client, self._node, self._socket, self._folders = client, node, socket, folders
        self._trouble = ""

    def run(self, stop: threading.Event) -> None:
        """Looks every two seconds until `stop` is set. What goes wrong is logged once and tried again."""
        while not stop.wait(EVERY):
            try:
                self.look()
                said = ""
            except grpc.RpcError as error:
                said = f"{self._socket}: {error.details()}"
            except OrchlabError as error:
                said = error.args[0]
            except Exception as error:
                # The next look may meet with other pods.
                said = f"{type(error).__name__}: {error}"
            if said and said != self._trouble:
                log.info("not yet: %s", said)
            self._trouble = said

    def look(self) -> None:
        """Brings the pods and the files of their nvidia-smi in line with kubelet. Raises grpc.RpcError and OrchlabError."""
        held = self._held()
        found, _ = self._client.list("/api/v1/pods", fieldSelector=f"spec.nodeName={self._node.name}")
        for pod in found:
            place = pod["metadata"]["namespace"], pod["metadata"]["name"]
            if place in held and not pods.is_over(pod):
                self._note(pod, held[place])
        self._render(held, found)
        self._folders.sweep({digest(ids) for containers in held.values() for given in containers.values() for ids in given.values()})

    def _held(self) -> Held:
        answer = api.call(self._socket, api.LIST_PODS, api.ListPodResourcesRequest(), api.ListPodResourcesResponse, LIST_SECONDS)
        # kubelet keeps them in sets; the plugin's order is the one that simulated kubelets keep.
        order = {id_: number for one in self._node.resources().values() for number, id_ in enumerate(one.ids)}
        held: Held = {}
        for pod in answer.pod_resources:
            containers: dict[str, dict[str, list[str]]] = {}
            for container in pod.containers:
                given: dict[str, list[str]] = {}
                for one in container.devices:
                    if one.resource_name.startswith(PREFIX):
                        # One entry for each NUMA node that the devices are on.
                        given.setdefault(one.resource_name, []).extend(one.device_ids)
                if given:
                    containers[container.name] = {resource: sorted(given[resource], key=lambda id_: (order.get(id_, len(order)), id_))
                                                  for resource in sorted(given)}
            held[pod.namespace, pod.name] = containers
        return held

    def _note(self, pod: dict, containers: dict[str, dict[str, list[str]]]) -> None:
        devices = {name: [id_ for ids in given.values() for id_ in ids] for name, given in containers.items()}
        metadata = pod["metadata"]
        notes = metadata.get("annotations") or {}
        if devices == pods.held_devices(pod) and bool(devices) == (pods.DEVICES in notes):
            return
        text = json.dumps(devices) if devices else None
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            # The uid makes it a conflict if the name has meanwhile gone to another pod.
            self._client.patch(path, {"metadata": {"uid": metadata["uid"], "annotations": {pods.DEVICES: text}}}, MERGE, **MANAGER)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        else:
            metadata["annotations"] = {key: value for key, value in (notes | {pods.DEVICES: text}).items() if value is not None}

    def _render(self, held: Held, found: list[dict]) -> None:
        """nvidia-smi as it looks once it is known who holds the devices; a pod that does not run yet has what Allocate wrote."""
        there = self._node.readings(found)
        running = {(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in found if pods.phase(pod) == "Running"}
        for namespace, name in held.keys() & running:
            for container, given in held[namespace, name].items():
                for ids in given.values():
                    self._folders.write(ids, only(there, namespace, name, container, ids))
