"""A bench: controls above a cluster map; every change gives the real scheduler a new set of pods and shows what it made of them."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from types import ModuleType

import ipywidgets
import yaml

from orchlab import views
from orchlab.course import Lab, StatusLine, Submitter, Text
from orchlab.errors import TimeLimitReached
from orchlab.views import Labels

STYLE, WIDE = {"description_width": "250px"}, ipywidgets.Layout(width="620px")
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
# The taint that the controls put on nodes; what others have put there stays.
DRILL = "lab-04/drill"
LABELS = Labels("points, from the scheduler's own log at V(10), for one attempt")
SECONDS = 15


class Heard(Submitter):
    """A Submitter that changes the nodes before it creates the pods, and listens to the scheduler until each has its answer."""

    def __init__(self, lab: Lab, label: str, scores: ModuleType, done: Callable[[], None]) -> None:
        super().__init__(lab.place, label, done)
        self.scores, self.attempts = scores, {}
        self.drill: dict[str, str] = {}

    def _replace(self, manifests: list[dict]) -> None:
        for node, effect in self.drill.items():
            _taint(self.place, node, effect)
        with self.scores.Listening(self.place.env, self.place.namespace) as heard:
            super()._replace(manifests)
            try:
                self.place.until(lambda: all(self.scores.decided(pod) for pod in self.pods()), SECONDS,
                                 "not every pod was placed or refused")
            except TimeLimitReached:
                pass  # the line above the map says what the pods wait for
            self.attempts = heard.attempts()


class Bench:
    """`build(values)` gives the pods for what the controls say, `drill(values)` the effect of the drill taint by node ("" for none). `text`
    says in words what the picture shows."""

    def __init__(self, lab: Lab, name: str, controls: dict[str, ipywidgets.Widget], build: Callable[[dict], list[dict]],
                 drill: Callable[[dict], dict[str, str]]) -> None:
        self.lab, self.name, self.controls, self._build, self._drill = lab, name, controls, build, drill
        self.parts, self.scores = lab.load("parts"), lab.load("scores")
        self.submitter = Heard(lab, f"{name}-bench", self.scores, self._done)
        self.status = StatusLine(lambda: self.submitter.trouble or self.text.splitlines()[0])
        self.shown = ipywidgets.Dropdown(options=[f"{name}-0"], description="Points for", style=STYLE, layout=WIDE)
        self.view = views.Live(lab.client, parts=("map", "pending", ("The scheduler's points", self._html, self._points)),
                               key=f"lab-{lab.number}-{name}", title=f"Environment {lab.env.name}", namespace=lab.namespace)
        self.widget = ipywidgets.VBox([*controls.values(), self.status.widget, self.shown, self.view.widget])
        self._leave = self.view.feed.on_change(self.status.update)
        for control in controls.values():
            control.observe(lambda change: self.submit(), "value")
        self.shown.observe(lambda change: self.view.update(), "value")
        self.submit()

    @property
    def values(self) -> dict:
        """What the controls say."""
        return {name: control.value for name, control in self.controls.items()}

    @property
    def manifest(self) -> Text:
        """The first of the pods, as YAML."""
        return Text(yaml.safe_dump(self._build(self.values)[0], sort_keys=False).rstrip())

    def submit(self) -> None:
        """Asks for what the controls say now; returns at once."""
        wanted = self._build(self.values)
        names = [pod["metadata"]["name"] for pod in wanted]
        if list(self.shown.options) != names:
            self.shown.options = names
        self.submitter.drill = self._drill(self.values)
        self.submitter.wish(wanted)

    def settled(self, seconds: float = 20) -> Text:
        """Waits until every pod is placed or refused; returns the summary. Raises TimeLimitReached."""
        return self.parts.summary(self.lab, self.submitter.settled(seconds))

    @property
    def text(self) -> Text:
        """How many pods went to which pool, zone and rack, and the scheduler's words for the others."""
        return self.parts.summary(self.lab, self.submitter.pods())

    def points(self, name: str = "") -> Text:
        """What the plugins gave each node for one pod: the one named, else the last. Points are the scheduler's, weights included."""
        name = name or self.shown.options[-1]
        return Text(f"{name}\n{self.scores.table(self.submitter.attempts.get(name))}")

    def close(self) -> None:
        """Stops following the cluster. The pods stay."""
        self._leave()
        self.view.close()

    # -- drawing

    def _done(self) -> None:
        self.status.update()
        self.view.update()

    def _points(self, *_: object) -> str:
        return f"{LABELS.text()}\n{self.points(self.shown.value)}"

    def _html(self, *_: object) -> str:
        name = self.shown.value
        attempt = self.submitter.attempts.get(name)
        head = f'<div class="ol-head"><b>The scheduler\'s points for {escape(str(name))}</b> {LABELS.html()}</div>'
        if attempt is None or not attempt.points:
            return f"{head}<div>{escape(self.scores.table(None))}</div>"
        plugins = attempt.plugins()
        heads = "".join(f'<th scope="col">{escape(word)}</th>' for word in ("nodes", *plugins, "total"))
        rows = "".join(f'<tr><th scope="row">{escape(" ".join(nodes))}</th>' + "".join(f"<td>{points[plugin]}</td>" for plugin in plugins)
                       + f"<td><b>{total}</b></td></tr>" for nodes, points, total in attempt.rows())
        return f'{head}<table class="ol-table"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'

    def _repr_mimebundle_(self, **options: object) -> dict:
        words = f"{len(self.controls)} controls, a cluster map and the scheduler's points; .text and .points() say the same in words"
        return self.widget._repr_mimebundle_(**options) | {"text/plain": words}


def _taint(place, node: str, effect: str) -> None:
    """Puts the drill taint with this effect on a node, or takes it away ("")."""
    path = f"/api/v1/nodes/{node}"
    there = place.client.get(path)["spec"].get("taints") or []
    wanted = [taint for taint in there if taint["key"] != DRILL] + ([{"key": DRILL, "effect": effect}] if effect else [])
    if wanted != there:
        place.client.patch(path, {"spec": {"taints": wanted}})
