"""One pod of the learner's choice, and where it lands on the map."""

from __future__ import annotations

import ipywidgets

from orchlab import views
from orchlab.course import Lab, StatusLine, Submitter, Text, pods

ANY = "any"


def one_pod(lab: Lab, product: str = ANY, gpus: int = 4) -> OnePod:
    """A pod with `gpus` GPUs of one product (the label nvidia.com/gpu.product), or of any."""
    return OnePod(lab, product, gpus)


class OnePod:
    """A choice of GPU model and number; the scheduler places the pod anew at each change. `text` says the same in words."""

    def __init__(self, lab: Lab, product: str, gpus: int) -> None:
        products = sorted({node["metadata"]["labels"]["nvidia.com/gpu.product"] for node in lab.place.list("node")
                           if "nvidia.com/gpu.product" in node["metadata"]["labels"]})
        style, layout = {"description_width": "110px"}, ipywidgets.Layout(width="480px")
        self.product = ipywidgets.Dropdown(options=[ANY, *products], value=product, description="GPU model", style=style, layout=layout)
        self.gpus = ipywidgets.IntSlider(gpus, 0, 16, description="GPUs", continuous_update=False, style=style, layout=layout)
        self.status = StatusLine(lambda: self.submitter.trouble or self.text)
        self.submitter = Submitter(lab.place, "lab00-widget", self.status.update)
        self.view = views.Live(lab.client, parts=("map",), key=f"lab-{lab.number}-map", title=f"Environment {lab.env.name}")
        self.widget = ipywidgets.VBox([self.product, self.gpus, self.status.widget, self.view.widget])
        self._leave = self.view.feed.on_change(self.status.update)
        for control in (self.product, self.gpus):
            control.observe(lambda change: self.submit(), "value")
        self.submit()

    def submit(self) -> None:
        """Asks for what the controls say now; returns at once."""
        self.submitter.wish([_pod(self.product.value, self.gpus.value)])

    def settled(self, seconds: float = 20) -> Text:
        """Waits until the pod is placed or has been refused; returns the sentence. Raises TimeLimitReached."""
        return _sentence(self.submitter.settled(seconds))

    @property
    def text(self) -> Text:
        """Where the pod is, or the scheduler's words."""
        return _sentence(self.submitter.pods())

    def close(self) -> None:
        """Stops following the cluster. The pod stays."""
        self._leave()
        self.view.close()

    def _repr_mimebundle_(self, **options: object) -> dict:
        return self.widget._repr_mimebundle_(**options) | {"text/plain": "two controls and a cluster map; .text says the same in words"}


def _pod(product: str, gpus: int) -> dict:
    resources = {"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}
    selector = {} if product == ANY else {"nodeSelector": {"nvidia.com/gpu.product": product}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "visitor"},
            "spec": selector | {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                                "containers": [{"name": "main", "image": "registry.example/train:1"} | resources]}}


def _sentence(found: list[dict]) -> Text:
    return Text("; ".join(pods.sentence(pod) for pod in found) or "no pod")
