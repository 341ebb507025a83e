"""Two sliders, the real scheduler, and where it put everything."""

from __future__ import annotations

from collections import Counter

import ipywidgets
import yaml

from orchlab import views
from orchlab.course import Lab, StatusLine, Submitter, Text, pods

PRODUCT = "NVIDIA-H100-80GB-HBM3"


def placement(lab: Lab, gpus: int = 3, count: int = 7) -> Placement:
    """`count` pods with `gpus` H100s each; both can be changed."""
    return Placement(lab, gpus, count)


class Placement:
    """Submits equal pods to the scheduler of the lab's environment and shows what it makes of them. `text` says the same in words."""

    def __init__(self, lab: Lab, gpus: int, count: int) -> None:
        style, layout = {"description_width": "110px"}, ipywidgets.Layout(width="480px")
        self.gpus = ipywidgets.IntSlider(gpus, 1, 8, description="GPUs per pod", continuous_update=False, style=style, layout=layout)
        self.count = ipywidgets.IntSlider(count, 0, 16, description="Pods", continuous_update=False, style=style, layout=layout)
        self.status = StatusLine(lambda: self.submitter.trouble or self.text.splitlines()[0])
        self.submitter = Submitter(lab.place, "lab01-widget", self.status.update)
        self.view = views.Live(lab.client, parts=("map", "pending"), key=f"lab-{lab.number}-placement", title=f"Environment {lab.env.name}")
        self.widget = ipywidgets.VBox([self.gpus, self.count, self.status.widget, self.view.widget])
        self._leave = self.view.feed.on_change(self.status.update)
        for slider in (self.gpus, self.count):
            slider.observe(lambda change: self.submit(), "value")
        self.submit()

    @property
    def manifest(self) -> Text:
        """The first of the pods that the sliders ask for, as YAML."""
        return Text(yaml.safe_dump(_pod(0, self.gpus.value), sort_keys=False).rstrip())

    def submit(self) -> None:
        """Asks for what the sliders say now; returns at once."""
        self.submitter.wish([_pod(number, self.gpus.value) for number in range(self.count.value)])

    def settled(self, seconds: float = 20) -> Text:
        """Waits until every pod is placed or has been refused; returns the summary. Raises TimeLimitReached."""
        return _summary(self.submitter.settled(seconds), self.gpus.value)

    @property
    def text(self) -> Text:
        """How many pods are placed, on which pools, and the scheduler's words for the others."""
        return _summary(self.submitter.pods(), self.gpus.value)

    def close(self) -> None:
        """Stops following the cluster. The pods stay."""
        self._leave()
        self.view.close()

    def _repr_mimebundle_(self, **options: object) -> dict:
        return self.widget._repr_mimebundle_(**options) | {"text/plain": "two sliders and a cluster map; .text says the same in words"}


def _pod(number: int, gpus: int) -> dict:
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"w-{number}"},
        "spec": {"nodeSelector": {"nvidia.com/gpu.product": PRODUCT},
                 "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                 "containers": [{"name": "main", "image": "registry.example/train:1", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]}}


def _summary(found: list[dict], gpus: int) -> Text:
    placed = Counter(pod["spec"]["nodeName"].rpartition("-")[0] for pod in found if pod["spec"].get("nodeName"))
    reasons = Counter(words for pod in found if (words := pods.unschedulable(pod)))
    where = ", ".join(f"{number} on {pool}" for pool, number in sorted(placed.items()))
    first = (
        f"{len(found)} pods x {gpus} GPUs: {placed.total()} placed"
        + (f" ({where})" if where else "")
        + f", {len(found) - placed.total()} pending"
    )
    return Text("\n".join([first, *(f"  {number} x {words}" for words, number in sorted(reasons.items()))]))
