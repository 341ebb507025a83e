"""The views' panel in a real browser: pictures arrive whole, focus stays, keys find their way. No JupyterLab, no cluster."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit"))

from views_support import ZERO, node, some_snapshot, unit  # noqa: E402

from orchlab.snapshot import ClusterSnapshot  # noqa: E402
from orchlab.views import Styles, live, map_svg, pending_html  # noqa: E402

SCRIPT = """async (script) => {
  const { default: panel } = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
  const state = { html: "", text: "", title: "Map" }, heard = {};
  panel.render({ model: { get: (name) => state[name], on: (name, act) => (heard[name] = act), off() {} }, el: here });
  const clean = (element) => {
    const copy = element.cloneNode(true);
    copy.querySelectorAll("[tabindex]").forEach((item) => item.setAttribute("tabindex", "-1"));
    return copy.innerHTML;
  };
  window.patched = 0;
  window.set = (name, value) => { state[name] = value; heard[`change:${name}`](); };
  window.show = (html) => {
    const before = here.querySelector("svg");
    set("html", html);
    if (before && before === here.querySelector("svg")) patched++;
    fresh.innerHTML = html;
    return clean(here.querySelector(".ol-picture")) === clean(fresh);
  };
}"""


@pytest.fixture
def panel(page):
    page.set_content("<div id=here></div><div id=fresh hidden></div>")
    page.evaluate(SCRIPT, Path(live.__file__).with_name("panel.js").read_text())
    return page


def show(panel, picture):
    assert panel.evaluate("(html) => show(html)", picture), "the panel shows something else than the picture it was given"


def focused(panel):
    return panel.evaluate("document.activeElement.dataset.k ?? ''")


def test_pictures_arrive_whole_though_only_changes_are_drawn(panel):
    dice, styles = random.Random(1), Styles()
    for seed in range(20):
        show(panel, map_svg(some_snapshot(seed), styles=styles))
    nodes, units = [node(f"n{i}") for i in range(20)], [unit(f"p{i}", 3, f"n{i}") for i in range(20)]
    for turn in range(40):
        place = dice.randrange(20)
        units[place] = unit(f"p{place}", dice.randint(1, 5), f"n{place}", started=ZERO if turn % 2 else None)
        show(panel, map_svg(ClusterSnapshot.of(nodes, units), styles=styles))
    assert panel.evaluate("patched") >= 30
    for picture in (pending_html(some_snapshot(3)), map_svg(some_snapshot(4)), "", map_svg(some_snapshot(4))):
        show(panel, picture)


def test_focus_stays_when_the_picture_changes_and_what_has_it_is_said(panel):
    first = ClusterSnapshot.of([node("n1"), node("n2")])
    show(panel, map_svg(first))
    panel.focus('#here [data-k="n2"]')
    show(panel, map_svg(ClusterSnapshot.of(first.nodes, [unit("p", 2, "n2")])))
    assert focused(panel) == "n2" and "2 of 8 GPUs held" in panel.inner_text("[role=status]")
    show(panel, map_svg(ClusterSnapshot.of([*first.nodes, node("n3")], [unit("p", 3, "n2")])))
    assert focused(panel) == "n2" and "3 of 8 GPUs held" in panel.inner_text("[role=status]")
    show(panel, map_svg(ClusterSnapshot.of([node("n1")])))
    assert focused(panel) == "n1", "what had the focus is gone: the first one takes it"


def test_keys(panel):
    nodes = [node(f"n{i}", rack="r1" if i < 4 else "r2") for i in range(8)]
    show(panel, map_svg(ClusterSnapshot.of(nodes)))
    panel.evaluate("set('text', 'twin')")
    panel.keyboard.press("Tab")
    seen = [focused(panel)]
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "End", "Home", "Enter", "ArrowRight", "End", "Escape", "ArrowRight"):
        panel.keyboard.press(key)
        seen.append(focused(panel))
    assert seen == ["n0", "n1", "n5", "n4", "n0", "n7", "n0", "n0/0", "n0/1", "n0/7", "n0", "n1"]
    panel.keyboard.press("Tab")
    assert focused(panel) == "" and panel.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert panel.locator('#here [data-k][tabindex="0"]').count() == 1, "the picture is one stop of the Tab key"


def test_the_text_twin_is_in_a_fold_that_keys_open(panel):
    panel.evaluate("set('text', 'one\\n<b>two</b>')")
    assert panel.inner_text("summary") == "Map as text" and not panel.locator("pre").is_visible()
    panel.focus("summary")
    panel.keyboard.press("Enter")
    assert panel.inner_text("pre") == "one\n<b>two</b>"
    panel.evaluate("set('text', 'three')")
    assert panel.inner_text("pre") == "three" and panel.locator("pre").is_visible(), "a change leaves the fold open"
    panel.evaluate("set('text', '')")
    assert not panel.locator("details").is_visible()
