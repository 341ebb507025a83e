"""The lab's widgets: a MIG layout designer, a switch for the ways of sharing, and what sharing costs."""

from __future__ import annotations

import ipywidgets

from orchlab import views
from orchlab.course import Lab, StatusLine, Text
from orchlab.gpus import catalog, sharing_cost
from orchlab.gpus.sharing_cost import Client, Settings
from orchlab.views import costbars


def designer(lab: Lab, node: str = "a100-0"):
    """The slice map of the node's GPUs: choose profiles, apply the layout."""
    return lab.load("designer").Designer(lab, node)


def sharing(lab: Lab, node: str = "a100-1", way: str = "time-slicing", replicas: int = 4):
    """Time-slicing or MPS on a node: replicas, renameByDefault, failRequestsGreaterThanOne."""
    return lab.load("switch").Switch(lab, node, way, replicas)


def costs(lab: Lab, clients: int = 7, model: str = "A100-40") -> Costs:
    """What `clients` clients of one GPU get, by the way of sharing. Modelled."""
    return Costs(clients, model)


class Costs:
    """Sliders over the model in orchlab.gpus.sharing_cost. `text` is the table behind the bars."""

    def __init__(self, clients: int, model: str) -> None:
        style, layout = {"description_width": "260px"}, ipywidgets.Layout(width="640px")

        def number(value: float, low: float, high: float, step: float, words: str) -> ipywidgets.FloatSlider:
            return ipywidgets.FloatSlider(value, min=low, max=high, step=step, description=words, continuous_update=False, style=style,
                                          layout=layout)

        capable = [name for name, figures in catalog.models().items() if figures.mig]
        self.model = ipywidgets.Dropdown(options=capable, value=model, description="GPU model", style=style, layout=layout)
        self.clients = ipywidgets.IntSlider(clients, 1, 16, description="Clients", continuous_update=False, style=style, layout=layout)
        self.service = number(10, 1, 100, 1, "A request alone on the GPU, ms")
        self.think = number(10, 0, 200, 5, "Pause between requests, ms")
        self.sms = number(0.4, 0.05, 1, 0.05, "Part of the SMs that it can use")
        self.bandwidth = number(0.3, 0.05, 1, 0.05, "Part of the memory bandwidth it needs")
        self.slice = number(2, 0.5, 10, 0.5, "Time slice, ms (assumed)")
        self.switch = number(0.1, 0, 1, 0.05, "Cost of a switch, ms (assumed)")
        self.noisy = ipywidgets.Checkbox(False, description="The others are noisy: never pause, bound by memory", style=style,
                                         layout=layout)
        self.controls = [self.model, self.clients, self.service, self.think, self.sms, self.bandwidth, self.slice, self.switch, self.noisy]
        self.panel = views.Panel(title="What sharing costs")
        self.status = StatusLine(lambda: self.text.split("\n\n")[0].splitlines()[0] + ": " + self._sentence())
        self.widget = ipywidgets.VBox([*self.controls, self.status.widget, self.panel])
        for control in self.controls:
            control.observe(lambda change: self.draw(), "value")
        self.draw()

    def results(self) -> list:
        """A Cost (or the refusal) for each way, at what the sliders say."""
        client = Client(self.service.value, self.think.value, self.sms.value, self.bandwidth.value)
        return sharing_cost.compare(catalog.model(self.model.value), self.clients.value, client,
                                    sharing_cost.NOISY if self.noisy.value else None, Settings(self.slice.value, self.switch.value))

    def draw(self) -> None:
        """Computes and draws anew."""
        found = self.results()
        others = ", noisy neighbours" if self.noisy.value else ""
        title = f"{self.clients.value} clients on {catalog.model(self.model.value).nvml_name}{others}"
        with self.panel.hold_sync():
            self.panel.html, self.panel.text = costbars.cost_svg(found, title, prefix=f"ol{id(self):x}"), costbars.cost_text(found)
        self.status.update()

    @property
    def text(self) -> Text:
        """The table: latency, throughput, memory and isolation of each way."""
        return Text(costbars.cost_text(self.results()))

    def _sentence(self) -> str:
        parts = [f"{costbars.NAME[cost.way]} {cost.latency_ms:.1f} ms" for cost in self.results() if isinstance(cost, sharing_cost.Cost)]
        return "a request takes " + ", ".join(parts)

    def close(self) -> None:
        """Nothing runs."""

    def _repr_mimebundle_(self, **options: object) -> dict:
        return self.widget._repr_mimebundle_(**options) | {"text/plain": "sliders and bars of a model; .text is the table"}
