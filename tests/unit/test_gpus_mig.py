"""Placements: against a brute-force oracle that knows only starts and sizes, and against what hardware was seen to do."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchlab.errors import BadInput
from orchlab.gpus import catalog, mig

PARTITIONED = [m for m in catalog.models().values() if m.mig]
A100 = catalog.model("A100-40")
# Typed from the MIG User Guide: profile without memory: starts and memory slices. "1d" is 1g with double memory.
EIGHT = {"1g": (range(7), 1), "1d": ((0, 2, 4, 6), 2), "2g": ((0, 2, 4), 2), "3g": ((0, 4), 4), "4g": ((0,), 4), "7g": ((0,), 8)}
FOUR = {"1g": (range(4), 1), "2g": ((0, 2), 2), "4g": ((0,), 4)}
NAMES = {
    "A100-40": dict(zip(EIGHT, ["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"], strict=True)),
    "A100-80": dict(zip(EIGHT, ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"], strict=True)),
    "H100-80": dict(zip(EIGHT, ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"], strict=True)),
    "H200-141": dict(zip(EIGHT, ["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"], strict=True)),
    "B200-180": dict(zip(EIGHT, ["1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"], strict=True)),
    "A30": dict(zip(FOUR, ["1g.6gb", "2g.12gb", "4g.24gb"], strict=True)),
}


def _every(model):
    shapes = FOUR if model.name == "A30" else EIGHT
    return [(NAMES[model.name][kind], start, size) for kind, (starts, size) in shapes.items() for start in starts]


def _cells(option):
    return set(range(option[1], option[1] + option[2]))


def _valid_sets(model):
    """All sets of non-overlapping placements, by trying every combination of up to seven."""
    every = _every(model)
    found = []
    for count in range(8):
        for chosen in combinations(every, count):
            if sum(size for _, _, size in chosen) <= 8 and len(set().union(*map(_cells, chosen))) == sum(size for _, _, size in chosen):
                found.append(frozenset(chosen))
    return found


@pytest.fixture(scope="module")
def a100_sets():
    return _valid_sets(A100)


@pytest.mark.parametrize("model", PARTITIONED, ids=lambda m: m.name)
def test_names_follow_from_the_memory(model):
    for profile in model.mig.profiles.values():
        assert mig.name_from_memory(profile.slices, profile.memory_mib, model.memory_mib, profile.media) == profile.name


def test_a_name_can_differ_between_drivers():
    # A GPU whose driver reports 78 GiB calls its half 3g.39gb, a name that was seen.
    assert mig.name_from_memory(3, 39936, 79872) == "3g.39gb"
    # Half up, as Go rounds: 180 GiB / 8 = 22.5.
    assert mig.name_from_memory(1, 22528, 183359) == "1g.23gb"


@pytest.mark.parametrize("model", PARTITIONED, ids=lambda m: m.name)
def test_the_catalog_agrees_with_the_user_guides_table(model):
    plain = [(p.name, start, p.size) for p in model.mig.profiles.values() if not p.media for start in p.starts]
    assert sorted(plain) == sorted(_every(model))
    # The slice counts in the names, an instance of each kind at most as often as the driver says.
    maxima = [p.max_count for p in model.mig.profiles.values()]
    assert maxima == ([4, 1, 2, 1, 1] if model.name == "A30" else [7, 1, 4, 3, 2, 1, 1])
    assert [p.id for p in model.mig.profiles.values()] == ([14, 21, 5, 6, 0] if model.name == "A30" else [19, 20, 15, 14, 9, 5, 0])
    assert set(model.mig.sources) == {"placements", "engines", "memory"}


def test_all_layouts_are_those_of_the_oracle(a100_sets):
    found = {frozenset((p.profile, p.start, p.size) for p in layout) for layout in mig.placements(A100, maximal=False)}
    assert found == set(a100_sets)
    closed = {s for s in a100_sets if not any(s < other for other in a100_sets)}
    assert {frozenset((p.profile, p.start, p.size) for p in layout) for layout in mig.placements(A100)} == closed
    multisets = {tuple(sorted(name for name, _, _ in s)) for s in a100_sets}
    assert {tuple(sorted(layout)) for layout in mig.layouts(A100, maximal=False)} == multisets


def test_the_nineteen_classic_layouts():
    """Without the 1g with double memory there are nineteen full layouts of an A100, as its documentation draws them."""
    drawn = [layout for layout in mig.placements(A100, maximal=False) if "1g.10gb" not in {p.profile for p in layout}]
    plain = [p for p in A100.mig.profiles.values() if not p.media and p.name != "1g.10gb"]
    full = [layout for layout in drawn if not any(not mig.Placement(start, p.size, p.name).mask & sum(x.mask for x in layout)
                                                  for p in plain for start in p.starts)]
    assert len(full) == 19


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(PARTITIONED), st.data())
def test_place_finds_a_layout_exactly_when_there_is_one(model, data):
    wanted = data.draw(st.lists(st.sampled_from(list(model.mig.profiles)), max_size=8))
    possible = tuple(sorted(wanted)) in _multisets(model.name)
    try:
        placed = mig.place(model, wanted)
    except mig.NoPlacement as refusal:
        assert not possible
        assert refusal.field == "mig-devices" and "no free placement for " in refusal.problem and refusal.value in wanted
        return
    assert possible
    assert sorted(p.profile for p in placed) == sorted(wanted)
    cells = [cell for p in placed for cell in p.slices]
    assert len(set(cells)) == len(cells) and set(cells) <= set(range(model.mig.memory_slices))
    for placement in placed:
        assert placement.start in model.mig.profiles[placement.profile].starts
    # Whatever the order of asking, and however it is written.
    assert mig.place(model, data.draw(st.permutations(wanted))) == placed
    assert mig.place(model, {name: wanted.count(name) for name in set(wanted)}) == placed
    ids = [mig.instance_id(model, p) for p in placed]
    assert len(set(ids)) == len(ids)


_KNOWN = {}


def _multisets(name):
    """Multisets that fit, by the oracle: a +me instance sits where a plain one of its size may, and there is one at most."""
    if name not in _KNOWN:
        model = catalog.model(name)
        if name == "A30":
            media = {"1g.6gb": "1g.6gb+me", "2g.12gb": "2g.12gb+me"}
        else:
            media = {NAMES[name]["1g"]: f"{NAMES[name]['1g']}+me"}
        found = set()
        for layout in _valid_sets(model):
            names = sorted(option[0] for option in layout)
            found.add(tuple(names))
            for plain, with_media in media.items():
                if plain in names:
                    rest = list(names)
                    rest[rest.index(plain)] = with_media
                    found.add(tuple(sorted(rest)))
        _KNOWN[name] = found
    return _KNOWN[name]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(PARTITIONED), st.data())
def test_what_is_held_already_is_left_alone(model, data):
    layout = data.draw(st.sampled_from(mig.placements(model, maximal=False)))
    wanted = data.draw(st.sampled_from(list(model.mig.profiles)))
    try:
        (placed,) = mig.place(model, [wanted], layout)
    except mig.NoPlacement:
        starts = model.mig.profiles[wanted].starts
        size = model.mig.profiles[wanted].size
        assert all(set(range(start, start + size)) & {cell for p in layout for cell in p.slices} for start in starts)
    else:
        assert not set(placed.slices) & {cell for p in layout for cell in p.slices}


def test_placements_are_those_seen_on_hardware():
    # Public mig -lgi output: all-balanced on an A100 80 GB, with GPU instance ids.
    model = catalog.model("A100-80")
    placed = mig.place(model, {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1})
    assert [(p.profile, f"{p.start}:{p.size}", mig.instance_id(model, p)) for p in placed] == [
        ("3g.40gb", "4:4", 2), ("2g.20gb", "0:2", 3), ("1g.10gb", "2:1", 9), ("1g.10gb", "3:1", 10)]
    # Seven slices have the ids 7 to 13; the one beside the lonely eighth slice comes first. Four on an A30 have 3 to 6.
    assert [mig.instance_id(A100, p) for p in mig.place(A100, ["1g.5gb"] * 7)] == [13, 11, 12, 7, 8, 9, 10]
    ids = [mig.instance_id(model, p) for p in mig.place(model, {"2g.20gb": 3, "1g.10gb+me": 1})]
    assert ids == [5, 3, 4, 13]
    a30 = catalog.model("A30")
    assert sorted(mig.instance_id(a30, p) for p in mig.place(a30, ["1g.6gb"] * 4)) == [3, 4, 5, 6]


@pytest.mark.parametrize(("wanted", "problem"), [
    ({"4g.20gb": 1, "3g.20gb": 2}, "no free placement for 3g.20gb: slices 0-3 are held by 4g.20gb, 4-7 are held by 3g.20gb"),
    ({"1g.5gb": 8}, "no free placement for 1g.5gb: slices 0-6 are held by 7 x 1g.5gb"),
    ({"7g.40gb": 1, "1g.5gb": 1}, "no free placement for 1g.5gb: slices 0-7 are held by 7g.40gb"),
    ({"1g.5gb+me": 2}, "no free placement for 1g.5gb+me: a GPU has one set of media extensions, held by 1g.5gb+me"),
    ({"1g.5gb": 10**12}, "no free placement for 1g.5gb: slices 0-6 are held by 7 x 1g.5gb"),
])
def test_a_refusal_says_what_is_in_the_way(wanted, problem):
    with pytest.raises(mig.NoPlacement) as caught:
        mig.place(A100, wanted)
    assert caught.value.problem == problem and caught.value.remedy


@pytest.mark.parametrize(("text", "parts"), [
    ("1g.5gb", (1, 1, 5, (), ())), ("1g.5gb+me", (1, 1, 5, ("me",), ())), ("1g.5gb.me", (1, 1, 5, ("me",), ())),
    ("1c.3g.20gb", (1, 3, 20, (), ())), ("1g.24gb-me", (1, 1, 24, (), ("me",))), ("1g.24gb+me.all", (1, 1, 24, ("me.all",), ())),
])
def test_names_are_parsed(text, parts):
    parsed = mig.parse(text)
    assert (parsed.c, parsed.g, parsed.gb, parsed.attributes, parsed.without) == parts
    assert str(parsed) in (text, text.replace(".me", "+me"))


@pytest.mark.parametrize("text", ["", "1g", "g.5gb", "1g.5GB", "1g.5gb+", "1g.5gb+me,me", "1g.5gb+ me", "1.5gb", "1g.5gb+me-x", None, 5,
                                  ["1g.5gb"]])
def test_other_names_are_refused(text):
    with pytest.raises(BadInput) as caught:
        mig.parse(text, "mig-devices[0]")
    assert caught.value.field == "mig-devices[0]"


def test_profiles_of_the_model_only():
    assert mig.profile(A100, "1g.5gb.me").name == "1g.5gb+me"
    for name, problem in (("1g.6gb", "is not a profile of A100-40"), ("1c.3g.20gb", "compute instance")):
        with pytest.raises(BadInput, match=problem):
            mig.profile(A100, name)
    for call in (mig.layouts, mig.placements):
        with pytest.raises(BadInput, match="T4 cannot be partitioned"):
            call(catalog.model("T4"))
    with pytest.raises(BadInput, match="T4 cannot be partitioned"):
        mig.place(catalog.model("T4"), ["1g.5gb"])
