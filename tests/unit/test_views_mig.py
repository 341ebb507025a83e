"""The slice map, its buttons, and the bars of the cost model: pictures and text twins."""

import xml.etree.ElementTree as ET

import pytest

from orchlab.errors import BadInput
from orchlab.gpus import catalog, mig, sharing_cost
from orchlab.gpus.mig import Placement
from orchlab.views import costbars, migmap
from orchlab.views.clickmap import ClickMap

CAPABLE = [model for model in catalog.models().values() if model.mig]
SVG = "{http://www.w3.org/2000/svg}"


def by_state(model, held):
    found = {"free": set(), "placed": set(), "blocked": set()}
    for places in migmap.places(model, held).values():
        for place in places:
            found[place.state].add(place.placement)
    return found


@pytest.mark.parametrize("model", CAPABLE, ids=lambda model: model.name)
def test_a_place_is_free_exactly_when_it_gives_a_valid_layout(model):
    valid = {frozenset(layout) for layout in mig.placements(model, maximal=False, media=True)}
    for layout in mig.placements(model, maximal=False, media=True)[::17]:
        states = by_state(model, layout)
        assert states["placed"] == set(layout)
        assert all(frozenset((*layout, place)) in valid for place in states["free"])
        assert not any(frozenset((*layout, place)) in valid for place in states["blocked"])


def test_what_does_not_fit_says_what_is_in_the_way():
    model = catalog.model("A100-40")
    held = (Placement(0, 2, "2g.10gb"), Placement(2, 1, "1g.5gb+me"))
    words = {place.key: place.words for places in migmap.places(model, held).values() for place in places}
    assert words["3g.20gb@0"] == "3g.20gb at slices 0-3: slices 0-1 are held by 2g.10gb, slice 2 is held by 1g.5gb+me"
    assert words["1g.5gb+me@6"] == "1g.5gb+me at slice 6: a GPU has one set of media extensions, and 1g.5gb+me has it"
    assert words["3g.20gb@4"] == "3g.20gb at slices 4-7: fits"
    assert migmap.used(model, held) == "compute slices 3 of 7, memory slices 3 of 8, SMs 42 of 108"
    with pytest.raises(BadInput, match="cannot be partitioned"):
        migmap.places(catalog.model("T4"), ())


@pytest.mark.parametrize("model", CAPABLE, ids=lambda model: model.name)
def test_every_place_is_a_button_with_words_and_the_text_has_a_row_for_every_profile(model):
    held = mig.placements(model)[0]
    picture = ET.fromstring(migmap.mig_svg(model, held, 'GPU 0 of "a" & <b>'))
    buttons = [item for item in picture.iter(f"{SVG}g") if item.get("role") == "button"]
    places = {place.key: place for found in migmap.places(model, held).values() for place in found}
    assert {button.get("data-k") for button in buttons} == places.keys() and len(buttons) == len(places)
    for button in buttons:
        place = places[button.get("data-k")]
        assert button.find(f"{SVG}title").text == button.get("aria-label") == place.words
        assert (button.get("aria-pressed") == "true") == (place.state == "placed")
    text = migmap.mig_text(model, held, "GPU 0")
    assert text.startswith(f"GPU 0: {mig.text(held)}\n")
    assert [line.split()[0] for line in text.splitlines()[4:]] == list(model.mig.profiles)


def test_a_press_in_the_browser_reaches_the_kernel_and_nothing_else_does():
    pressed = []
    made = ClickMap(pressed.append)
    for content in ({"press": "1g.5gb@0"}, {"press": 7}, {"other": "x"}, "text", None, ["press"]):
        made._handle_custom_msg(content, [])
    assert pressed == ["1g.5gb@0"]
    assert made._esm.count("export default") == 1


def test_costs_are_bars_and_a_table_and_a_refusal_is_said_in_both():
    model = catalog.model("A100-40")
    found = sharing_cost.compare(model, 12)
    picture, text = costbars.cost_svg(found, "12 clients"), costbars.cost_text(found)
    assert "one A100-40 holds at most 7 instances" in picture and "one A100-40 holds at most 7 instances" in text
    assert sum(1 for item in ET.fromstring(picture).iter(f"{SVG}g") if item.get("role") == "img") == 6
    assert "modelled" in picture and text.startswith("modelled: ")
    assert f"{found[1].latency_ms:.1f}" in text.split("time-slicing")[1].split("\n")[0]
