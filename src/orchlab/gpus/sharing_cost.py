"""What sharing a GPU costs its clients: a small model, not a measurement. Everything that shows its numbers has to call them modelled.

A client sends one request at a time and waits `think` between them (a closed loop). Alone on the whole GPU a request takes `service`;
the client can use the part `sms` of the SMs and needs the part `bandwidth` of the memory bandwidth to be that fast. With less of either
it slows down in proportion to the scarcer one (the roofline idea, Williams et al., CACM 2009).

- Whole GPU: the client has it for itself.
- Time-slicing: the GPU runs one client's kernels at a time and switches after each slice (NVIDIA GPU Operator documentation, "Time-Slicing
  GPUs"). That is a processor-sharing server with a fixed number of customers, for which mean value analysis is exact (Reiser and
  Lavenberg, JACM 1980). A switch adds its cost to each slice.
- MPS: kernels of all clients run together, each client limited to 100/k per cent of the threads and 1/k of the memory (defaults of
  NVIDIA's device plugin; NVIDIA MPS documentation). Bandwidth is shared by those that run at the same time: a fixed point over how many do.
- MIG: SMs, memory and bandwidth are an instance's own (NVIDIA MIG User Guide), so the others do not matter.

Left out: caches, copy engines, PCIe, clocks and power limits. The slice and the cost of a switch are assumptions, which is why they are
parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchlab.errors import BadInput
from orchlab.gpus import mig, sharing
from orchlab.gpus.catalog import GpuModel, MigProfile

Way = Literal["whole", "time-slicing", "mps", "mig"]
WAYS: tuple[Way, ...] = ("whole", "time-slicing", "mps", "mig")


@dataclass(frozen=True)
class Client:
    """One client. `service_ms`: a request alone on the whole GPU; `think_ms`: pause between requests (0: always busy); `sms`, `bandwidth`:
    parts of the GPU that it can use, above 0 to 1."""

    service_ms: float = 10.0
    think_ms: float = 10.0
    sms: float = 0.4
    bandwidth: float = 0.3


# A job bound by memory beside a service: never pauses, and a third of the SMs are enough to draw most of the bandwidth.
NOISY = Client(service_ms=40.0, think_ms=0.0, sms=0.33, bandwidth=0.9)


@dataclass(frozen=True)
class Settings:
    """`slice_ms` is how long a client runs before the GPU switches, `switch_ms` what a switch costs."""

    slice_ms: float = 2.0
    switch_ms: float = 0.1


@dataclass(frozen=True)
class Cost:
    """What one client among `clients` gets. Throughput in requests a second, latency in ms, `slowdown` against being alone, memory in MiB.
    `memory_isolated`: it cannot take the others' memory; `fault_isolated`: a fatal fault of another one leaves it running."""

    way: Way
    clients: int
    gpus: int
    latency_ms: float
    throughput: float
    total_throughput: float
    slowdown: float
    memory_mib: int
    memory_isolated: bool
    fault_isolated: bool
    detail: str


def cost(model: GpuModel, way: Way, clients: int, client: Client | None = None, neighbour: Client | None = None,
         settings: Settings | None = None, profile: str | None = None) -> Cost:
    """The cost for one `client` beside `clients` - 1 `neighbour`s (like itself by default) that share GPUs of this model in this way.

    MIG: an instance of `profile` each, by default the biggest of which one GPU holds `clients`. "whole" gives each a GPU. Raises BadInput:
    a number out of range, a GPU that cannot be shared this way, more clients than it takes.
    """
    client, settings = client or Client(), settings or Settings()
    neighbour = neighbour or client
    _check(way, clients, client, neighbour, settings)
    alone = client.service_ms
    if way == "whole":
        latency, other, memory, detail = alone, neighbour.service_ms, model.memory_mib, "a GPU each"
    elif way == "time-slicing":
        latency, other = _time_slicing(clients, client, neighbour, settings)
        memory, detail = model.memory_mib, "all of the memory is open to all; the first to take it has it"
    elif way == "mps":
        if clients > sharing.max_clients(model):
            raise BadInput("clients", clients, f"MPS takes at most {sharing.max_clients(model)} clients on {model.name}", "ask for fewer")
        limits = sharing.mps_limits(model, clients)
        latency, other = _mps(clients, client, neighbour, limits.thread_percentage / 100)
        memory, detail = limits.memory_mib, f"{limits.thread_percentage} % of the threads each"
    else:
        chosen = mig.profile(model, profile, "profile") if profile else biggest_profile(model, clients)
        if clients > chosen.max_count:
            raise BadInput("clients", clients, f"one {model.name} holds at most {chosen.max_count} x {chosen.name}",
                           "choose a smaller profile")
        part = (chosen.sms / model.sms, chosen.size / model.mig.memory_slices)
        latency, other = _alone(client, *part), _alone(neighbour, *part)
        memory, detail = chosen.memory_mib, f"an instance {chosen.name} each"
    own = 1000 / (latency + client.think_ms)
    total = own + (clients - 1) * 1000 / (other + neighbour.think_ms)
    return Cost(way, clients, clients if way == "whole" else 1, latency, own, total, latency / alone, memory,
                way in ("whole", "mps", "mig"), way in ("whole", "mig"), detail)


def biggest_profile(model: GpuModel, clients: int) -> MigProfile:
    """The profile with the most SMs, then memory, of which one GPU holds `clients` instances. Raises BadInput when none does."""
    fitting = [p for p in mig.capable(model).mig.profiles.values() if not p.media and p.max_count >= clients]
    if not fitting:
        raise BadInput("clients", clients, f"one {model.name} holds at most {model.mig.compute_slices} instances", "ask for fewer")
    return max(fitting, key=lambda p: (p.sms, p.memory_mib))


def _alone(client: Client, sms: float, bandwidth: float) -> float:
    return client.service_ms * max(1.0, client.sms / sms, client.bandwidth / bandwidth)


def _time_slicing(clients: int, client: Client, neighbour: Client, settings: Settings) -> tuple[float, float]:
    """Latencies of the client and of a neighbour, by mean value analysis over the populations (0 or 1 client, 0 … n neighbours)."""
    stretch = 1.0 if clients == 1 else 1 + settings.switch_ms / settings.slice_ms
    own, other = client.service_ms * stretch, neighbour.service_ms * stretch
    # Mean number of requests at the GPU for each population.
    queue: dict[tuple[int, int], float] = {(0, 0): 0.0}
    latency = neighbour_latency = 0.0
    for others in range(clients):
        for mine in (0, 1):
            if (mine, others) == (0, 0):
                continue
            waiting = 0.0
            if mine:
                latency = own * (1 + queue[0, others])
                waiting += latency / (latency + client.think_ms)
            if others:
                neighbour_latency = other * (1 + queue[mine, others - 1])
                waiting += others * neighbour_latency / (neighbour_latency + neighbour.think_ms)
            queue[mine, others] = waiting
    return latency, neighbour_latency if clients > 1 else other


def _mps(clients: int, client: Client, neighbour: Client, share: float) -> tuple[float, float]:
    """Latencies of the client and of a neighbour. What matters is how much bandwidth the running ones want together."""
    base = [_alone(client, share, 1.0), _alone(neighbour, share, 1.0)]
    # Bandwidth that each takes while it runs at the speed that its threads allow.
    want = [client.bandwidth * client.service_ms / base[0], neighbour.bandwidth * neighbour.service_ms / base[1]]
    latency = list(base)
    for _ in range(200):
        running = [latency[0] / (latency[0] + client.think_ms), latency[1] / (latency[1] + neighbour.think_ms)]
        mine = want[0] + (clients - 1) * running[1] * want[1]
        others = want[1] + (running[0] * want[0] + (clients - 2) * running[1] * want[1] if clients > 1 else 0.0)
        latency = [(old + alone * max(1.0, wanted)) / 2 for old, alone, wanted in zip(latency, base, (mine, others), strict=True)]
    return latency[0], latency[1]


def _check(way: str, clients: object, client: Client, neighbour: Client, settings: Settings) -> None:
    if way not in WAYS:
        raise BadInput("way", way, "is not a way of sharing", f"use one of {', '.join(WAYS)}")
    if not isinstance(clients, int) or isinstance(clients, bool) or not 1 <= clients <= 256:
        raise BadInput("clients", clients, "is not a whole number from 1 to 256", "change it")
    for name, one in (("client", client), ("neighbour", neighbour)):
        _number(f"{name}.service_ms", one.service_ms, 0, 1e6, above=True)
        _number(f"{name}.think_ms", one.think_ms, 0, 1e6)
        _number(f"{name}.sms", one.sms, 0, 1, above=True)
        _number(f"{name}.bandwidth", one.bandwidth, 0, 1, above=True)
    _number("settings.slice_ms", settings.slice_ms, 0, 1e3, above=True)
    _number("settings.switch_ms", settings.switch_ms, 0, 1e3)


def _number(field: str, value: object, low: float, high: float, above: bool = False) -> None:
    right = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high
    if not right or (above and value == low):
        least = f"above {low:g} up" if above else f"from {low:g}"
        raise BadInput(field, value, f"is not a number {least} to {high:g}", "change it")


def compare(model: GpuModel, clients: int, client: Client | None = None, neighbour: Client | None = None,
            settings: Settings | None = None, ways: Sequence[Way] = WAYS) -> list[Cost | BadInput]:
    """cost() for every way; a way that this GPU or this number of clients does not allow gives its BadInput."""
    found: list[Cost | BadInput] = []
    for way in ways:
        try:
            found.append(cost(model, way, clients, client, neighbour, settings))
        except BadInput as refusal:
            found.append(refusal)
    return found
