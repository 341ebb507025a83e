"""mig-parted's format: its public samples re-expressed, the file that the GPU Operator ships, and its refusals."""

from pathlib import Path

import pytest
import yaml

from orchlab.gpus import catalog, mig, mig_config

SHIPPED = Path(__file__).parents[1] / "data" / "nvidia-default-mig-parted-config.yaml"
MODELS = catalog.models()
PARTITIONED = [m for m in MODELS.values() if m.mig]

# Typed by hand: what each shipped all-* entry makes of the models that it is meant for.
EIGHT = ("1g.{a}gb", 7), ("1g.{a}gb.me", 1), ("1g.{b}gb", 4), ("2g.{b}gb", 3), ("3g.{c}gb", 2), ("4g.{c}gb", 1), ("7g.{d}gb", 1)
SIZES = {"A100-40": (5, 10, 20, 40), "A100-80": (10, 20, 40, 80), "H100-80": (10, 20, 40, 80), "H200-141": (18, 35, 71, 141),
         "B200-180": (23, 45, 90, 180)}
EXPECTED = {name: {f"all-{p.format(a=a, b=b, c=c, d=d)}": {p.format(a=a, b=b, c=c, d=d).replace(".me", "+me"): n} for p, n in EIGHT}
            | {"all-balanced": {f"3g.{c}gb": 1, f"2g.{b}gb": 1, f"1g.{a}gb": 2}} for name, (a, b, c, d) in SIZES.items()}
EXPECTED["A30"] = {"all-1g.6gb": {"1g.6gb": 4}, "all-1g.6gb.me": {"1g.6gb+me": 1}, "all-2g.12gb": {"2g.12gb": 2},
                   "all-2g.12gb.me": {"2g.12gb+me": 1}, "all-4g.24gb": {"4g.24gb": 1}, "all-balanced": {"2g.12gb": 1, "1g.6gb": 2}}


def _made(layout):
    names = [p.profile for p in layout.placements]
    return {name: names.count(name) for name in names}


@pytest.fixture(scope="module")
def shipped():
    return mig_config.parse(SHIPPED.read_text(encoding="utf-8"))


def test_the_shipped_file_is_accepted_whole(shipped):
    raw = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))["mig-configs"]
    assert len(shipped) == 81 and list(shipped) == list(raw)
    for name, entries in raw.items():
        assert [entry.mig_devices for entry in shipped[name]] == [entry.get("mig-devices", {}) for entry in entries]


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda m: m.name)
def test_each_shipped_entry_applies_to_the_models_it_is_for(shipped, model):
    expected = EXPECTED.get(model.name, {})
    for name in shipped:
        layouts = mig_config.apply(shipped, name, [model] * 2)
        if model.mig is None:
            assert layouts == {}
        elif name == "all-disabled":
            assert all(layout == mig_config.Layout(False) for layout in layouts.values()) and len(layouts) == 2
        else:
            # An entry for other models: no GPU matches its filter, or the GPU ends with MIG on and no instances.
            assert all(layout.mig_enabled and _made(layout) == expected.get(name, {}) for layout in layouts.values()), name
            assert len(layouts) == 2 if name in expected else set(layouts) in (set(), {0, 1})


@pytest.mark.parametrize("model", PARTITIONED, ids=lambda m: m.name)
def test_the_generated_configuration_has_the_names_of_the_model(model):
    configs = mig_config.generate([model] * 8)
    assert set(configs) == {"all-disabled", "all-enabled", *EXPECTED[model.name]}
    assert mig_config.parse(mig_config.dump(configs)) == configs
    for name, made in EXPECTED[model.name].items():
        layouts = mig_config.apply(configs, name, [model] * 8)
        assert list(layouts) == list(range(8)) and all(_made(layout) == made for layout in layouts.values())
        assert all(entry.device_filter == () and entry.devices is None for entry in configs[name])
    assert mig_config.apply(configs, "all-enabled", [model])[0] == mig_config.Layout(True)


def test_filters_are_generated_where_gpus_differ():
    a100, a30, t4 = MODELS["A100-40"], MODELS["A30"], MODELS["T4"]
    configs = mig_config.generate([a100, a30, t4])
    layouts = mig_config.apply(configs, "all-balanced", [a100, a30, t4])
    assert {index: _made(layout) for index, layout in layouts.items()} == {
        0: {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2}, 1: {"2g.12gb": 1, "1g.6gb": 2}}
    assert [entry.device_filter for entry in configs["all-1g.6gb"]] == [("0x20B710DE",)]
    assert list(mig_config.apply(configs, "all-1g.6gb", [a100, a30, t4])) == [1]
    # Same name, different counts: 1g.10gb is the small profile of one and the double one of the other.
    both = mig_config.generate([a100, MODELS["A100-80"]])
    assert [(e.device_filter, e.mig_devices) for e in both["all-1g.10gb"]] == [
        (("0x20B010DE",), {"1g.10gb": 4}), (("0x20B210DE",), {"1g.10gb": 7})]
    assert mig_config.generate([t4]) == {}


# mig-parted's example file, re-expressed.
EXAMPLE = """
version: v1
mig-configs:
  all-disabled: [{devices: all, mig-enabled: false}]
  all-enabled: [{devices: all, mig-enabled: true, mig-devices: {}}]
  custom-config:
  - {devices: [0, 1, 2, 3], mig-enabled: false}
  - {devices: [4], mig-enabled: true, mig-devices: {1g.5gb: 7}}
  - {devices: [5], mig-enabled: true, mig-devices: {2g.10gb: 3}}
  - {devices: [6], mig-enabled: true, mig-devices: {3g.20gb: 2}}
  - {devices: [7], mig-enabled: true, mig-devices: {1g.5gb: 2, 2g.10gb: 1, 3g.20gb: 1}}
"""


def test_the_public_example():
    layouts = mig_config.apply(mig_config.parse(EXAMPLE), "custom-config", [MODELS["A100-40"]] * 8)
    assert [layout.mig_enabled for _, layout in sorted(layouts.items())] == [False] * 4 + [True] * 4
    assert [mig.text(layouts[index].placements) for index in range(3, 8)] == [
        "no instances", "7 x 1g.5gb", "3 x 2g.10gb", "2 x 3g.20gb", "3g.20gb + 2g.10gb + 2 x 1g.5gb"]


ENTRY = "version: v1\nmig-configs: {c: [{%s}]}"


@pytest.mark.parametrize("text", [
    "", "version: v1", "{}", ENTRY % "devices: all, mig-enabled: false", ENTRY % "devices: [], mig-enabled: false",
    ENTRY % "device-filter: MODEL, devices: all, mig-enabled: true, mig-devices: {1g.5gb: 2}",
    ENTRY % "device-filter: [MODEL1, MODEL2], devices: all, mig-enabled: true, mig-devices: {1g.5gb: 2}",
    ENTRY % "devices: all, mig-enabled: true, mig-devices: {0g.0gb: 100}", ENTRY % "devices: all, mig-enabled: false, mig-devices: {}",
    ENTRY % "devices: [0, -1, 99], mig-enabled: true, mig-devices: {1c.2g.10gb: 1, 1g.24gb-me: 1, 1g.24gb+me.all: 1}",
])
def test_what_mig_parted_accepts(text):
    if text == "{}":
        # An empty map is a document without a version, an empty file is not.
        with pytest.raises(mig_config.MigConfigError, match="unknown version: "):
            mig_config.parse(text)
    else:
        assert set(mig_config.parse(text)) <= {"c"}


@pytest.mark.parametrize(("text", "field", "problem"), [
    ("mig-configs: {}", "version", "unable to parse with missing 'version' field"),
    ("version: v2", "version", "unknown version: v2"),
    ("version: v1\nbogus: 1", "bogus", "unexpected field: bogus"),
    ("version: v1\nmig-configs: {}", "mig-configs", "at least one entry in 'mig-configs' is required"),
    ("version: v1\nmig-configs: {c: []}", "mig-configs.c", "at least one entry in 'c' is required"),
    (ENTRY % "mig-enabled: true", "mig-configs.c[0].devices", "missing required field: devices"),
    (ENTRY % "devices: all", "mig-configs.c[0].mig-enabled", "missing required field: mig-enabled"),
    (ENTRY % "devices: all, mig-enabled: true", "mig-configs.c[0].mig-devices",
     "missing required field 'mig-devices' when 'mig-enabled' is true"),
    (ENTRY % "devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}", "mig-configs.c[0].mig-devices",
     "MIG devices included when 'mig-enabled' is false"),
    (ENTRY % "devices: all, mig-enabled: false, mig-device: {}", "mig-configs.c[0].mig-device", "unexpected field: mig-device"),
    (ENTRY % "devices: bogus, mig-enabled: false", "mig-configs.c[0].devices", "invalid string input for 'devices': bogus"),
    (ENTRY % "devices: {}, mig-enabled: false", "mig-configs.c[0].devices",
     "(json: cannot unmarshal object into Go value of type string, json: cannot unmarshal object into Go value of type []int)"),
    (ENTRY % "devices: [a], mig-enabled: false", "mig-configs.c[0].devices",
     "(json: cannot unmarshal array into Go value of type string, json: cannot unmarshal string into Go value of type int)"),
    (ENTRY % "devices: all, mig-enabled: true, mig-devices: {bogus: 2}", "mig-configs.c[0].mig-devices.bogus",
     "error validating values in 'mig-devices' field: invalid format for 'bogus': cannot parse fields of 'bogus': "
     "parsed wrong number of fields, expected 2 or 3"),
    (ENTRY % "devices: all, mig-enabled: true, mig-devices: {1g.5gb: 0}", "mig-configs.c[0].mig-devices",
     "error validating values in 'mig-devices' field: all counts for all MigProfiles are 0"),
    (ENTRY % "devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}", "mig-configs.c[0].mig-devices.1g.5gb",
     "error validating values in 'mig-devices' field: invalid count for '-1': <nil>"),
    (ENTRY % "devices: all, mig-enabled: 'yes'", "mig-configs.c[0].mig-enabled",
     "json: cannot unmarshal string into Go value of type bool"),
])
def test_what_mig_parted_refuses(text, field, problem):
    with pytest.raises(mig_config.MigConfigError) as caught:
        mig_config.parse(text)
    assert (caught.value.field, caught.value.problem) == (field, problem)
    assert caught.value.log == f"error parsing config file: unmarshal error: error unmarshaling JSON: while decoding JSON: {problem}"


@pytest.mark.parametrize(("profile", "problem"), [
    ("1g.5gb+me-gfx", "profile '1g.5gb+me-gfx' contains both '+/-' attributes"), ("", "profile is the empty string"),
    ("1.5gb", "cannot parse fields of '1.5gb': missing 'g' from '%dg'"),
    ("xg.5gb", "cannot parse fields of 'xg.5gb': malformed number in '%dg'"),
    ("1g.5gb ", "cannot parse fields of '1g.5gb ': leading or trailing spaces on '%dgb'"),
    ("1g.5gb+me,me", "cannot parse attributes of '1g.5gb+me,me': non unique attribute in list"),
    ("1g.5gb+", "cannot parse attributes of '1g.5gb+': empty attribute in list"), ("1g.5gb", ""), ("0g.0gb", ""), ("1c.3g.20gb", ""),
])
def test_the_form_of_a_profile_name(profile, problem):
    assert mig_config.format_problem(profile) == problem


def test_applying_fails_in_the_real_words():
    a100, t4 = MODELS["A100-40"], MODELS["T4"]
    configs = mig_config.generate([a100])
    with pytest.raises(mig_config.MigApplyError) as caught:
        mig_config.apply(configs, "all-3g.40gb", [a100])
    assert caught.value.log == "selected mig-config not present: all-3g.40gb" and "all-3g.20gb" in caught.value.remedy
    too_much = mig_config.parse(ENTRY % "devices: all, mig-enabled: true, mig-devices: {3g.20gb: 2, 1g.5gb: 1}")
    with pytest.raises(mig_config.MigApplyError) as caught:
        mig_config.apply(too_much, "c", [a100])
    assert caught.value.log == "error setting MIGConfig: error attempting multiple config orderings: all orderings failed"
    assert caught.value.remedy == "no free placement for 1g.5gb: slices 0-7 are held by 2 x 3g.20gb"
    by_index = mig_config.parse(ENTRY % "devices: [0], mig-enabled: true, mig-devices: {1g.5gb: 1}")
    with pytest.raises(mig_config.MigApplyError, match="cannot set MIG mode on non MIG-capable GPU"):
        mig_config.apply(by_index, "c", [t4])
    assert mig_config.apply(mig_config.parse(ENTRY % "devices: [0], mig-enabled: false"), "c", [t4]) == {}


def test_two_misleading_successes():
    a100 = MODELS["A100-40"]
    elsewhere = mig_config.parse(ENTRY % "device-filter: A100-SXM4-40GB, devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}")
    assert mig_config.apply(elsewhere, "c", [a100]) == {}
    foreign = mig_config.parse(ENTRY % "devices: all, mig-enabled: true, mig-devices: {1g.5gb: 3, 1g.6gb: 1}")
    assert mig_config.apply(foreign, "c", [a100]) == {0: mig_config.Layout(True)}
    # With a GPU on the node that knows the name, it is an error.
    with pytest.raises(mig_config.MigApplyError, match="all orderings failed"):
        mig_config.apply(foreign, "c", [a100, MODELS["A30"]])
