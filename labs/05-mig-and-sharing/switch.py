"""Time-slicing and MPS on a node: a configuration of the device plugin for what the controls say, chosen by the node's label."""

from __future__ import annotations

import threading
from html import escape

import ipywidgets
import yaml

from orchlab.course import Lab, StatusLine, Text
from orchlab.errors import OrchlabError, TimeLimitReached
from orchlab.gpu_operator import names
from orchlab.views import Panel
from orchlab.views.labels import Labels


MAP = "lab-05-sharing"
WAYS = {"not shared": "", "time-slicing": "timeSlicing", "MPS": "mps"}
SECONDS = 60
LABELS = Labels(real="what the scheduler counts", simulated="the node and its GPUs")


class Switch:
    """Each press of Apply writes a configuration and labels the node with its name. `text` is what the node advertises then."""

    def __init__(self, lab: Lab, node: str, way: str, replicas: int) -> None:
        self.lab, self.parts = lab, lab.load("parts")
        style, wide = {"description_width": "190px"}, ipywidgets.Layout(width="480px")
        nodes = sorted(found.name for found in lab.env.fleet.nodes() if found.gpus)
        self.node = ipywidgets.Dropdown(options=nodes, value=node, description="Node", style=style, layout=wide)
        self.way = ipywidgets.Dropdown(options=list(WAYS), value=way, description="Sharing", style=style, layout=wide)
        self.replicas = ipywidgets.IntSlider(replicas, 2, 48, description="replicas", continuous_update=False, style=style, layout=wide)
        self.rename = ipywidgets.Checkbox(False, description="renameByDefault", style=style, layout=wide)
        self.strict = ipywidgets.Checkbox(False, description="failRequestsGreaterThanOne", style=style, layout=wide)
        self.button = ipywidgets.Button(description="Apply", button_style="primary")
        self.said = f"{node}: nothing was applied yet"
        self.status = StatusLine(lambda: self.said.splitlines()[0])
        self.panel = Panel(title="The configuration and the node")
        controls = (self.node, self.way, self.replicas, self.rename, self.strict)
        self.widget = ipywidgets.VBox([*controls, self.button, self.status.widget, self.panel])
        self._state, self._working = threading.Condition(), False
        for control in controls:
            control.observe(lambda change: self._draw(), "value")
        self.way.observe(lambda change: setattr(self.strict, "value", self.way.value == "MPS"), "value")
        self.button.on_click(lambda button: self.apply())
        self.status.update()
        self._draw()

    @property
    def name(self) -> str:
        """The configuration's name: it says what is in it, since the plugin rereads only when the name in the label changes."""
        if self.way.value == "not shared":
            return "not-shared"
        options = ("-renamed" if self.rename.value else "") + ("-strict" if self.strict.value else "")
        return f"{self.way.value.lower()}-{self.replicas.value}{options}"

    @property
    def config(self) -> Text:
        """The device plugin's configuration for what the controls say."""
        document: dict = {"version": "v1"}
        if way := WAYS[self.way.value]:
            document["sharing"] = {way: {"renameByDefault": self.rename.value, "failRequestsGreaterThanOne": self.strict.value,
                                         "resources": [{"name": "nvidia.com/gpu", "replicas": self.replicas.value}]}}
        return Text(yaml.safe_dump(document, sort_keys=False))

    def apply(self) -> None:
        """Writes the configuration and the label, and waits for the operator in a thread."""
        with self._state:
            if self._working:
                return
            self._working = True
        self._tell(f"{self.node.value}: {self.name} is asked for …")
        threading.Thread(target=self._work, args=(self.node.value, self.name, str(self.config)), name="lab05-switch", daemon=True).start()

    def settled(self, seconds: float = SECONDS + 10) -> Text:
        """Waits until the last `apply` is through; returns what the node advertises then. Raises TimeLimitReached."""
        with self._state:
            if not self._state.wait_for(lambda: not self._working, seconds):
                raise TimeLimitReached(f"the configuration was not applied within {seconds:g} s",
                                       "%kubectl get pods -n gpu-operator tells more")
        return Text(self.said)

    @property
    def text(self) -> Text:
        """What the node said after the last `apply`."""
        return Text(self.said)

    def close(self) -> None:
        """Nothing runs on but an `apply` that is under way."""

    def _work(self, node: str, name: str, config: str) -> None:
        try:
            known = self.lab.place.get_path(f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{MAP}")
            self.lab.client.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MAP, "namespace": names.NAMESPACE},
                                   "data": ((known or {}).get("data") or {}) | {name: config}}, manager=self.lab.manager)
            self.lab.client.patch(f"{names.POLICIES}/{names.POLICY}", {"spec": {"devicePlugin": {"config": {"name": MAP}}}})
            self.lab.client.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {names.PLUGIN_CONFIG: name}}})
            said = str(self.parts.node(self.lab, node, SECONDS))
        except OrchlabError as error:
            said = str(error)
        self._tell(said)
        with self._state:
            self._working = False
            self._state.notify_all()

    def _tell(self, words: str) -> None:
        self.said = words
        self.status.update()
        self._draw()

    def _draw(self) -> None:
        text = f"{self.name}:\n{self.config}\n{self.said}"
        with self.panel.hold_sync():
            self.panel.html = (f'<div class="ol-head"><b>{escape(self.name)}</b> {LABELS.html()}</div>'
                               f"<pre>{escape(str(self.config))}\n{escape(self.said)}</pre>")
            self.panel.text = text

    def _repr_mimebundle_(self, **options: object) -> dict:
        return self.widget._repr_mimebundle_(**options) | {"text/plain": "controls and a button; .text is what the node advertises"}
