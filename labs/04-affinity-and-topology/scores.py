"""The scheduler's own scores: kube-scheduler's verbosity is raised for one attempt, and its log read.

At V(10) it writes a line for every plugin's points on every node that passed the filters, and one with their sum. With a single node left,
it scores nothing. Points are written after normalisation and weight.
"""

from __future__ import annotations

import http.client
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from IPython import get_ipython

from orchlab.course import Lab, Text, pods
from orchlab.environment import Environment
from orchlab.errors import BadInput, EnvironmentBroken
from orchlab.views import text

SECONDS = 10
# This control plane starts kube-scheduler without --v, which is 0.
QUIET, LOUD = 0, 10
POINTS = re.compile(r'"Plugin scored node for pod" pod="(?P<pod>[^"]+)" plugin="(?P<plugin>[^"]+)" node="(?P<node>[^"]+)" '
                    r"score=(?P<score>-?\d+)")
TOTAL = re.compile(r'"Calculated node\'s final score for pod" pod="(?P<pod>[^"]+)" node="(?P<node>[^"]+)" score=(?P<score>-?\d+)')
# The order of the columns; the scheduler's own differs from attempt to attempt.
ORDER = ("TaintToleration", "NodeAffinity", "NodeResourcesFit", "NodeResourcesBalancedAllocation", "PodTopologySpread", "InterPodAffinity")
SHORT = {"NodeResourcesBalancedAllocation": "BalancedAllocation"}


@dataclass
class Attempt:
    """One pod's last scored attempt. `points`: node, then plugin; `total`: node."""

    points: dict[str, dict[str, int]] = field(default_factory=dict)
    total: dict[str, int] = field(default_factory=dict)

    def rows(self) -> list[tuple[list[str], dict[str, int], int]]:
        """(nodes, points by plugin, total) for nodes with equal points, best first."""
        names, groups = self.plugins(), {}
        for node, points in self.points.items():
            groups.setdefault((self.total.get(node, 0), *(points.get(name, 0) for name in names)), []).append(node)
        return [(sorted(nodes), dict(zip(names, points, strict=True)), total)
                for (total, *points), nodes in sorted(groups.items(), reverse=True)]

    def plugins(self) -> list[str]:
        """Those that gave points to any node."""
        given = {name for points in self.points.values() for name, score in points.items() if score}
        return sorted(given, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def read(log: str, namespace: str) -> dict[str, Attempt]:
    """The last scored attempt of each pod of the namespace, from the scheduler's log."""
    found: dict[str, Attempt] = {}
    for line in log.splitlines():
        if not (match := POINTS.search(line) or TOTAL.search(line)) or not match["pod"].startswith(f"{namespace}/"):
            continue
        pod = match["pod"].removeprefix(f"{namespace}/")
        if match.re is TOTAL:
            found.setdefault(pod, Attempt()).total[match["node"]] = int(match["score"])
            continue
        if pod not in found or found[pod].total:
            found[pod] = Attempt()
        found[pod].points.setdefault(match["node"], {})[match["plugin"]] = int(match["score"])
    return found


class Listening:
    """`with Listening(env, namespace) as heard:` raises kube-scheduler's verbosity and lowers it again; `heard.attempts()` reads what it
    has written since. Raises EnvironmentBroken if the scheduler does not take it."""

    def __init__(self, env: Environment, namespace: str) -> None:
        self.env, self.namespace = env, namespace
        self.log = env.supervisor.logs / "kube-scheduler.log"
        self._file, self._at = 0, 0

    def __enter__(self) -> Listening:
        there = self.log.stat()
        self._file, self._at = there.st_ino, there.st_size
        set_verbosity(self.env, LOUD)
        return self

    def __exit__(self, *_: object) -> None:
        set_verbosity(self.env, QUIET)

    def attempts(self) -> dict[str, Attempt]:
        """By pod name."""
        return read(self._written(), self.namespace)

    def _written(self) -> str:
        # A log that grows too large is renamed to .1, and another begun.
        older = self.log.with_name(self.log.name + ".1")
        parts = [self.log]
        if self.log.stat().st_ino != self._file:
            parts = [older, self.log] if older.exists() else [self.log]
        texts = [_from(path, self._at if path.stat().st_ino == self._file else 0) for path in parts]
        return "".join(texts)


def _from(path: Path, at: int) -> str:
    with path.open("rb") as file:
        file.seek(at)
        return file.read().decode(errors="replace")


def set_verbosity(env: Environment, level: int) -> str:
    """PUT /debug/flags/v on kube-scheduler's secure port, with the administrator's certificate. Returns its answer."""
    folder = env.folder / "pki"
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / "admin.crt", folder / "admin.key")
    connection = http.client.HTTPSConnection("127.0.0.1", env.port("kube_scheduler"), timeout=SECONDS, context=context)
    try:
        connection.request("PUT", "/debug/flags/v", str(level))
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace").strip()
    except OSError as error:
        raise EnvironmentBroken(f"kube-scheduler does not answer: {error}", "orchlab up heals it") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise EnvironmentBroken(f"kube-scheduler refused to change its verbosity: {said}", "orchlab logs kube-scheduler")
    return said


def table(attempt: Attempt | None) -> str:
    """A line for each group of nodes with equal points, best first; plugins that gave nobody anything are left out."""
    if attempt is None or not attempt.points:
        return "nothing was scored: at most one node had passed the filters"
    plugins = attempt.plugins()
    heads = ["total", *(SHORT.get(name, name) for name in plugins), "nodes"]
    rows = [[str(total), *(str(points[name]) for name in plugins), " ".join(nodes)] for nodes, points, total in attempt.rows()]
    return text.table(heads, rows)


def apply(lab: Lab, manifest: str, once: bool = False, seconds: float = 20) -> Text:
    """Applies YAML as %%apply does, with the scheduler's verbosity raised until every pod of it is placed or refused; returns where each
    pod went and its nodes' points. `once` deletes the pods afterwards. Raises TimeLimitReached."""
    things = [thing for thing in yaml.safe_load_all(manifest) if thing]
    made = {(thing["kind"].lower(), thing["metadata"]["name"]) for thing in things}
    wanted = sum(thing["spec"].get("replicas", thing["spec"].get("parallelism", 1)) for thing in things)
    with Listening(lab.env, lab.namespace) as heard:
        lab.apply(manifest)
        lab.until(lambda: len(found := lab.place.pods_of(made)) >= wanted and all(map(decided, found)), seconds,
                  "not every pod was placed or refused")
        found, attempts = lab.place.pods_of(made), heard.attempts()
    if once:
        names = {pod["metadata"]["name"] for pod in found}
        for name in names:
            lab.client.delete(f"/api/v1/namespaces/{lab.namespace}/pods/{name}", gracePeriodSeconds=0)
        lab.until(lambda: not names & {pod["metadata"]["name"] for pod in lab.pods()}, what="the pods did not go")
    return Text("\n\n".join(f"{_place(pod)}\n{table(attempts.get(pod['metadata']['name']))}" for pod in found))


def register(lab: Lab) -> None:
    """Makes %%scored and %%scored once: %%apply, and then what the scheduler's plugins gave each node."""
    def scored(line: str, cell: str) -> None:
        if line.strip() not in ("", "once"):
            raise BadInput("%%scored", line, "takes no other argument than once", "write the YAML under it")
        print(apply(lab, cell, bool(line.strip())))

    if shell := get_ipython():
        shell.register_magic_function(scored, "cell", "scored")


def decided(pod: dict) -> bool:
    """Whether the scheduler has given the pod a node, or said that there is none."""
    return bool(pod["spec"].get("nodeName") or pods.unschedulable(pod))


def _place(pod: dict) -> str:
    words = pods.unschedulable(pod)
    return f"{pod['metadata']['name']}: " + (f"pending, {words}" if words else f"to {pod['spec'].get('nodeName')}")
