"""A kubelet and an API server for the device plugin: real gRPC over unix sockets, everything else remembered in lists."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from orchlab.device_plugin import api
from orchlab.device_plugin.containers import Containers
from orchlab.device_plugin.node import OwnNode
from orchlab.device_plugin.plugins import Plugins
from orchlab.device_plugin.smi_files import Folders
from orchlab.errors import ApiError
from orchlab.gpu_operator import devices, names
from orchlab.gpu_operator.devices import Loaded, Machine, State
from orchlab.simulator.plugins import INVENTORY

SECONDS = 20.0


def until(met: Callable[[], object], what: str = "it") -> object:
    """What `met` returns as soon as that is true."""
    deadline = time.monotonic() + SECONDS
    while not (found := met()):
        assert time.monotonic() < deadline, f"{what} did not come within {SECONDS:g} s"
        time.sleep(0.01)
    return found


def folder() -> Path:
    """A new folder with a short name: the path of a socket has at most 107 characters."""
    return Path(tempfile.mkdtemp(prefix="dp-"))


def node(name: str = "n", model: str = "A100-40", count: int = 4, strategy: str = "none", config: str = "", **state: object) -> dict:
    """A Node object as the GPU Operator leaves it for this plugin configuration."""
    known = State(model, count, driver=True, plugin=Loaded("run", "config", config), **state)
    result = devices.registration(Machine("env", name, model, count), known, strategy, config)
    notes = {"orchlab/gpu-hardware": json.dumps({"model": model, "count": count}), names.STATE: known.dump(), INVENTORY: result.text}
    return {"metadata": {"name": name, "resourceVersion": "1", "annotations": notes}}


class Kubelet:
    """Registration and podresources, and a client of each plugin that registers. `lists` has by resource what ListAndWatch sent, `held` is
    what podresources says: {(namespace, pod): {container: {resource: [id]}}}; `refuse` makes Register fail."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.resources = folder, folder / "pod-resources.sock"
        self.registrations: list = []
        self.lists: dict[str, list[dict[str, str]]] = {}
        self.ended: set[str] = set()
        self.held: dict = {}
        self.refuse = False
        self._channels: list[grpc.Channel] = []
        self._servers: list[grpc.Server] = []

    def start(self) -> Kubelet:
        self._serve(self.folder / "kubelet.sock", "v1beta1.Registration", "Register", self._register, api.RegisterRequest, api.Empty)
        self._serve(self.resources, "v1.PodResourcesLister", "List", self._list, api.ListPodResourcesRequest, api.ListPodResourcesResponse)
        return self

    def _serve(self, socket: Path, service: str, method: str, answer: Callable, request: type, response: type) -> None:
        handler = grpc.unary_unary_rpc_method_handler(answer, request_deserializer=request.FromString,
                                                      response_serializer=response.SerializeToString)
        server = grpc.server(ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        self._servers.append(server)

    def stop(self) -> None:
        for channel in self._channels:
            channel.close()
        for server in self._servers:
            server.stop(0).wait(SECONDS)
        self._servers.clear()

    def restart(self) -> None:
        """As a kubelet does: forgets its plugins, empties the folder, makes its socket anew."""
        self.stop()
        self.registrations.clear()
        self.lists.clear()
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)
        self.start()

    def _register(self, request, context):
        if self.refuse:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        self.registrations.append(request)
        threading.Thread(target=self._follow, args=(request.resource_name, self.folder / request.endpoint), daemon=True).start()
        return api.Empty()

    def _follow(self, resource: str, socket: Path) -> None:
        self._channels.append(channel := api.channel(socket))
        self.ended.discard(resource)
        call = channel.unary_stream(f"/{api.PLUGIN_SERVICE}/ListAndWatch", request_serializer=api.Empty.SerializeToString,
                                    response_deserializer=api.ListAndWatchResponse.FromString)
        try:
            for answer in call(api.Empty(), timeout=120):
                self.lists.setdefault(resource, []).append({device.ID: device.health for device in answer.devices})
        except (grpc.RpcError, ValueError):
            pass
        self.ended.add(resource)

    def _list(self, request, context):
        answer = api.ListPodResourcesResponse()
        for (namespace, name), containers in self.held.items():
            pod = answer.pod_resources.add(name=name, namespace=namespace)
            for container, given in containers.items():
                one = pod.containers.add(name=container)
                for resource, ids in given.items():
                    one.devices.add(resource_name=resource, device_ids=ids)
        return answer

    def devices(self, resource: str) -> dict[str, str]:
        """{device id: health} as it was sent last; waits for the first list."""
        return until(lambda: self.lists.get(resource), f"the list of {resource}")[-1]

    def ask(self, resource: str, method: str, request: object, response: type) -> object:
        socket = self.folder / f"nvidia-{resource.partition('/')[2]}.sock"
        return api.call(socket, f"/{api.PLUGIN_SERVICE}/{method}", request, response, SECONDS)

    def allocate(self, resource: str, *ids: str) -> object:
        """The response for one container. Raises grpc.RpcError."""
        request = api.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        return self.ask(resource, "Allocate", request, api.AllocateResponse).container_responses[0]

    def message(self, resource: str, *ids: str) -> str:
        """What a real kubelet writes on a pod when this allocation fails: it adds the error as gRPC in Go words it."""
        try:
            self.allocate(resource, *ids)
        except grpc.RpcError as error:
            code = {grpc.StatusCode.UNKNOWN: "Unknown"}[error.code()]
            return f"Allocate failed due to rpc error: code = {code} desc = {error.details()}, which is unexpected"
        return ""


class Site:
    """A node with a kubelet and the plugin. `clean` ends everything."""

    def __init__(self, found: dict | None = None) -> None:
        self.root = folder()
        (self.root / "plugins").mkdir()
        (self.root / "dev").mkdir()
        self.kubelet = Kubelet(self.root / "plugins").start()
        self.node = OwnNode("n", "env")
        self.folders = Folders(self.root / "smi")
        self.plugins = Plugins(self.node, self.root / "plugins", Containers(self.node, self.folders, self.root / "dev").response)
        self.node.changed = self.plugins.wake
        if found:
            self.node.take("LIST", [found])
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.plugins.run, args=(self.stop,), daemon=True)

    def start(self) -> Site:
        self.thread.start()
        return self

    def end(self) -> None:
        self.stop.set()
        self.plugins.wake()
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()

    def clean(self) -> None:
        if self.thread.is_alive():
            self.end()
        self.kubelet.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def sockets(self) -> list[str]:
        return sorted(path.name for path in (self.root / "plugins").glob("nvidia-*"))


class Cluster:
    """The API as far as the plugin uses it: `pods` by (namespace, name), one node, patches remembered as (path, body)."""

    def __init__(self, *pods: dict) -> None:
        self.pods = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in pods}
        self.patches: list[tuple[str, dict]] = []
        self.node: dict | None = None

    def list(self, path, **query):
        if path == "/api/v1/nodes":
            assert query == {"fieldSelector": "metadata.name=n"}
            return [self.node] if self.node else [], "1"
        assert query == {"fieldSelector": "spec.nodeName=n"}
        return [json.loads(json.dumps(pod)) for pod in self.pods.values()], "1"

    def watch(self, path, version, seconds, **query):
        time.sleep(0.05)
        yield "MODIFIED", self.node

    def get(self, path, **query):
        *_, namespace, _, name = path.split("/")
        return self.pods[namespace, name]

    def patch(self, path, body, content_type="", **query):
        *_, namespace, _, name = path.split("/")
        pod = self.pods.get((namespace, name))
        if pod is None or pod["metadata"]["uid"] != body["metadata"]["uid"]:
            raise ApiError(409, "Conflict", "the UID in the precondition does not match", {})
        self.patches.append((path, body))
        notes = pod["metadata"]["annotations"] | body["metadata"]["annotations"]
        pod["metadata"]["annotations"] = {key: value for key, value in notes.items() if value is not None}
        return pod
