"""Colours, patterns and letter codes: whatever a colour says is said by a pattern and a letter as well.

Colours are the palette of Okabe and Ito (Color Universal Design, 2008), which people with the common kinds of colour blindness can
tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchlab.snapshot import ClusterSnapshot, Unit, natural

# Name, fill, ink that reads on it (contrast at least 4.5 to 1).
PALETTE = (
    ("sky blue", "#56B4E9", "#000000"),
    ("orange", "#E69F00", "#000000"),
    ("bluish green", "#009E73", "#000000"),
    ("reddish purple", "#CC79A7", "#000000"),
    ("yellow", "#F0E442", "#000000"),
    ("blue", "#0072B2", "#ffffff"),
    ("vermillion", "#D55E00", "#000000"),
)
# Plotly's name, the same as an SVG path in a tile of 6 x 6, and in words.
PATTERNS = (
    ("", "", "plain"),
    ("/", "M-1,7L7,-1M-1,1L1,-1M5,7L7,5", "rising lines"),
    ("\\", "M-1,-1L7,7M-1,5L1,7M5,-1L7,1", "falling lines"),
    ("-", "M0,3L6,3", "level lines"),
    ("|", "M3,0L3,6", "upright lines"),
    ("x", "M-1,7L7,-1M-1,-1L7,7", "crossed lines"),
    (".", "M2,3a1,1 0 1,0 2,0a1,1 0 1,0 -2,0", "dots"),
)


@dataclass(frozen=True, slots=True)
class Style:
    """How one unit (or group) looks everywhere: letter code, fill and ink, pattern as an index into PATTERNS."""

    code: str
    fill: str
    ink: str
    pattern: int
    words: str


class Styles:
    """Gives each unit, or each group of units (`by` = "unit" or "group"), a look that it keeps for as long as this object lives.

    Codes are never given twice, so that a chart of the past stays readable. Units are served in the order in which they are met,
    those of one snapshot by age and name.
    """

    def __init__(self, by: str = "unit") -> None:
        self.by = by
        self._given: dict[str, Style] = {}
        # What slots.py and clustermap.py made last for each node, so that they need not make it again.
        self.kept_cells: dict[str, tuple] = {}
        self.kept_shapes: dict[tuple[str, str], tuple] = {}
        self._seats: dict[tuple[str, str], list[str]] = {}

    def key(self, unit: Unit) -> str:
        return unit.group if self.by == "group" and unit.group else unit.id

    def meet(self, snapshot: ClusterSnapshot) -> Styles:
        """Gives looks to all units of a snapshot that have none yet."""
        fresh = [u for u in snapshot.units if self.key(u) not in self._given]
        for unit in sorted(fresh, key=lambda u: (u.submitted or 0, natural(u.namespace), natural(u.name))):
            self.of(self.key(unit))
        return self

    def of(self, key: str) -> Style:
        if key not in self._given:
            self._given[key] = look(len(self._given))
        return self._given[key]

    def seats(self, node: str, resource: str, used: list[str], room: int) -> list[str]:
        """Device ids of a node in the order in which they were first met; those not `used` are forgotten when there is no `room`."""
        seats = self._seats.setdefault((node, resource), [])
        seats += [device for device in used if device not in seats]
        if len(seats) > max(room, len(used)):
            seats[:] = used
        return seats


def look(number: int) -> Style:
    """The look with a number from 0: colours first, then patterns; A to Z, then AA, AB …"""
    name, fill, ink = PALETTE[number % len(PALETTE)]
    pattern = number // len(PALETTE) % len(PATTERNS)
    return Style(_letters(number), fill, ink, pattern, f"{name}, {PATTERNS[pattern][2]}")


def _letters(number: int) -> str:
    text = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        text = chr(65 + digit) + text
    return text

