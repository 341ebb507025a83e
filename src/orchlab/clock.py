"""The simulated time scale.

One factor for a whole environment says how many simulated seconds pass in a real one. It scales only what the simulation declares
(how long a pod runs, how late it starts); time limits, back-offs and grace periods are the engines' own and stay real.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from orchlab.errors import BadInput

DEFAULT_FACTOR = 60.0
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TERM = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
# One simulated year: longer than any job, and far from overflowing what an engine stores in nanoseconds.
LONGEST = 366 * 86400.0


def parse(text: str | int | float, field: str = "duration") -> float:
    """Seconds in a duration like "90s", "2h30m", "1d" or "500ms" (Go's syntax with days added; a bare number is seconds).
    Raises BadInput, naming `field`, for anything else, for negative times and for more than a year."""
    remedy = 'write it like "90s", "15m" or "2h30m"'
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise BadInput(field, text, "is not a duration", remedy)
    written = str(text).strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", written):
        seconds = float(written)
    else:
        terms = _TERM.findall(written)
        if not terms or "".join(number + unit for number, unit in terms) != written:
            raise BadInput(field, text, "is not a duration", remedy)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in terms)
    if seconds > LONGEST:
        raise BadInput(field, text, "is longer than a year", remedy)
    return seconds


def format(seconds: float) -> str:
    """A duration in the same syntax, without empty parts: 9000 → "2h30m", 0.25 → "250ms", 0 → "0s"."""
    if seconds < 0:
        raise BadInput("duration", seconds, "is negative")
    milliseconds = round(seconds * 1000)
    if milliseconds == 0:
        return "0s"
    parts = []
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        amount, milliseconds = divmod(milliseconds, size)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts)


@dataclass(frozen=True)
class Clock:
    """`factor` simulated seconds pass in one real second. Raises BadInput unless it is a number above 0 and at most 86400."""

    factor: float = DEFAULT_FACTOR

    def __post_init__(self) -> None:
        good = isinstance(self.factor, (int, float)) and not isinstance(self.factor, bool) and math.isfinite(self.factor)
        if not good or not 0 < self.factor <= 86400:
            raise BadInput("clock", self.factor, "is not a number above 0 and at most 86400",
                           "give the simulated seconds that pass in one real second, e.g. 60")

    def real_seconds(self, simulated_seconds: float) -> float:
        """How long that takes in real seconds."""
        return simulated_seconds / self.factor

    def simulated_seconds(self, real_seconds: float) -> float:
        """How much simulated time passes in that many real seconds."""
        return real_seconds * self.factor

    def parse(self, text: str | int | float, field: str = "duration") -> float:
        """Simulated seconds in a written duration; see `parse`."""
        return parse(text, field)

    def describe(self) -> str:
        """One sentence for a screen, e.g. "1 real second is 1m of simulated time"."""
        return f"1 real second is {format(self.factor)} of simulated time"
