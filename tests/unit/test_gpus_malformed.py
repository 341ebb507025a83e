"""500 malformed inputs a parser: mutations of good documents by a seeded generator. Whatever comes out is a result or an error that names
its field; nothing crashes."""

import copy
import random

import pytest
import yaml

from orchlab.errors import BadInput
from orchlab.gpus import catalog, documents, inventory, mig, mig_config, sharing

GOOD = {
    "mig": {"version": "v1", "mig-configs": {
        "all-disabled": [{"devices": "all", "mig-enabled": False}],
        "mixed": [{"devices": [0, 1], "device-filter": ["0x20B010DE"], "mig-enabled": True, "mig-devices": {"1g.5gb": 2, "3g.20gb": 1}},
                  {"devices": "all", "device-filter": "0x20B710DE", "mig-enabled": True, "mig-devices": {"1g.6gb+me": 1}}]}},
    "plugin": {"version": "v1",
               "flags": {"migStrategy": "mixed", "failOnInitError": True,
                         "plugin": {"passDeviceSpecs": True, "deviceListStrategy": ["envvar"], "deviceIDStrategy": "uuid"}},
               "resources": {"gpus": [{"pattern": "*", "name": "gpu"}]},
               "sharing": {"timeSlicing": {"renameByDefault": True, "failRequestsGreaterThanOne": False, "resources": [
                   {"name": "nvidia.com/gpu", "replicas": 4, "devices": "all"},
                   {"name": "nvidia.com/mig-1g.5gb", "replicas": 2, "devices": [0]}]},
                   "mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2, "rename": "gpu.small"}]}}},
}
ODD = [None, True, False, 0, -1, 1, 2, 3.5, 1e308, float("nan"), float("inf"), 2**63, 10**30, "", " ", "all", "v2", "x" * 300,
       "ü\u0000\u2028", "1g.5gb", "0x", "2024-01-01", [], [None], [[]], {}, {"": ""}, {"a": {"b": []}}, [1, "a", {}],
       "nvidia.com/" + "y" * 80, "-", "+me", "1g.5gb+me-me"]
TEXT = ["{", "}", "[", "]", ":", "- ", "\t", "&a ", "*a", "!!python/object:os.system ", "!!timestamp ",
        "%", "\x00", "'", '"', "\n", "? ", "<<: ", "|", "@"]


def paths(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


def mutate(chance, value):
    """One or two changes somewhere in a copy of the document: another value, a key gone, added or renamed."""
    value = copy.deepcopy(value)
    for _ in range(chance.randint(1, 2)):
        *parents, last = chance.choice([path for path in paths(value) if path])
        here = value
        for key in parents:
            here = here[key]
        what = chance.randrange(4)
        if what == 0:
            del here[last]
        elif what == 1 and isinstance(here, dict):
            here[chance.choice(["extra", "Devices", "mig_devices", "", "timeslicing"])] = here.pop(last)
        elif what == 2 and isinstance(here, dict):
            here["extra"] = chance.choice(ODD)
        else:
            here[last] = chance.choice(ODD)
        if not value:
            break
    return value


def documents_of(kind, count):
    chance = random.Random(f"{kind} 6")
    good = yaml.safe_dump(GOOD[kind])
    for number in range(count):
        if number % 5 == 4:
            text = good
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(len(text))
                text = text[:at] + chance.choice(TEXT) + text[at + chance.randint(0, 6):]
            yield text
        else:
            yield yaml.dump(mutate(chance, GOOD[kind]), Dumper=yaml.CSafeDumper, allow_unicode=True)


def check(error, text):
    assert error.field and isinstance(error.field, str), text
    assert str(error).startswith(error.field + ": ") and error.problem and error.remedy
    assert len(str(error)) < 2000, text
    assert error.log.endswith(error.problem)


def test_mig_configurations():
    refused = 0
    fleet = [catalog.model("A100-40"), catalog.model("A30"), catalog.model("T4")]
    for text in documents_of("mig", 500):
        try:
            configs = mig_config.parse(text)
            for name in configs:
                try:
                    mig_config.apply(configs, name, fleet)
                except mig_config.MigApplyError as error:
                    check(error, text)
        except mig_config.MigConfigError as error:
            refused += 1
            check(error, text)
    assert 250 < refused < 500


def test_plugin_configurations():
    refused = 0
    node = inventory.of_node("env", "node", "A100-40", 2)
    for text in documents_of("plugin", 500):
        try:
            config = sharing.parse(text, "config-a")
            node.sharing, node.mig_strategy = config.sharing, config.effective_strategy()
            try:
                sharing.check(config, config.effective_strategy())
                inventory.resources(node)
            except sharing.PluginError as error:
                check(error, text)
        except sharing.PluginConfigError as error:
            refused += 1
            check(error, text)
    assert 150 < refused < 500


def test_profile_names_and_layouts():
    chance = random.Random(6)
    model = catalog.model("A100-40")
    for _ in range(500):
        name = list("1g.5gb+me")
        for _ in range(chance.randint(1, 3)):
            name[chance.randrange(len(name))] = chance.choice(["", "1", "9", "g", ".", "+", "-", ",", " ", "ü", "\n", "c"])
        wanted = {"".join(name): chance.choice([0, 1, 8, -1, 10**20, 1.5, None, True, "1"])}
        try:
            mig.place(model, wanted)
        except BadInput as error:
            assert error.field.startswith("mig-devices") and error.problem
        assert isinstance(mig_config.format_problem("".join(name)), str)


@pytest.mark.parametrize("parse", [mig_config.parse, sharing.parse])
@pytest.mark.parametrize("text", [None, 5, b"version: v1", {"version": "v1"}, "[" * 5000, "a: &x [*x]", "x" * (documents.LIMIT + 1),
                                  "a: " * 2000, "[1, 2]", "text", "1", "? {a: 1}\n: b", "a: !!binary aGk=", "a: !!set {b}", "\ud800",
                                  "a: !!bool x", "a: !!int x", "a: !!timestamp x", "a: " + "9" * 5000, "{a: [" + "{b: [" * 400])
def test_documents_that_are_none(parse, text):
    with pytest.raises(documents.ConfigError) as caught:
        parse(text)
    check(caught.value, text)
