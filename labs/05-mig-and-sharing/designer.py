"""A MIG layout by clicks on the slice map, carried out by the MIG manager."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import ipywidgets
import yaml

from orchlab.course import Lab, StatusLine, Text
from orchlab.errors import BadInput, OrchlabError, TimeLimitReached
from orchlab.gpus import catalog, mig, mig_config
from orchlab.gpus.mig import Placement
from orchlab.gpu_operator import names
from orchlab.views import migmap
from orchlab.views.clickmap import ClickMap

MAP = "lab-05-mig"
SECONDS = 60
DISABLED = {"devices": "all", "mig-enabled": False}


class Designer:
    """One layout per GPU of a node. Pressing a place puts an instance there or takes it away; `apply` writes the ConfigMap, names it in the
    ClusterPolicy and labels the node. `text` says the same as the picture."""

    def __init__(self, lab: Lab, node: str) -> None:
        self.lab, self.parts = lab, lab.load("parts")
        style, wide = {"description_width": "60px"}, ipywidgets.Layout(width="260px")
        machines = {found.name: found for found in lab.env.fleet.nodes() if found.gpus and catalog.model(found.gpu_model).mig}
        if node not in machines:
            raise BadInput("node", node, "has no GPUs that can be partitioned", f"use one of {', '.join(machines)}")
        self._machines = machines
        self.node = ipywidgets.Dropdown(options=sorted(machines), value=node, description="Node", style=style, layout=wide)
        self.gpu = ipywidgets.Dropdown(description="GPU", style=style, layout=wide)
        self.copy = ipywidgets.Button(description="Same on all GPUs")
        self.clear = ipywidgets.Button(description="Clear this GPU")
        self.button = ipywidgets.Button(description="Apply", button_style="primary")
        self.said, self.trouble = "", ""
        self.status = StatusLine(lambda: self.said)
        self.map = ClickMap(self.press, title="Slice map")
        choice, buttons = ipywidgets.HBox([self.node, self.gpu]), ipywidgets.HBox([self.copy, self.clear, self.button])
        self.widget = ipywidgets.VBox([choice, self.map, buttons, self.status.widget])
        self._state, self._working = threading.Condition(), False
        self.layouts: dict[int, tuple[Placement, ...]] = {}
        self._load()
        self.node.observe(lambda change: self._load(), "value")
        self.gpu.observe(lambda change: self.draw(), "value")
        self.copy.on_click(lambda button: self._change(dict.fromkeys(self.layouts, self.layout), "the same layout on all GPUs of the node"))
        self.clear.on_click(lambda button: self._change({self.gpu.value: ()}, f"GPU {self.gpu.value} is whole again"))
        self.button.on_click(lambda button: self.apply())

    # -- designing

    @property
    def model(self) -> catalog.GpuModel:
        """The model of the node's GPUs."""
        return catalog.model(self._machines[self.node.value].gpu_model)

    @property
    def layout(self) -> tuple[Placement, ...]:
        """What is on the chosen GPU."""
        return self.layouts[self.gpu.value]

    def press(self, key: str) -> None:
        """A place on the map was pressed: PROFILE@START. What does not fit is refused with the reason."""
        place = next((one for found in migmap.places(self.model, self.layout).values() for one in found if one.key == key), None)
        if place is None:
            return
        if place.state == "blocked":
            self._say(f"refused: {place.words}")
            return
        where = f"{place.placement.profile} at {migmap.slices(place.placement)}"
        if place.state == "placed":
            self._change({self.gpu.value: tuple(p for p in self.layout if p != place.placement)}, f"taken away: {where}")
        else:
            self._change({self.gpu.value: (*self.layout, place.placement)}, f"placed: {where}")

    def design(self, *profiles: str) -> Text:
        """Puts these profiles on the chosen GPU instead of what is there, where the driver would put them. Raises BadInput with the reason
        when they do not fit."""
        self._change({self.gpu.value: mig.place(self.model, profiles, field="profiles")}, "")
        self._say(f"GPU {self.gpu.value}: {mig.text(self.layout)}")
        return Text(self.said)

    @property
    def config(self) -> list[dict]:
        """The configuration as mig-parted reads it: one entry per different layout, profiles counted. Where they go the driver decides."""
        groups: dict[tuple, list[int]] = {}
        for index, layout in self.layouts.items():
            counts = tuple(sorted((name, [p.profile for p in layout].count(name)) for name in {p.profile for p in layout}))
            groups.setdefault(counts, []).append(index)
        entries = []
        for counts, indexes in groups.items():
            devices: str | list[int] = "all" if len(groups) == 1 else indexes
            entries.append({"devices": devices, "mig-enabled": True, "mig-devices": dict(counts)} if counts
                           else DISABLED | {"devices": devices})
        return entries

    @property
    def text(self) -> Text:
        """The chosen GPU's map in words, and the configuration of the node."""
        return Text(self._twin())

    # -- applying

    def apply(self) -> None:
        """Writes configuration, ClusterPolicy and label, and waits for the operator in a thread; the status line tells."""
        with self._state:
            if self._working:
                return
            self._working = True
        self._say(f"{self.node.value}: the MIG manager is asked …")
        threading.Thread(target=self._work, args=(self.node.value, self.config), name="lab05-designer", daemon=True).start()

    def settled(self, seconds: float = SECONDS + 10) -> Text:
        """Waits until the last `apply` is through; returns what the node advertises then. Raises TimeLimitReached."""
        with self._state:
            if not self._state.wait_for(lambda: not self._working, seconds):
                raise TimeLimitReached(f"the layout was not applied within {seconds:g} s", "%kubectl get pods -n gpu-operator tells more")
        return Text(self.said)

    def close(self) -> None:
        """Nothing runs on but an `apply` that is under way."""

    def _work(self, node: str, entries: list[dict]) -> None:
        try:
            name = self._write(entries)
            self.lab.client.patch(f"{names.POLICIES}/{names.POLICY}", {"spec": {"migManager": {"config": {"name": MAP}}}})
            self.lab.client.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {names.MIG_CONFIG: name}}})
            found, crash = self.parts.settled(self.lab, node, SECONDS)
            said = self._outcome(node, name, found, crash)
            if self.node.value == node and found["metadata"]["labels"].get(names.MIG_STATE) == "success":
                self.layouts = self.parts.layouts(self.lab, node)
        except OrchlabError as error:
            said = str(error)
        self.draw()
        self._say(said)
        with self._state:
            self._working = False
            self._state.notify_all()

    def _write(self, entries: list[dict]) -> str:
        """Adds the configuration to the lab's ConfigMap, under a new name if no equal one is there: the MIG manager acts when the label
        changes, not when a ConfigMap does. Returns the name."""
        known = self.lab.place.get_path(f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{MAP}")
        document = yaml.safe_load((known or {"data": {}})["data"].get("config.yaml", "")) or {}
        # What the operator generates is in it too: every name that a node may bear has to be in the map that counts.
        models = [catalog.model(found.gpu_model) for found in self._machines.values()]
        configs = yaml.safe_load(mig_config.dump(mig_config.generate(models)))["mig-configs"] | (document.get("mig-configs") or {})
        name = next((name for name, content in configs.items() if content == entries), None)
        if name is None:
            name = next(f"designed-{number}" for number in range(1, len(configs) + 2) if f"designed-{number}" not in configs)
            configs[name] = entries
        text = yaml.safe_dump({"version": "v1", "mig-configs": configs}, sort_keys=False)
        mig_config.parse(text)
        self.lab.client.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MAP, "namespace": names.NAMESPACE},
                               "data": {"config.yaml": text}}, manager=self.lab.manager)
        return name

    def _outcome(self, node: str, name: str, found: dict, crash: str) -> str:
        state = found["metadata"]["labels"].get(names.MIG_STATE)
        offered = ", ".join(f"{key}: {count}" for key, count in self.parts.resources(found).items() if count) or "no GPU at all"
        said = f"{node}: {name} {state}; it advertises {offered}"
        if state == "failed":
            said += "; " + "; ".join(line for line in self.parts.manager_log(self.lab, node).splitlines() if line.startswith("Error"))
        return said + (f"; {crash}" if crash else "")

    # -- drawing

    def _load(self) -> None:
        """Begins with what the node has."""
        self.layouts = self.parts.layouts(self.lab, self.node.value)
        self.gpu.options = list(self.layouts)
        self.gpu.value = 0
        self._say(f"{self.node.value}: {len(self.layouts)} GPUs of the model {self.model.nvml_name}")
        self.draw()

    def _change(self, layouts: Mapping[int, tuple[Placement, ...]], words: str) -> None:
        self.layouts = self.layouts | dict(layouts)
        self._say(words)
        self.draw()

    def _say(self, words: str) -> None:
        self.said = words
        self.status.update()

    def draw(self) -> None:
        """Draws the chosen GPU."""
        title = f"GPU {self.gpu.value} of {self.node.value}: {self.model.nvml_name}"
        with self.map.hold_sync():
            self.map.html, self.map.text = migmap.mig_svg(self.model, self.layout, title, prefix=f"ol{id(self):x}"), self._twin()

    def _twin(self) -> str:
        title = f"GPU {self.gpu.value} of {self.node.value}"
        others = "\n".join(f"GPU {index}: {mig.text(layout)}" for index, layout in self.layouts.items())
        return f"{migmap.mig_text(self.model, self.layout, title)}\n\n{others}\n\n{yaml.safe_dump(self.config, sort_keys=False).rstrip()}"

    def _repr_mimebundle_(self, **options: object) -> dict:
        return self.widget._repr_mimebundle_(**options) | {"text/plain": "a slice map to press and a button; .text says the same in words"}
