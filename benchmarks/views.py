"""From a change in the cluster to its picture: the map (and, apart, the charts) on 10 and on 1,000 nodes with 8 GPUs each, 90 % held.

What is measured: a watch event handed to the feed → parsed → passed on (at most 5 times a second) → drawn → the new picture is in the
widget's state, about to be sent to the browser. The source is synthetic and in this process: no API server, no network. Every second change
comes less than 0.2 s after a redraw, so that the wait for the next one is part of its figure. With --browser each picture is then given to
the widget's own script in headless Chromium, and the time until the second frame after it is told separately.

Usage: python benchmarks/views.py [--nodes 10 1000] [--changes 60] [--browser /usr/bin/chromium]
"""

from __future__ import annotations

import argparse
import itertools
import json
import queue
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from orchlab.kube.feed import Feed
from orchlab.views import Live, live
from orchlab.views.clustermap import DENSE_ABOVE

GPU = "nvidia.com/gpu"
TARGETS = {10: 0.25, 1000: 1.0}


class Source:
    """Stands in for the API client: lists what it was given, and passes on what `put` is called with."""

    def __init__(self, nodes: int) -> None:
        self._versions = itertools.count(1)
        self._lists: dict[str, dict[str, dict]] = {"nodes": {}, "pods": {}, "events": {}}
        self._inboxes: dict[str, queue.Queue] = {kind: queue.Queue() for kind in self._lists}
        for number in range(nodes):
            self._lists["nodes"][f"n{number}"] = self._node(number)
            if number % 10:
                self._lists["pods"][f"p{number}"] = self.pod(f"p{number}", number)

    def put(self, event: str, pod: dict) -> None:
        self._inboxes["pods"].put((event, pod))

    def list(self, path: str, timeout: float = 30, **query: object) -> tuple[list[dict], str]:
        return list(self._lists[path.rsplit("/", 1)[1]].values()), str(next(self._versions))

    def watch(self, path: str, version: str, seconds: float = 60, opened: Callable | None = None,
              **query: object) -> Iterator[tuple[str, dict]]:
        inbox = self._inboxes[path.rsplit("/", 1)[1]]
        opened(lambda: inbox.put(None))
        while (event := inbox.get()) is not None:
            yield event

    def pod(self, name: str, node: int) -> dict:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        devices = json.dumps({"main": [f"GPU-{node}-{i}" for i in range(8)]})
        return {"metadata": {"name": name, "namespace": "bench", "uid": name, "creationTimestamp": now,
                             "resourceVersion": str(next(self._versions)), "annotations": {"orchlab/devices": devices},
                             "ownerReferences": [{"kind": "Job", "name": f"job-{node // 10}", "controller": True}]},
                "spec": {"nodeName": f"n{node}", "containers": [{"name": "main", "resources": {"limits": {GPU: "8"}}}]},
                "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": now}],
                           "containerStatuses": [{"name": "main", "restartCount": 0, "state": {"running": {"startedAt": now}}}]}}

    def _node(self, number: int) -> dict:
        labels = {"topology.kubernetes.io/zone": f"z{number % 4}", "orchlab/rack": f"r{number % 20}", "orchlab/simulated": "true",
                  "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        devices = json.dumps({GPU: [f"GPU-{number}-{i}" for i in range(8)]})
        return {"metadata": {"name": f"n{number}", "uid": f"n{number}", "resourceVersion": str(next(self._versions)), "labels": labels,
                             "annotations": {"orchlab/devices": devices}},
                "status": {"capacity": {GPU: "8"}, "allocatable": {GPU: "8"}, "conditions": [{"type": "Ready", "status": "True"}]}}


def measure(nodes: int, changes: int, part: str) -> tuple[list[float], list[str]]:
    """Seconds for each change, and the pictures. A change: one pod goes and another comes."""
    source, dice = Source(nodes), random.Random(1)
    begun: dict[str, float] = {}
    seen: dict[str, float] = {}
    pictures: list[str] = []
    drawn = threading.Condition()

    def note(change: dict) -> None:
        # The text twin is set last, just before both are sent, and tells everything that the picture shows.
        with drawn:
            now = time.perf_counter()
            seen.update({name: now for name in begun if name not in seen and name in change["new"]})
            pictures.append(panel.html)
            drawn.notify_all()

    with Feed(source) as feed:
        feed.ready(60)
        view = Live(feed, (part,), key=f"{part}{nodes}", by="group" if nodes > DENSE_ABOVE else "unit")
        panel = view.widget.children[1]
        time.sleep(2)
        panel.observe(note, "text")
        earlier = None
        for number in range(changes):
            pod = source.pod(f"change-{number:04}-end", dice.randrange(nodes) // 10 * 10)
            begun[pod["metadata"]["name"]] = time.perf_counter()
            if earlier:
                source.put("DELETED", earlier)
            source.put("ADDED", pod)
            earlier = pod
            # One that comes alone, then one right after it, which has to wait for the next redraw.
            with drawn:
                drawn.wait_for(lambda: pod["metadata"]["name"] in seen, timeout=30)
            time.sleep(0.6 if number % 2 else dice.uniform(0.0, 0.2))
        view.close()
    if len(seen) != changes:
        raise TimeoutError(f"{changes - len(seen)} changes never came to be drawn")
    return [seen[name] - begun[name] for name in begun], pictures


def paint(pictures: list[str], chromium: str) -> list[float]:
    """Seconds in headless Chromium from a picture given to the widget's script to the second frame after it."""
    from playwright.sync_api import sync_playwright

    script, css = Path(live.__file__).with_name("panel.js").read_text(), Path(live.__file__).with_name("panel.css").read_text()
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.set_content(f"<style>{css}</style><div id=here></div>")
        page.evaluate("""async (script) => {
            const { default: panel } = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
            const state = { html: "", text: "", title: "" }, heard = {};
            panel.render({ model: { get: (name) => state[name], on: (name, act) => (heard[name] = act), off() {} }, el: here });
            const frame = () => new Promise(requestAnimationFrame);
            window.show = async (html) => {
                const begun = performance.now();
                state.html = html;
                heard["change:html"]();
                await frame();
                await frame();
                return (performance.now() - begun) / 1000;
            };
        }""", script)
        seconds = [page.evaluate("(html) => show(html)", picture) for picture in pictures]
        browser.close()
        return seconds


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 1000])
    parser.add_argument("--changes", type=int, default=60)
    parser.add_argument("--browser", help="path of Chromium")
    wanted = parser.parse_args()
    print("| part | nodes | median, s | p95, s | target, s | picture, KB | drawn by the browser, p95, s |\n|---|---|---|---|---|---|---|")
    for part, nodes in [("map", n) for n in wanted.nodes] + [("gantt", n) for n in wanted.nodes]:
        seconds, pictures = measure(nodes, wanted.changes, part)
        browser = f"{p95(paint(pictures, wanted.browser)):.3f}" if wanted.browser else "not measured"
        size = statistics.median(len(picture) for picture in pictures) / 1000
        cells = [part, nodes, f"{statistics.median(seconds):.3f}", f"{p95(seconds):.3f}", TARGETS.get(nodes, ""), f"{size:.0f}", browser]
        print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
