"""The model of what sharing costs, against cases that can be worked out by hand; and packing against brute force."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchlab.errors import BadInput
from orchlab.gpus import catalog, mig, packing
from orchlab.gpus import sharing_cost as model_of
from orchlab.gpus.sharing_cost import NOISY, Client, Settings, compare, cost

A100 = catalog.model("A100-80")
FREE = Settings(slice_ms=2.0, switch_ms=0.0)
BUSY = Client(service_ms=10, think_ms=0, sms=0.5, bandwidth=0.25)


@pytest.mark.parametrize("way", model_of.WAYS)
def test_alone_a_client_has_the_gpu(way):
    found = cost(A100, way, 1, Client(10, 30, 0.4, 0.3))
    assert found.latency_ms == pytest.approx(10) and found.throughput == pytest.approx(25) and found.slowdown == pytest.approx(1)


def test_busy_clients_share_the_time():
    for clients in (2, 5, 30):
        found = cost(A100, "time-slicing", clients, BUSY, settings=FREE)
        assert found.latency_ms == pytest.approx(10 * clients) and found.total_throughput == pytest.approx(100)
        # Every second of work costs a twentieth more when each slice of 2 ms ends with a switch of 0.1 ms.
        assert cost(A100, "time-slicing", clients, BUSY).latency_ms == pytest.approx(10 * clients * 1.05)


def test_two_time_slices_do_not_make_a_client_faster():
    # The machine repair model with exponential times, solved by hand for two customers: service 10, think 10.
    # States 0, 1, 2 at the GPU with weights 1, 2, 2: throughput = (1 - 1/5) / 10 ms.
    found = cost(A100, "time-slicing", 2, Client(10, 10, 0.5, 0.2), settings=FREE)
    assert found.total_throughput == pytest.approx(80) and found.latency_ms == pytest.approx(15)


def test_mps_runs_small_clients_side_by_side():
    # Two clients that use half of the SMs and a quarter of the bandwidth each: no slowdown; four get half the SMs that they can use.
    assert cost(A100, "mps", 2, BUSY).slowdown == pytest.approx(1)
    assert cost(A100, "mps", 4, BUSY).slowdown == pytest.approx(2)
    found = cost(A100, "mps", 4, BUSY)
    assert found.memory_mib == 81920 // 4 and found.memory_isolated and not found.fault_isolated and "25 %" in found.detail
    # Bandwidth: four that want 0.6 each, at a quarter of the SMs, which is all that they can use.
    assert cost(A100, "mps", 4, Client(10, 0, 0.25, 0.6)).slowdown == pytest.approx(2.4, rel=1e-3)


def test_mig_does_not_care_about_the_others():
    quiet, loud = (cost(A100, "mig", 7, neighbour=n) for n in (None, NOISY))
    assert quiet.latency_ms == loud.latency_ms and quiet.memory_isolated and quiet.fault_isolated and quiet.memory_mib == 9856
    # 14 of 108 SMs for a client that can use 0.4 of them.
    assert quiet.slowdown == pytest.approx(0.4 * 108 / 14)
    assert cost(A100, "mig", 2, profile="2g.20gb").slowdown == pytest.approx(0.4 * 108 / 28)
    for way in ("time-slicing", "mps"):
        quiet, loud = (cost(A100, way, 4, Client(10, 10, 0.2, 0.5), neighbour=n) for n in (None, NOISY))
        assert loud.latency_ms > quiet.latency_ms


def test_isolation_as_documented():
    table = {c.way: (c.memory_isolated, c.fault_isolated) for c in compare(A100, 4)}
    assert table == {"whole": (True, True), "time-slicing": (False, False), "mps": (True, False), "mig": (True, True)}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(model_of.WAYS), st.integers(1, 7), st.floats(0.1, 100), st.floats(0, 100), st.floats(0.01, 1), st.floats(0.01, 1))
def test_laws(way, clients, service, think, sms, bandwidth):
    client = Client(service, think, sms, bandwidth)
    found = cost(A100, way, clients, client)
    assert found.latency_ms >= service * (1 - 1e-9)
    # Interactive response time law: clients = throughput x (latency + think).
    assert found.total_throughput * (found.latency_ms + think) / 1000 == pytest.approx(clients, rel=1e-6)
    if clients > 1:
        assert found.slowdown >= cost(A100, way, clients - 1, client).slowdown * (1 - 1e-6)
    if way == "time-slicing":
        assert found.total_throughput <= 1000 / service * (1 + 1e-9)


@pytest.mark.parametrize(("arguments", "field"), [
    (("slicing", 2), "way"), (("mps", 0), "clients"), (("mps", 49), "clients"), (("mig", 8), "clients"), (("mig", True), "clients"),
    (("mig", 2, None, None, None, "9g.1gb"), "profile"), (("mig", 3, None, None, None, "3g.40gb"), "clients"),
    (("mps", 2, Client(service_ms=0)), "client.service_ms"), (("mps", 2, Client(sms=1.5)), "client.sms"),
    (("mps", 2, None, Client(bandwidth=float("nan"))), "neighbour.bandwidth"), (("mps", 2, Client(think_ms="1")), "client.think_ms"),
    (("mps", 2, None, None, Settings(slice_ms=0)), "settings.slice_ms")])
def test_bad_input_names_its_field(arguments, field):
    with pytest.raises(BadInput) as caught:
        cost(A100, *arguments)
    assert caught.value.field == field
    assert isinstance(compare(catalog.model("T4"), 2)[3], BadInput)


def smallest(model, demand):
    """Breadth first over what remains, one GPU a step: slow and plain."""
    layouts = {tuple(sorted(Counter(layout).items())) for layout in mig.layouts(model, maximal=False, media=True)}
    seen = frontier = {tuple(sorted(demand.items()))}
    steps = 0
    while not any(all(n == 0 for _, n in left) for left in frontier):
        after = set()
        for left, layout in product(frontier, layouts):
            counts = dict(layout)
            after.add(tuple((name, max(0, n - counts.get(name, 0))) for name, n in left))
        frontier, seen, steps = after - seen, seen | after, steps + 1
    return steps


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_packing_is_optimal_on_small_demands(data):
    model = catalog.model(data.draw(st.sampled_from(["A100-40", "A30"])))
    names = data.draw(st.lists(st.sampled_from(list(model.mig.profiles)), min_size=1, max_size=3, unique=True))
    demand = {name: data.draw(st.integers(0, 5)) for name in names}
    assert len(packing.fewest_gpus(model, demand)) == smallest(model, demand)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(list(A100.mig.profiles)), st.integers(0, 12)))
def test_a_packing_holds_the_demand_and_fits(demand):
    gpus = packing.fewest_gpus(A100, demand)
    assert Counter(name for gpu in gpus for name in gpu) == Counter({name: n for name, n in demand.items() if n})
    for gpu in gpus:
        assert len(mig.place(A100, gpu)) == len(gpu) > 0


@pytest.mark.parametrize(("demand", "gpus"), [
    ({}, 0), ({"1g.10gb": 7}, 1), ({"1g.10gb": 8}, 2), ({"1g.10gb": 20}, 3), ({"3g.40gb": 2, "1g.10gb": 1}, 2),
    ({"4g.40gb": 1, "3g.40gb": 1}, 1),
    ({"1g.10gb+me": 3}, 3), ({"1g.10gb.me": 1, "1g.10gb": 6}, 1), ({"7g.80gb": 2, "1g.20gb": 5}, 4),
    ({"3g.40gb": 5, "1g.10gb": 7, "2g.20gb": 4}, 5)])
def test_packings_worked_out_by_hand(demand, gpus):
    assert len(packing.fewest_gpus(A100, demand)) == gpus


@pytest.mark.parametrize(("model", "demand", "field"), [
    ("A100-80", {"1g.5gb": 1}, "demand"), ("A100-80", {"1g.10gb": -1}, "demand.1g.10gb"), ("A100-80", {"1g.10gb": 2.0}, "demand.1g.10gb"),
    ("A100-80", {"1g.10gb": 201}, "demand"), ("T4", {"1g.10gb": 1}, "GPU model")])
def test_packing_refuses(model, demand, field):
    with pytest.raises(BadInput) as caught:
        packing.fewest_gpus(catalog.model(model), demand)
    assert caught.value.field == field
