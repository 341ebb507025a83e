import random
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from views_support import GPU, ZERO, node, some_snapshot, unit

from orchlab.snapshot import ClusterSnapshot, Share
from orchlab.views import Labels, Styles, map_svg, map_text, pending_html, pending_text
from orchlab.views.slots import slots
from orchlab.views.style import PALETTE, PATTERNS, look

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "x</title><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


def parts(svg):
    """Everything with a key: {key: (title, element)}. Parsing it proves that it is well-formed."""
    return {e.get("data-k"): (e.findtext(f"{SVG}title"), e) for e in ElementTree.fromstring(svg).iter() if e.get("data-k")}


def cells_of_picture(svg, name):
    """A node's cells as the text twin writes them, read from the picture."""
    titles = [title for key, (title, _) in parts(svg).items() if key.startswith(f"{name}/")]
    said = [title.split(": ", 1)[1] for title in titles]
    return " ".join("." if s == "free" else "x" if s == "not allocatable" else s.split()[0] for s in said) or "-"


@pytest.mark.parametrize("seed", range(40))
def test_the_text_says_what_the_picture_says(seed):
    snapshot = some_snapshot(seed)
    svg, text = map_svg(snapshot), map_text(snapshot)
    rows = [re.split(" {2,}", line) for line in text.splitlines() if line[:3] in ("a  ", "b  ")]
    lines = {row[2]: row for row in rows}
    assert set(lines) == {n.name for n in snapshot.nodes}
    for n in snapshot.nodes:
        _, _, _, _, cells, state, taints = lines[n.name]
        assert cells == cells_of_picture(svg, n.name)
        title, element = parts(svg)[n.name]
        assert state in title and (taints == "-" or taints in title)
        assert ("bad" in element.get("class")) == ("NOT READY" in state) == (not n.ready)
        assert ("cordoned" in ElementTree.tostring(element, "unicode")) == ("CORDONED" in state) == n.cordoned
        held = sum(u.devices_wanted for u in snapshot.placed() if n.name in u.nodes)
        assert len([c for c in cells.split() if c not in ".x-"]) == held
    for waiting in snapshot.waiting():
        assert f"lab/{waiting.name} wants {waiting.devices_wanted}" in svg
        assert f"lab/{waiting.name} ({waiting.devices_wanted} GPUs)" in text


@pytest.mark.parametrize("seed", range(10))
def test_the_same_snapshot_gives_the_same_picture(seed):
    snapshot = some_snapshot(seed)
    mixed = [random.Random(seed + 1).sample(list(items), len(items)) for items in (snapshot.nodes, snapshot.units)]
    again = ClusterSnapshot.of(*mixed, taken=99)
    assert map_svg(again) == map_svg(snapshot) and map_text(again) == map_text(snapshot)
    assert pending_html(again) == pending_html(snapshot) and pending_text(again) == pending_text(snapshot)


@pytest.mark.parametrize("field", ["name", "namespace", "group", "reason", "message", "id", "phase"])
def test_names_and_words_of_the_cluster_cannot_become_markup(field):
    placed, waiting = unit("p", 1, "n"), replace(unit("w"), reason="r", message="m")
    snapshot = ClusterSnapshot.of([node("n")], [replace(u, **{field: EVIL}) for u in (placed, waiting)])
    for styles in (Styles(), Styles("group")):
        html = map_svg(snapshot, styles=styles) + pending_html(snapshot, styles=styles)
        assert "<script" not in html and "<img" not in html


@pytest.mark.parametrize("field, value", [("name", EVIL), ("zone", EVIL), ("rack", EVIL), ("product", EVIL), ("taints", (EVIL, EVIL)),
                                          ("devices", {GPU: (EVIL,)})])
def test_nodes_cannot_become_markup(field, value):
    for count in (1, 80):
        snapshot = ClusterSnapshot.of([replace(node(f"n{i}"), **({field: value} if i == 0 else {})) for i in range(count)], trouble=EVIL)
        svg = map_svg(snapshot, title=EVIL, labels=Labels(EVIL, EVIL, EVIL))
        assert "<script" not in svg and "<img" not in svg and parts(svg)


def test_control_characters_stay_out():
    """They are not allowed in XML, and a newline would break the text's lines."""
    snapshot = ClusterSnapshot.of([node("n")], [replace(unit("w"), reason="A\x00B", message="one\ntwo\x1b[31m")])
    parts(map_svg(snapshot))
    assert "A B: one two [31m" in pending_text(snapshot) and "\x1b" not in pending_html(snapshot)


def test_devices_sit_in_their_own_cells():
    snapshot = ClusterSnapshot.of([node("n", 4)], [unit("late", 1, "n", 3), unit("early", 1, "n", 1)])
    assert cells_of_picture(map_svg(snapshot), "n") == ". A . B"
    assert "n, gpu 3: B lab/late" in map_svg(snapshot)


def test_devices_that_are_not_known_take_free_cells_and_say_so():
    snapshot = ClusterSnapshot.of([node("n", 4)], [unit("guess", 2, "n", known=False), unit("sure", 1, "n", 0)])
    svg = map_svg(snapshot)
    assert cells_of_picture(svg, "n") == "B A A ."
    assert svg.count("which device is not known</title>") == 2 and "dashed cell: which device is not known" in svg


def test_without_an_inventory_cells_stay_where_they_were_first_met():
    bare = node("n", 4, devices={})
    styles = Styles()
    cells = slots(ClusterSnapshot.of([bare], [unit("a", 1, "n", 0), unit("b", 1, "n", 2)]), styles)["n"]
    assert [c.device for c in cells] == ["GPU-n-0", "GPU-n-2", "", ""]
    cells = slots(ClusterSnapshot.of([bare], [unit("b", 1, "n", 2), unit("c", 1, "n", 1)]), styles)["n"]
    assert [(c.device, c.unit and c.unit.name) for c in cells] == [("GPU-n-0", None), ("GPU-n-2", "b"), ("GPU-n-1", "c"), ("", None)]


def test_a_node_that_was_replaced_forgets_the_old_devices():
    styles, bare = Styles(), node("n", 2, devices={})
    slots(ClusterSnapshot.of([bare], [unit("a", 2, "n", 0)]), styles)
    cells = slots(ClusterSnapshot.of([bare], [unit("b", 2, "n", 6)]), styles)["n"]
    assert [(c.device, c.unit.name) for c in cells] == [("GPU-n-6", "b"), ("GPU-n-7", "b")]


def test_a_shared_device_says_how_many_hold_it():
    both = [replace(unit(name, 1, "n"), shares=(Share("n", GPU, 1, ("GPU-n-0",)),)) for name in ("a", "b")]
    svg = map_svg(ClusterSnapshot.of([node("n", 1)], both))
    assert "n, gpu 0: A lab/a and 1 more" in svg


def test_a_unit_over_several_nodes_is_on_each():
    job = replace(unit("j", 4), kind="Job", shares=tuple(Share(f"n{i}", GPU, 2, (f"GPU-n{i}-0", f"GPU-n{i}-1")) for i in range(2)))
    svg = map_svg(ClusterSnapshot.of([node("n0", 2), node("n1", 2)], [job]))
    assert cells_of_picture(svg, "n0") == cells_of_picture(svg, "n1") == "A A"


def test_more_held_than_a_node_has_still_shows():
    snapshot = ClusterSnapshot.of([node("n", 1, allocatable={GPU: 0})], [unit("p", 2, "n", known=False)])
    assert cells_of_picture(map_svg(snapshot), "n") == "A A"
    assert "no longer allocatable" in map_svg(snapshot)


def test_looks_stay_as_units_come_and_go():
    styles, dice = Styles(), random.Random(1)
    seen = {}
    for turn in range(30):
        units = [unit(f"p{n}", submitted=ZERO + n) for n in dice.sample(range(turn, turn + 40), 20)]
        styles.meet(ClusterSnapshot.of([], units))
        for u in units:
            given = styles.of(styles.key(u))
            assert seen.setdefault(u.id, given) == given
    assert len({given.code for given in seen.values()}) == len(seen), "no code is given twice"


def test_a_group_shares_one_look():
    styles = Styles("group")
    pair = [replace(unit(name), group="Job/j") for name in ("a", "b")]
    styles.meet(ClusterSnapshot.of([], [*pair, unit("alone")]))
    assert styles.of(styles.key(pair[0])) == styles.of(styles.key(pair[1])) != styles.of("uid-alone")


def test_neighbouring_looks_differ_in_more_than_the_letter():
    first = [look(number) for number in range(len(PALETTE) * len(PATTERNS))]
    assert len({(s.fill, s.pattern) for s in first}) == len(first)
    assert [look(n).code for n in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


@pytest.mark.parametrize("name, fill, ink", PALETTE)
def test_ink_reads_on_every_colour(name, fill, ink):
    def luminance(colour):
        parts = (int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5))
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    light, dark = sorted((luminance(fill), luminance(ink)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5, name


def test_a_thousand_nodes():
    nodes = [node(f"n{i}", zone=f"z{i % 4}", rack=f"r{i % 20}", ready=i != 7) for i in range(1000)]
    units = [replace(unit(f"p{i}", 8 if i % 2 else 3, f"n{i}"), group=f"Job/j{i // 10}", started=ZERO) for i in range(500)]
    snapshot = ClusterSnapshot.of(nodes, units)
    svg = map_svg(snapshot)
    found = parts(svg)
    assert len(found) == 1000 and "1000 nodes · 2750 of 8000 GPUs held" in svg
    assert found["n1"][0] == "n1; ready; 8 of 8 GPUs held; B lab/p1 8" or "lab/p1 8" in found["n1"][0]
    assert found["n7"][1].get("class") == "node bad"
    text = map_text(snapshot)
    assert len([line for line in text.splitlines() if line.startswith("z")]) == 1001 and len(svg) < 1_000_000


def test_the_labels_follow_the_nodes():
    for simulated, words in (("all", "real: placement · simulated: nodes and GPUs"),
                             ("gpus", "real: placement and nodes · simulated: GPUs"), ("", "real: placement and nodes")):
        snapshot = ClusterSnapshot.of([node("n", simulated=simulated)])
        assert map_text(snapshot).splitlines()[0] == words
        assert all(part in map_svg(snapshot) for part in words.split(" · "))
    assert "modelled: a guess" in map_svg(snapshot, labels=Labels(modelled="a guess"))


def test_an_empty_cluster_and_trouble_are_said():
    empty = ClusterSnapshot.of([], trouble="pods not being watched: gone")
    assert "no nodes" in map_svg(empty)
    for view in (map_svg, map_text, pending_html, pending_text):
        assert "may be out of date: pods not being watched: gone" in view(empty)


def test_two_pictures_on_a_page_keep_their_ids_apart():
    snapshot = some_snapshot(1)
    first, second = map_svg(snapshot, "one"), map_svg(snapshot, "two")
    assert not set(re.findall(r' id="([^"]+)"', first)) & set(re.findall(r' id="([^"]+)"', second))
    assert set(re.findall(r"url\(#([^)]+)\)", first)) <= set(re.findall(r' id="([^"]+)"', first))


def test_pending_keeps_the_schedulers_words_and_the_order_of_submission():
    words = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu. preemption: 0/9 nodes are available: 9 Preemption is not helpful."
    second = replace(unit("a", 16), reason="Unschedulable", message=words, submitted=ZERO + 5)
    first = replace(unit("z", 2), submitted=ZERO)
    slow = replace(unit("s", 1, "n"), reason="ContainerCreating")
    snapshot = ClusterSnapshot.of([node("n")], [second, first, slow])
    assert pending_text(snapshot).splitlines()[1:] == [
        "lab/z wants 2 nvidia.com/gpu: no reason given yet", f"lab/a wants 16 nvidia.com/gpu: Unschedulable: {words}",
        "lab/s wants 1 nvidia.com/gpu on n: ContainerCreating"]
    html = pending_html(snapshot)
    assert words in html and html.index("lab/z") < html.index("lab/a") < html.index("lab/s")
    assert "nothing is waiting" in pending_text(ClusterSnapshot.of([])) and "nothing is waiting" in pending_html(ClusterSnapshot.of([]))
