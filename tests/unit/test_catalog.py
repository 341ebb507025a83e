import pytest

from orchlab.errors import BadInput
from orchlab.gpus import catalog


def test_the_promised_models_are_there_in_order():
    assert list(catalog.models()) == ["A100-40", "A100-80", "H100-80", "H200-141", "B200-180", "L40S", "T4", "A30"]


@pytest.mark.parametrize("model", catalog.models().values(), ids=lambda m: m.name)
def test_every_figure_names_its_source(model):
    assert set(model.sources) == set(vars(model)) - {"name", "sources", "mig"}
    assert all(len(source) > 10 for source in model.sources.values())


@pytest.mark.parametrize("model", catalog.models().values(), ids=lambda m: m.name)
def test_figures_are_plausible(model):
    assert " " not in model.product and int(model.pci_device_id, 16) and len(model.pci_device_id) == 4
    if "-" in model.name:
        # The catalog's name carries the marketing size in GB; NVML's total is that within a few per cent.
        assert model.memory_mib * 2**20 / 1e9 == pytest.approx(float(model.name.split("-")[1]), rel=0.08)
    families = {(7, 5): "turing", (8, 0): "ampere", (8, 9): "ada-lovelace", (9, 0): "hopper", (10, 0): "blackwell"}
    assert model.family == families[model.compute_major, model.compute_minor]


def test_mig_capable_models():
    assert {m.name for m in catalog.models().values() if not m.mig_capable} == {"L40S", "T4"}


@pytest.mark.parametrize("wrong", ["H100", "h100-80", "", None, ["T4"]])
def test_an_unknown_model_names_the_known_ones(wrong):
    with pytest.raises(BadInput) as caught:
        catalog.model(wrong, "pools[1].gpus.model")
    assert caught.value.field == "pools[1].gpus.model"
    assert "A100-40, A100-80, H100-80, H200-141, B200-180, L40S, T4" in caught.value.remedy


def test_the_returned_mapping_is_the_callers_own():
    catalog.models().clear()
    assert catalog.model("T4").sms == 40
