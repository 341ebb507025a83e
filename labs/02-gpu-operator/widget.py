"""Nodes by operands, live, with ClusterPolicy's switches above them."""

from __future__ import annotations

import re
import threading
from html import escape
from types import ModuleType

import ipywidgets

from orchlab import views
from orchlab.course import Lab, StatusLine, Text
from orchlab.errors import BadInput, OrchlabError
from orchlab.views import Labels

POLICY = "/apis/nvidia.com/v1/clusterpolicies/cluster-policy"
SWITCHES = ("driver", "toolkit", "devicePlugin", "gfd", "dcgmExporter", "migManager")
# The order that this lab speaks of: on every node the first is ready before the second.
ORDER = (("driver", "toolkit"), ("toolkit", "plugin"), ("toolkit", "GFD"), ("toolkit", "DCGM exporter"), ("GFD", "MIG manager"),
         ("plugin", "validator"))
LABELS = Labels("DaemonSets, scheduling, ClusterPolicy's validation", "operator, pods, drivers, GPUs")
NUMBERS, MOVING = "nvidia.com/gpu", ("Terminating", "starting")
READY, COMING, BROKEN = ("✔", "#009E73"), ("…", "#56B4E9"), ("✘", "#D55E00")
SECONDS = 60


def operands(lab: Lab) -> Board:
    """The board of the lab's environment."""
    return Board(lab, lab.load("operands"))


class Board:
    """`text` says the same as the picture. The switches change `enabled` in the live ClusterPolicy."""

    def __init__(self, lab: Lab, model: ModuleType) -> None:
        self.lab, self.model = lab, model
        self.source = model.Operands(lab.env.client())
        self.trouble, self._told, self._asked = "", False, {}
        self.status = StatusLine(lambda: self.trouble or self.summary)
        layout = ipywidgets.Layout(width="150px")
        self.switches = {name: ipywidgets.Checkbox(True, description=name, indent=False, disabled=True, layout=layout) for name in SWITCHES}
        for name, box in self.switches.items():
            box.observe(lambda change, name=name: self._switched(name, change["new"]), "value")
        self.view = views.Live(self.source, parts=(("Operands by node", lambda *_: self._draw(), lambda *_: self.text),),
                               key=f"lab-{lab.number}-operands")
        box = ipywidgets.HBox([ipywidgets.Label("ClusterPolicy, enabled:"), *self.switches.values()],
                              layout=ipywidgets.Layout(flex_flow="row wrap"))
        self.widget = ipywidgets.VBox([box, self.status.widget, self.view.widget])
        self.source.start()

    # -- reading

    @property
    def summary(self) -> str:
        """One line: ClusterPolicy's state, GPUs, pods."""
        nodes = self.source.nodes()
        pods = [pod for node in nodes for pod in self._pods(node.name) if pod.operand != self.model.NFD]
        state = "no ClusterPolicy" if self.source.policy is None else f"ClusterPolicy {self.source.state or 'is new'}"
        return (f"{state}; {sum(node.allocatable or 0 for node in nodes)} GPUs allocatable; {len(pods)} operand pods, "
                f"{sum(pod.ready for pod in pods)} of them ready")

    @property
    def text(self) -> Text:
        """The table in words."""
        shown = list(self.model.SHORT)
        rows = [["node", *shown, NUMBERS]]
        rows += [[node.name, *(self._words(node.name, column) for column in shown), node.numbers] for node in self.source.nodes()]
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        table = ["  ".join(f"{word:<{width}}" for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return Text("\n".join([self.summary, *table, "nvidia.com/gpu: allocatable of capacity. " + LABELS.text()]))

    def order(self) -> Text:
        """Which operand was ready before which, and on how many of the nodes that have both."""
        lines = []
        for first, second in ORDER:
            one, other = self.model.SHORT[first], self.model.SHORT[second]
            both = [node.name for node in self.source.nodes() if self.source.pod(node.name, one) and self.source.pod(node.name, other)]
            held = sum(self.source.before(node, one, other) for node in both)
            lines.append(f"{f'{first} before {second}':<30} on {held} of {len(both)} nodes")
        return Text("\n".join(lines))

    def numbers(self, node: str, until: str = "", seconds: float = SECONDS) -> Text:
        """nvidia.com/gpu of a node, allocatable of capacity, as it changed since you asked last, with how long each held (simulated).
        `until` waits for one such value. Raises TimeLimitReached."""
        self._wait(lambda: self._node(node).numbers if until and self._node(node).numbers != until else "", seconds)
        was = self._node(node).was
        begin = self._asked.get(node, 0)
        self._asked[node] = len(was) - 1
        lines = []
        for place in range(begin, len(was)):
            at, capacity, allocatable = was[place]
            words = "-" if capacity is None else f"{allocatable} of {capacity}"
            last = place == len(was) - 1
            lines.append(f"{words:<8}  " + ("now" if last else self._for(was[place + 1][0] - at)).rstrip())
        return Text("\n".join(lines))

    # -- waiting

    def seen(self, seconds: float = SECONDS) -> Text:
        """The table, as soon as nodes, pods and ClusterPolicy have been read. Raises TimeLimitReached."""
        self._wait(lambda: "" if self.source.snapshot().taken else self.source.trouble or "nothing was read yet", seconds)
        return self.text

    def settled(self, node: str = "", seconds: float = SECONDS) -> Text:
        """Waits until every node, or one, has what ClusterPolicy and its labels ask for, and nothing else; returns the table, or the row.
        Raises TimeLimitReached."""
        def missing() -> str:
            if not node and self.source.policy is not None and self.source.state != "ready":
                return f"ClusterPolicy is {self.source.state or 'new'}"
            nodes = [self._node(node)] if node else self.source.nodes()
            return next(filter(None, map(self.source.missing, nodes)), "")

        self.seen(seconds)
        self._wait(missing, seconds)
        return self.row(node) if node else self.text

    def wait(self, node: str, column: str, words: str, seconds: float = SECONDS) -> Text:
        """Waits until a cell of the table says something, and no pod of the node is just coming or going; returns the node's row as it is
        then. Raises TimeLimitReached."""
        if column not in (*self.model.SHORT, NUMBERS):
            raise BadInput("column", column, "is not in the table", f"one of: {', '.join((*self.model.SHORT, NUMBERS))}")
        seen = Text("")

        def missing() -> str:
            nonlocal seen
            seen = self.row(node, numbers=False)
            said = self._node(node).numbers if column == NUMBERS else self._words(node, column)
            wanted = [self.source.pod(node, operand) for operand in self.source.wanted(self._node(node)) if words != "-"]
            moving = column != NUMBERS and (None in wanted or any(pod.words in MOVING for pod in self._pods(node)))
            return f"{column} on {node} is {said}" if said != words else f"pods of {node} come and go" if moving else ""

        self._wait(missing, seconds)
        return seen

    def row(self, node: str, numbers: bool = True) -> Text:
        """A node's operands, each with the init container that it is in; and its `numbers`, nvidia.com/gpu."""
        lines = [f"{node}: {self._node(node).numbers} allocatable" if numbers else f"{node}:"]
        for column, operand in self.model.SHORT.items():
            if pod := self.source.pod(node, operand):
                lines.append(f"  {column:<14} {pod.words}" + (f", in {pod.inside}" if pod.inside else ""))
        return Text("\n".join(lines))

    def _wait(self, missing, seconds: float) -> None:
        remedy = "%kubectl -n gpu-operator get pods tells more"
        self.lab.place.until(lambda: not missing(), seconds, "it did not come to that", remedy, missing)

    # -- the switches

    def _switched(self, name: str, enabled: bool) -> None:
        if not self._told:
            threading.Thread(target=self._patch, args=(name, enabled), name="lab02-switch", daemon=True).start()

    def _patch(self, name: str, enabled: bool) -> None:
        try:
            self.source.client.patch(POLICY, {"spec": {name: {"enabled": enabled}}})
            self.trouble = ""
        except OrchlabError as error:
            self.trouble = str(error)
        self._follow()

    def _draw(self) -> str:
        self._follow()
        return self._html()

    def _follow(self) -> None:
        """The switches say what the live ClusterPolicy says."""
        policy = self.source.policy
        self._told = True
        try:
            for name, box in self.switches.items():
                box.disabled = policy is None
                if policy is not None:
                    box.value = policy.enabled(name)
        finally:
            self._told = False
        self.status.update()

    # -- drawing

    def _words(self, node: str, column: str) -> str:
        pod = self.source.pod(node, self.model.SHORT[column])
        return pod.words if pod else "-"

    def _pods(self, node: str) -> list:
        return [pod for operand in self.model.SHORT.values() if (pod := self.source.pod(node, operand))]

    def _node(self, name: str):
        for node in self.source.nodes():
            if node.name == name:
                return node
        raise BadInput("node", name, "is not there", "%kubectl get nodes")

    def _for(self, seconds: float) -> str:
        return f"for {self.lab.env.clock.simulated_seconds(seconds) / 60:.0f}m of simulated time"

    def _html(self) -> str:
        shown = list(self.model.SHORT)
        rows = []
        for node in self.source.nodes():
            cells = "".join(self._cell(node.name, column) for column in shown)
            rows.append(f'<tr><th scope="row">{escape(node.name)}</th>{cells}<td>{escape(node.numbers)}</td></tr>')
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("node", *shown, NUMBERS))
        trouble = f'<p class="ol-trouble">may be out of date: {escape(self.source.trouble)}</p>' if self.source.trouble else ""
        return (f'<div class="ol-head"><b>Operands by node</b> {LABELS.html()}</div>{trouble}<table class="ol-table">'
                f'<thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table><div>nvidia.com/gpu: allocatable of capacity</div>')

    def _cell(self, node: str, column: str) -> str:
        pod = self.source.pod(node, self.model.SHORT[column])
        if pod is None:
            return "<td>-</td>"
        # Sign and words say it; the colour of the edge repeats it.
        sign, colour = READY if pod.ready else COMING if re.match(r"Init:\d|starting|Terminating", pod.words) else BROKEN
        inside = f", in {pod.inside}" if pod.inside else ""
        title = f"<title>{escape(f'{node}, {column}: {pod.words}{inside}')}</title>"
        return (f'<td tabindex="-1" data-k="{escape(f"{node}/{column}")}" style="border-left:4px solid {colour};white-space:nowrap">{title}'
                f"{sign} {escape(pod.words)}</td>")

    def close(self) -> None:
        """Stops following. The cluster stays as it is."""
        self.view.close()
        self.source.stop()

    def _repr_mimebundle_(self, **options: object) -> dict:
        words = "six switches and a table of nodes by operands; .text says the same in words"
        return self.widget._repr_mimebundle_(**options) | {"text/plain": words}
