"""`python -m orchlab.device_plugin --environment ID [--node NAME]`: runs on one node until SIGTERM, or ends with 1 when the GPU Operator
says that the plugin cannot run."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from orchlab.device_plugin import incluster, own_pod
from orchlab.device_plugin.containers import Containers
from orchlab.device_plugin.node import OwnNode
from orchlab.device_plugin.plugins import Plugins
from orchlab.device_plugin.reporter import Reporter
from orchlab.device_plugin.smi_files import Folders
from orchlab.kube.client import Client

SIGNALS = {signal.SIGTERM, signal.SIGINT}

log = logging.getLogger("device-plugin")


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="orchlab.device_plugin", description="The device plugin of a node with simulated GPUs.")
    node = os.environ.get("NODE_NAME")
    parser.add_argument("--node", default=node, required=not node, help="the node's name; default: NODE_NAME of the environment")
    parser.add_argument("--environment", required=True, help="the environment's id, which makes the GPUs' UUIDs")
    for option, default, what in (("plugins", "/var/lib/kubelet/device-plugins", "kubelet's folder for device plugins"),
                                  ("pod-resources", "/var/lib/kubelet/pod-resources/kubelet.sock", "the socket of kubelet's podresources API"),
                                  ("smi", "/var/lib/orchlab/smi", "the folder for what nvidia-smi prints, the same path as on the node"),
                                  ("dev", "/dev", "the node's /dev, the same path as on the node")):
        parser.add_argument(f"--{option}", type=Path, default=Path(default), help=f"{what}; default: {default}")
    return parser.parse_args(arguments)


def run(given: argparse.Namespace, client: Client, stop: threading.Event, woken: Callable[[Callable[[], None]], None] = lambda wake: None) -> int:
    """Works until `stop` is set; `woken` is handed a function to call after that. Returns the exit status."""
    node, folders, crashed = OwnNode(given.node, given.environment), Folders(given.smi), threading.Event()
    plugins = Plugins(node, given.plugins, Containers(node, folders, given.dev).response)
    node.changed = plugins.wake
    woken(plugins.wake)

    def crash() -> None:
        crashed.set()
        stop.set()
        plugins.wake()

    reporter = Reporter(client, node, given.pod_resources, folders)
    for work in (lambda: node.follow(client, stop), lambda: reporter.run(stop), lambda: own_pod.follow(client, stop, crash)):
        threading.Thread(target=work, daemon=True).start()
    plugins.run(stop)
    return int(crashed.is_set())


def main() -> None:
    given = options()
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    log.info("SIMULATED by orchlab: a real device plugin for a real kubelet; the GPUs are made up.")
    stop, wakes = threading.Event(), []
    # A thread waits for them, since a handler could meet with the very locks that it needs. Blocked here, they are in all threads.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def wait() -> None:
        number = signal.sigwait(SIGNALS)
        log.info('Received signal "%s", shutting down.', signal.strsignal(number).lower())
        stop.set()
        for wake in wakes:
            wake()

    threading.Thread(target=wait, daemon=True).start()
    code = run(given, incluster.client(), stop, wakes.append)
    sys.stdout.flush()
    # Threads that wait for the network need not be waited for.
    os._exit(code)


if __name__ == "__main__":
    main()
