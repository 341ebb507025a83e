"""KWOK's configuration: our own Stage definitions (stages/*.yaml) and KWOK's options, in one YAML text.

KWOK plays heartbeats, pod phases, restarts and graceful ends by these stages; which pod may start, with what devices, for how long and how
it ends is decided by the simulator and written on the pod as annotations under orchlab/.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import yaml

FOLDER = Path(__file__).with_name("stages")
# KWOK plays the kubelets of nodes with this label and the pods on them. Taken away, the kubelet is silent (an annotation would not do: KWOK
# filters those by itself and keeps what it has once seen).
KUBELET_LABEL = ("orchlab/kubelet", "simulated")
FEW_NODES = 100
VERSION = "metadata: {uid: {{ .metadata.uid | Quote }}, resourceVersion: {{ .metadata.resourceVersion | Quote }}}\nstatus:\n"


def render(nodes: int = 0) -> str:
    """The content of kwok.yaml: a KwokConfiguration for about that many nodes and every stage. A stage's template is the new status; put
    before it are the parts that stages share and the version of the object that it follows from."""
    prelude = (FOLDER / "prelude.tpl").read_text(encoding="utf-8").strip() + "\n"
    documents = [_configuration(nodes)]
    for path in sorted(FOLDER.glob("*.yaml")):
        stage = yaml.safe_load(path.read_text(encoding="utf-8"))
        for step in stage["spec"]["steps"]:
            # KWOK may play a stage on an old sight of a pod (its watch lags behind or is relisted); the version makes that a conflict.
            step["patch"]["template"] = prelude + VERSION + textwrap.indent(step["patch"]["template"], "  ")
        documents.append(stage)
    return yaml.safe_dump_all(documents, sort_keys=False, width=10_000)


def _configuration(nodes: int) -> dict:
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "manageNodesWithLabelSelector": "=".join(KUBELET_LABEL),
            "nodeIP": "127.0.0.1",
            # A lease is renewed four times in its life. 40 s is a kubelet's own; with many nodes that alone keeps a small machine busy, so
            # they renew every 20 s, well within the 40 s after which the node controller calls a node unreachable.
            "nodeLeaseDurationSeconds": 40 if nodes <= FEW_NODES else 80,
            # KWOK's exec runs the caller's command on the host. Logs and the refusal of exec come from the simulator.
            "enableDebuggingHandlers": False,
            "enableProfilingHandler": False,
            "podPlayStageParallelism": 16,
            "nodePlayStageParallelism": 8,
            "nodeLeaseParallelism": 8,
            "podsOnNodeSyncParallelism": 4,
        },
    }
