"""What the GPU Operator's process decides about the plugin's own pod: what the plugin logs, and that it cannot run."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from orchlab.errors import OrchlabError
from orchlab.kube.client import Client
from orchlab.simulator.pods import CRASH, LOG

EVERY = 1.0
# The plugin says these itself, when it does them.
OWN = ("Starting GRPC server for ", "Registered device plugin for ")

log = logging.getLogger("device-plugin")


def follow(client: Client, stop: threading.Event, crash: Callable[[], None]) -> None:
    """Logs the lines of the pod's annotation orchlab/log as they come, until `stop` is set; calls `crash` and returns when the pod has
    orchlab/crash. The pod is POD_NAMESPACE/POD_NAME of the environment; without them there is nothing to follow."""
    namespace, name = os.environ.get("POD_NAMESPACE"), os.environ.get("POD_NAME")
    if not (namespace and name):
        return
    said: list[str] = []
    while not stop.is_set():
        try:
            notes = client.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["metadata"].get("annotations") or {}
        except OrchlabError:
            notes = None
        if notes is not None:
            lines = [line for line in notes.get(LOG, "").splitlines() if not line.startswith(OWN)]
            for line in lines:
                if line not in said:
                    log.info("%s", line)
            said = lines
            if CRASH in notes:
                crash()
                return
        stop.wait(EVERY)
