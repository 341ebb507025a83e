"""What the simulator is told by its environment: read from environment.json, again whenever that file changes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from orchlab.clock import Clock
from orchlab.errors import EnvironmentBroken
from orchlab.fleet_nodes import FleetNode, expand, with_real_kubelet

# How long a pod runs that is meant to end (restartPolicy Never or OnFailure) and declares no orchlab/run-for: ten simulated minutes.
DEFAULT_RUN_SECONDS = 600.0


@dataclass(frozen=True)
class Settings:
    """One reading of environment.json. `port` is where the simulated kubelets answer, `down` names nodes whose kubelets a fault keeps
    silent, `broken` those whose driver it keeps from loading, `metrics_port` is where the GPU Operator's exporter answers (0: it
    has none), `operand_image` is what real kubelets run as its operands ("": there are none)."""

    environment_id: str
    name: str
    clock: Clock
    port: int
    nodes: tuple[FleetNode, ...]
    down: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    metrics_port: int = 0
    operand_image: str = ""


def read(folder: Path) -> Settings:
    """Raises EnvironmentBroken when the record is missing or is not one."""
    path = folder / "environment.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        nodes, image = expand(record["fleet"]), ""
        if record.get("kubernetes") == "kind":
            real, image = with_real_kubelet(nodes), record["engines"]["standin"]
            nodes = [node for node in nodes if node not in real]
        return Settings(environment_id=record["id"], name=record["name"], clock=Clock(_factor(record["clock"])),
                        port=record["ports"]["simulator"], nodes=tuple(nodes),
                        down=_held(record, "node-down"), broken=_held(record, "driver-broken"),
                        metrics_port=record["ports"].get("gpu_operator", 0), operand_image=image)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EnvironmentBroken(f"{path} is not an environment's record: {error!r}", "orchlab up makes one") from error


def _held(record: dict, kind: str) -> frozenset[str]:
    return frozenset(fault["target"] for fault in record.get("faults", []) if fault["kind"] == kind)


def _factor(clock: object) -> object:
    return clock["factor"] if isinstance(clock, dict) else clock


class Watched:
    """The settings, always as the file has them. `changed()` is cheap: it looks at the file's times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._stamp()
        self.current = read(folder)

    def changed(self) -> bool:
        """Whether a new reading is now in `current`. A record that cannot be read leaves the old one; raises EnvironmentBroken then."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        before, self.current = self.current, read(self._folder)
        return self.current != before

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._folder / "environment.json")
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
