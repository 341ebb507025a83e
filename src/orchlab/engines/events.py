"""What `ensure` reports while it works."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Progress:
    """One report. `engine` is a name, or several joined by ", " when one build makes them together.

    `phase`: found (ready, the last word on an engine), waiting (another orchlab has the lock), downloading, building, or note (an
    explanation, such as why there will be no download). `fraction` is 0 to 1, None where nobody can know.
    """

    engine: str
    phase: str
    fraction: float | None
    text: str


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """The report of a caller that wants none."""
