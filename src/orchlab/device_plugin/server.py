"""One resource of the plugin: its gRPC server on a socket of its own, and its registration with kubelet.

What it answers is what NVIDIA's k8s-device-plugin does (internal/plugin/server.go, internal/rm/rm.go), errors included.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from orchlab.device_plugin import api
from orchlab.errors import BadInput, EnvironmentBroken
from orchlab.gpus import allocation
from orchlab.gpus.inventory import Slot
from orchlab.simulator.inventory import PREFIX, REPLICA, Registered

# Time limits (s) of a registration and of a server's end; how often a stream without news looks whether somebody still listens.
REGISTER_SECONDS, STOP_SECONDS, LOOK_SECONDS = 2.0, 1.0, 5.0
THREADS = 8
# With this a gRPC client in Go begins an error of a plugin; the annotation's refusal has it in front already.
RPC_ERROR = "rpc error: code = Unknown desc = "

log = logging.getLogger("device-plugin")


class ResourceServer:
    """Serves `resource` at FOLDER/nvidia-NAME.sock. `respond` makes the answer for one container from (resource, device ids)."""

    def __init__(self, resource: str, folder: Path, respond: Callable[[str, list[str]], Any]) -> None:
        self.resource = resource
        self.socket = folder / f"nvidia-{resource.removeprefix(PREFIX)}.sock"
        self.registered = False
        self._respond = respond
        self._news = threading.Condition()
        self._offered, self._version, self._stopped = Registered(()), 0, False
        self._server: grpc.Server | None = None
        self._trouble = ""

    def offer(self, offered: Registered) -> None:
        """These are the devices from now on; who listens is told if they are others than before."""
        with self._news:
            if offered != self._offered:
                self._offered = offered
                self._version += 1
                self._news.notify_all()

    def start(self) -> None:
        """Opens the socket. Raises EnvironmentBroken when that cannot be done."""
        self.socket.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(THREADS, thread_name_prefix=self.socket.stem))
        server.add_generic_rpc_handlers((self._handlers(),))
        log.info("Starting GRPC server for '%s'", self.resource)
        try:
            server.add_insecure_port(f"unix:{self.socket}")
        except RuntimeError as error:
            raise EnvironmentBroken(f"Could not start device plugin for '{self.resource}': {error}") from None
        server.start()
        self._server = server
        log.info("Starting to serve '%s' on %s", self.resource, self.socket)

    def register(self, kubelet: Path) -> None:
        """Tells kubelet, whose socket this is. A failure is logged; call it again until `registered` is set."""
        options = api.DevicePluginOptions(get_preferred_allocation_available=True)
        request = api.RegisterRequest(version=api.VERSION, endpoint=self.socket.name, resource_name=self.resource, options=options)
        try:
            api.call(kubelet, api.REGISTER, request, api.Empty, REGISTER_SECONDS)
        except grpc.RpcError as error:
            said = f"Could not register device plugin: {error.details()}"
            if said != self._trouble:
                log.info("%s", said)
            self._trouble = said
            return
        self.registered, self._trouble = True, ""
        log.info("Registered device plugin for '%s' with Kubelet", self.resource)

    def stop(self) -> None:
        """Ends the server and removes its socket: kubelet then takes all its devices for unhealthy."""
        with self._news:
            self._stopped = True
            self._news.notify_all()
        if self._server is not None:
            log.info("Stopping to serve '%s' on %s", self.resource, self.socket)
            self._server.stop(grace=0).wait(STOP_SECONDS)
        self.socket.unlink(missing_ok=True)

    def _handlers(self) -> grpc.GenericRpcHandler:
        def one(method: Callable, request: type, response: type, stream: bool = False) -> grpc.RpcMethodHandler:
            make = grpc.unary_stream_rpc_method_handler if stream else grpc.unary_unary_rpc_method_handler
            return make(method, request_deserializer=request.FromString, response_serializer=response.SerializeToString)

        return grpc.method_handlers_generic_handler(api.PLUGIN_SERVICE, {
            "GetDevicePluginOptions": one(lambda request, context: api.DevicePluginOptions(get_preferred_allocation_available=True),
                                          api.Empty, api.DevicePluginOptions),
            "ListAndWatch": one(self._list_and_watch, api.Empty, api.ListAndWatchResponse, stream=True),
            "GetPreferredAllocation": one(self._preferred, api.PreferredAllocationRequest, api.PreferredAllocationResponse),
            "Allocate": one(self._allocate, api.AllocateRequest, api.AllocateResponse),
            "PreStartContainer": one(lambda request, context: api.PreStartContainerResponse(), api.PreStartContainerRequest,
                                     api.PreStartContainerResponse),
        })

    def _list_and_watch(self, _: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        sent = None

        def wake() -> None:
            with self._news:
                self._news.notify_all()

        context.add_callback(wake)
        while context.is_active():
            with self._news:
                self._news.wait_for(lambda: self._version != sent or self._stopped or not context.is_active(), LOOK_SECONDS)
                if self._stopped:
                    return
                if self._version == sent:
                    continue
                sent, offered = self._version, self._offered
            yield api.ListAndWatchResponse(devices=[
                api.Device(ID=id_, health=api.UNHEALTHY if id_ in offered.unhealthy else api.HEALTHY) for id_ in offered.ids])

    def _preferred(self, request: Any, context: grpc.ServicerContext) -> Any:
        slots = [Slot(id_, id_.partition(REPLICA)[0], number) for number, id_ in enumerate(self._offered.ids)]
        answer = api.PreferredAllocationResponse()
        for one in request.container_requests:
            try:
                chosen = allocation.preferred(slots, list(one.available_deviceIDs), one.allocation_size, list(one.must_include_deviceIDs))
            except BadInput as error:
                context.abort(grpc.StatusCode.UNKNOWN, f"error getting list of preferred allocation devices: {error.args[0]}")
            answer.container_responses.add(deviceIDs=chosen)
        return answer

    def _allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = api.AllocateResponse()
        for one in request.container_requests:
            ids = list(one.devices_ids)
            if problem := self._problem(ids):
                context.abort(grpc.StatusCode.UNKNOWN, problem)
            answer.container_responses.append(self._respond(self.resource, ids))
        return answer

    def _problem(self, ids: list[str]) -> str:
        """Why the plugin refuses to hand these out together; "" when it does not."""
        offered = self._offered
        known = set(offered.ids)
        for id_ in ids:
            if id_ not in known:
                return f'invalid allocation request for "{self.resource}": invalid request: unknown device: {id_}'
        if offered.refusal and len(ids) > 1:
            return offered.refusal.replace("{count}", str(len(ids))).removeprefix(RPC_ERROR)
        return ""
