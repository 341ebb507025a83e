"""kubelet's gRPC interfaces that a device plugin uses: messages, paths of the methods, and how a channel to a unix socket is opened.

The definitions are those of k8s.io/kubelet v0.34.4, pkg/apis/deviceplugin/v1beta1/api.proto and pkg/apis/podresources/v1/api.proto, as far
as they are used; fields that are not listed here are ignored, as protobuf does. The classes are made at import from the tables below.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
REGISTER = "/v1beta1.Registration/Register"
PLUGIN_SERVICE = "v1beta1.DevicePlugin"
LIST_PODS = "/v1.PodResourcesLister/List"

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"string": _Field.TYPE_STRING, "bool": _Field.TYPE_BOOL, "int32": _Field.TYPE_INT32}
# Per message its fields as "[repeated ]type name number"; "map" is map<string, string>.
_DEVICE_PLUGIN = {
    "DevicePluginOptions": ("bool pre_start_required 1", "bool get_preferred_allocation_available 2"),
    "RegisterRequest": ("string version 1", "string endpoint 2", "string resource_name 3", "DevicePluginOptions options 4"),
    "Empty": (),
    "ListAndWatchResponse": ("repeated Device devices 1",),
    "Device": ("string ID 1", "string health 2"),
    "PreStartContainerRequest": ("repeated string devices_ids 1",),
    "PreStartContainerResponse": (),
    "PreferredAllocationRequest": ("repeated ContainerPreferredAllocationRequest container_requests 1",),
    "ContainerPreferredAllocationRequest": ("repeated string available_deviceIDs 1", "repeated string must_include_deviceIDs 2",
                                            "int32 allocation_size 3"),
    "PreferredAllocationResponse": ("repeated ContainerPreferredAllocationResponse container_responses 1",),
    "ContainerPreferredAllocationResponse": ("repeated string deviceIDs 1",),
    "AllocateRequest": ("repeated ContainerAllocateRequest container_requests 1",),
    "ContainerAllocateRequest": ("repeated string devices_ids 1",),
    "AllocateResponse": ("repeated ContainerAllocateResponse container_responses 1",),
    "ContainerAllocateResponse": ("map envs 1", "repeated Mount mounts 2", "repeated DeviceSpec devices 3", "map annotations 4"),
    "Mount": ("string container_path 1", "string host_path 2", "bool read_only 3"),
    "DeviceSpec": ("string container_path 1", "string host_path 2", "string permissions 3"),
}
_POD_RESOURCES = {
    "ListPodResourcesRequest": (),
    "ListPodResourcesResponse": ("repeated PodResources pod_resources 1",),
    "PodResources": ("string name 1", "string namespace 2", "repeated ContainerResources containers 3"),
    "ContainerResources": ("string name 1", "repeated ContainerDevices devices 2"),
    "ContainerDevices": ("string resource_name 1", "repeated string device_ids 2"),
}


def _add(message: descriptor_pb2.DescriptorProto, package: str, text: str) -> None:
    *repeated, kind, name, number = text.split()
    field = message.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if repeated or kind == "map" else _Field.LABEL_OPTIONAL
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type, field.type_name = _Field.TYPE_MESSAGE, f".{package}.{kind}"
    if kind == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        for part in ("string key 1", "string value 2"):
            _add(entry, package, part)
        field.type_name = f".{package}.{message.name}.{entry.name}"


def _classes(package: str, messages: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"orchlab/{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for text in fields:
            _add(message, package, text)
    # A pool of its own: the same names may be registered by somebody else's generated code.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


_made = _classes("v1beta1", _DEVICE_PLUGIN)
DevicePluginOptions, RegisterRequest, Empty = _made["DevicePluginOptions"], _made["RegisterRequest"], _made["Empty"]
ListAndWatchResponse, Device = _made["ListAndWatchResponse"], _made["Device"]
PreStartContainerRequest, PreStartContainerResponse = _made["PreStartContainerRequest"], _made["PreStartContainerResponse"]
PreferredAllocationRequest, PreferredAllocationResponse = _made["PreferredAllocationRequest"], _made["PreferredAllocationResponse"]
ContainerPreferredAllocationRequest = _made["ContainerPreferredAllocationRequest"]
ContainerPreferredAllocationResponse = _made["ContainerPreferredAllocationResponse"]
AllocateRequest, AllocateResponse = _made["AllocateRequest"], _made["AllocateResponse"]
ContainerAllocateRequest, ContainerAllocateResponse = _made["ContainerAllocateRequest"], _made["ContainerAllocateResponse"]
Mount, DeviceSpec = _made["Mount"], _made["DeviceSpec"]
_made = _classes("v1", _POD_RESOURCES)
ListPodResourcesRequest, ListPodResourcesResponse = _made["ListPodResourcesRequest"], _made["ListPodResourcesResponse"]
PodResources, ContainerResources, ContainerDevices = _made["PodResources"], _made["ContainerResources"], _made["ContainerDevices"]


def channel(socket: Path) -> grpc.Channel:
    """A connection to a unix socket, to be closed by the caller. Names "localhost" as the host, because servers in Go refuse a path in that
    place; shares nothing with other channels, which would make it wait with them for a socket that was just made anew."""
    return grpc.insecure_channel(f"unix:{socket}", options=(("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1),
                                                            ("grpc.enable_http_proxy", 0)))


def call(socket: Path, method: str, request: Any, answer: type, seconds: float) -> Any:
    """One call of one method at a unix socket. Raises grpc.RpcError, also when `seconds` are over."""
    with channel(socket) as opened:
        made = opened.unary_unary(method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString)
        return made(request, timeout=seconds, wait_for_ready=False)
