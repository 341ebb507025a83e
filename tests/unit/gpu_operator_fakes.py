"""A simulated node with its operands' pods, as the GPU Operator sees it, on which decisions can be carried out."""

from __future__ import annotations

import itertools
import json

from orchlab.gpu_operator import names, node, operands, policy
from orchlab.gpu_operator.gates import OperandPod
from orchlab.gpu_operator.node import Decision, Memory, View
from orchlab.gpu_operator.policy import Policy
from orchlab.simulator import inventory
from orchlab.simulator.plugins import INVENTORY

_numbers = itertools.count(1)
ALL_BUT = (operands.MPS_DS, operands.DCGM_DS, "nvidia-node-status-exporter")


def default(**sections: dict) -> Policy:
    """The default policy with changed sections."""
    found = policy.default()
    for name, section in sections.items():
        found["spec"][name] = found["spec"][name] | section
    return Policy(names.POLICY, "uid", found["spec"])


class Node:
    """What stands on a node and its pods. `turn` decides once and carries it out as the cluster would; `settle` until nothing changes."""

    def __init__(self, model: str = "A100-40", count: int = 4, **sections: dict) -> None:
        self.labels: dict[str, str] = {}
        self.notes = {"orchlab/gpu-hardware": json.dumps({"model": model, "count": count})} if count else {}
        self.policy: Policy | None = default(**sections)
        self.pods: dict[str, OperandPod] = {}
        self.files: dict[str, dict[str, str]] = {}
        self.held: frozenset[str] = frozenset()
        self.memory, self.now, self.broken = Memory(), 0.0, False
        self.opened: list[str] = []
        self.start(names.NFD_WORKER, ready=True)

    def start(self, app: str, ready: bool = False) -> None:
        """A new pod of a DaemonSet."""
        inits, env, config_map = (), {}, ""
        if app in operands.BY_NAME:
            spec = operands.wanted(self.policy)[app]["spec"]["template"]["spec"]
            inits = tuple(container["name"] for container in spec["initContainers"])
            env = {one["name"]: one["value"] for container in spec["containers"] for one in container.get("env", [])}
            config_map = spec["volumes"][0]["configMap"]["name"] if "volumes" in spec else ""
        number = next(_numbers)
        self.pods[app] = OperandPod(f"{app}-{number}", f"uid-{number}", app, "n", inits, ready, instance=f"uid-{number}/0",
                                    created=f"{number:09}", config_map=config_map, env=tuple(env.items()))

    def daemonsets(self) -> None:
        """What the DaemonSet controller does."""
        wanted = operands.wanted(self.policy) if self.policy else {}
        there = {app for app, manifest in wanted.items()
                 if all(self.labels.get(k) == v for k, v in manifest["spec"]["template"]["spec"]["nodeSelector"].items())}
        for app in (self.pods.keys() & operands.BY_NAME.keys()) - there:
            del self.pods[app]
        for app in there - self.pods.keys():
            self.start(app)

    @property
    def allocatable(self) -> dict[str, str]:
        found = inventory.node_devices("n", inventory.registered(self.notes.get(INVENTORY, "")))
        return {key: str(count) for key, count in found.allocatable().items()}

    def view(self) -> View:
        return View("n", dict(self.labels), dict(self.notes), self.allocatable, self.policy, dict(self.pods), self.files.get, "env",
                    lambda: self.held, self.broken, self.now)

    def turn(self) -> Decision:
        made = node.decide(self.view(), self.memory)
        for target, change in ((self.labels, made.labels), (self.notes, made.notes)):
            for key, value in change.items():
                target.pop(key, None) if value is None else target.__setitem__(key, value)
        for pod in made.delete:
            self.pods = {app: one for app, one in self.pods.items() if one.uid != pod.uid}
        for pod, notes in made.pods:
            if pod.operand in self.pods:
                self._write(self.pods[pod.operand], notes)
        self.daemonsets()
        return made

    def _write(self, pod: OperandPod, notes: dict[str, str | None]) -> None:
        merged = {key: value for key, value in (dict(pod.notes) | notes).items() if value is not None}
        opened = merged.get("orchlab/init") == "all"
        if opened and not pod.open:
            self.opened.append(pod.operand)
        changed = {**vars(pod), "notes": tuple(merged.items()), "ready": opened and "orchlab/crash" not in merged}
        self.pods[pod.operand] = OperandPod(**changed)

    def restart_container(self, app: str) -> None:
        """The kubelet starts the pod's first container again."""
        pod = self.pods[app]
        uid, _, number = pod.instance.partition("/")
        self.pods[app] = OperandPod(**{**vars(pod), "instance": f"{uid}/{int(number) + 1}", "ready": pod.open})

    def settle(self, seconds: float = 400) -> Node:
        """Turns until nothing happens any more, at most so many simulated seconds."""
        end, quiet = self.now + seconds, 0
        while quiet < 3 and self.now < end:
            made = self.turn()
            quiet = 0 if made.labels or made.notes or made.pods or made.delete or made.after else quiet + 1
            self.now += made.after or 0.1
        return self

    def replace(self, app: str) -> None:
        """The pod is deleted; the DaemonSet controller makes another."""
        del self.pods[app]
        self.daemonsets()
