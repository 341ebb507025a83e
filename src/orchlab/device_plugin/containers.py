"""What a container gets with its devices: the environment of NVIDIA's plugin, device nodes that stand for the GPUs, an nvidia-smi."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

from orchlab.device_plugin import api
from orchlab.device_plugin.node import OwnNode
from orchlab.device_plugin.smi_files import SCRIPT, TEXTS, Folders
from orchlab.errors import OrchlabError
from orchlab.gpu_operator import readings
from orchlab.gpu_operator.readings import Readings
from orchlab.gpus.inventory import Inventory
from orchlab.simulator.inventory import REPLICA
from orchlab.simulator.pods import DEVICES

VISIBLE, MPS_PIPE = "NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"
IN_CONTAINER = {SCRIPT: "/usr/bin/nvidia-smi", TEXTS: "/usr/local/orchlab/smi"}
# The device nodes are further ones of /dev/null: opening them does nothing.
NULL = os.makedev(1, 3)

log = logging.getLogger("device-plugin")


class Containers:
    """`dev` is the node's /dev; both it and the root of `folders` have the same path here as on the node."""

    def __init__(self, node: OwnNode, folders: Folders, dev: Path) -> None:
        self._node, self._folders, self._dev = node, folders, dev
        self._said: set[str] = set()

    def response(self, resource: str, ids: list[str]) -> Any:
        """The ContainerAllocateResponse for a container that is given these device ids of one resource.

        NVIDIA_VISIBLE_DEVICES has the UUID behind each id, in their order. With MPS, CUDA_MPS_PIPE_DIRECTORY is
        /mps/RESOURCE/pipe (internal/plugin/mps.go and cmd/mps-control-daemon/mps/root.go of k8s-device-plugin); nothing is mounted there.
        """
        uuids = [id_.partition(REPLICA)[0] for id_ in ids]
        answer = api.ContainerAllocateResponse(envs={VISIBLE: ",".join(uuids)})
        if self._node.shares_by_mps():
            answer.envs[MPS_PIPE] = f"/mps/{resource}/pipe"
        try:
            found = self._node.readings([_somebody(self._node.name, ids)])
            for path in self._device_nodes(found.inventory, set(uuids)):
                answer.devices.add(container_path=f"/dev/{path.name}", host_path=str(path), permissions="rw")
            folder = self._folders.write(ids, only(found, "", "", "", ids))
        except (OSError, OrchlabError, ValueError, KeyError, TypeError) as error:
            # A pod without nvidia-smi is better than none.
            self._say(f"no nvidia-smi for {','.join(ids)}: {error}")
            return answer
        for name, path in IN_CONTAINER.items():
            answer.mounts.add(container_path=path, host_path=str(folder / name), read_only=True)
        return answer

    def _device_nodes(self, inventory: Inventory, uuids: set[str]) -> list[Path]:
        """/dev/nvidiaN for the GPUs behind these devices, made if need be; those that are something else (a real GPU's) are left out."""
        found = []
        for gpu in inventory.gpus:
            if uuids & {gpu.uuid, *(instance.uuid for instance in gpu.instances)}:
                path = self._dev / f"nvidia{gpu.index}"
                if self._is_ours(path):
                    found.append(path)
        return found

    def _is_ours(self, path: Path) -> bool:
        try:
            if not path.exists():
                os.mknod(path, stat.S_IFCHR | 0o666, NULL)
                path.chmod(0o666)
            found = path.stat()
        except OSError as error:
            self._say(f"{path} cannot be made: {error.strerror}")
            return False
        return stat.S_ISCHR(found.st_mode) and found.st_rdev == NULL

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.info("%s", text)


def _somebody(node: str, ids: list[str]) -> dict:
    """A pod that holds these devices, whose name is not known yet."""
    return {"metadata": {"namespace": "", "name": "", "annotations": {DEVICES: json.dumps({"": ids})}}, "spec": {"nodeName": node},
            "status": {"phase": "Running"}}


def only(found: Readings, namespace: str, pod: str, container: str, ids: list[str]) -> Readings:
    """What one container of a pod sees: these devices of its."""
    mine = [holder for holder in found.holders if (holder.namespace, holder.pod, holder.container) == (namespace, pod, container)
            and holder.slot in ids]
    return readings.of_pod(Readings(found.inventory, mine, found.loads, found.state), namespace, pod)
