"""The label that every view carries: what in it is real, what simulated, what modelled."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from orchlab.snapshot import ClusterSnapshot


@dataclass(frozen=True, slots=True)
class Labels:
    """Each of the three in a few words, "" if there is none of it in the view."""

    real: str = ""
    simulated: str = ""
    modelled: str = ""

    def parts(self) -> list[tuple[str, str]]:
        pairs = (("real", self.real), ("simulated", self.simulated), ("modelled", self.modelled))
        return [(name, words) for name, words in pairs if words]

    def text(self) -> str:
        """One line, e.g. "real: placement · simulated: nodes and GPUs"."""
        return " · ".join(f"{name}: {words}" for name, words in self.parts())

    def html(self) -> str:
        return " ".join(f'<span class="ol-badge ol-{name}"><b>{name}</b> {escape(words)}</span>' for name, words in self.parts())


def of_map(snapshot: ClusterSnapshot) -> Labels:
    """What a view of nodes is made of, by what the nodes say of themselves."""
    made_up = {node.simulated for node in snapshot.nodes}
    if "all" in made_up:
        return Labels("placement" if made_up == {"all"} else "placement, other nodes", "nodes and GPUs")
    return Labels("placement and nodes", "GPUs" if "gpus" in made_up else "")


def of_words(snapshot: ClusterSnapshot) -> Labels:
    """What a list of reasons or events is made of: the words are the orchestrator's own."""
    return Labels("reasons and events, in the orchestrator's own words", of_map(snapshot).simulated)


def of_times(snapshot: ClusterSnapshot | None) -> Labels:
    """What a chart over time is made of: on simulated nodes the run times are simulated too."""
    simulated = of_map(snapshot).simulated if snapshot else ""
    if simulated == "nodes and GPUs":
        return Labels("waiting times and placement", "run times, nodes and GPUs")
    return Labels("waiting times, placement and run times", simulated)
