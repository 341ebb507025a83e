"""What a check answers, and text that shows itself in a notebook as it is.

    passed              done
    not yet             something is missing; the message says what
    wrong               something is there and not right; the message says why
    environment broken  the check could not look; the remedy says what to run
"""

from __future__ import annotations

import html
from dataclasses import dataclass

PASSED, NOT_YET, WRONG, BROKEN = "passed", "not yet", "wrong", "environment broken"
# Okabe-Ito colours; each status has its own sign and word, so that colour is never the only difference.
_LOOK = {PASSED: ("✔", "#009E73"), NOT_YET: ("…", "#0072B2"), WRONG: ("✘", "#D55E00"), BROKEN: ("!", "#CC79A7")}


class Text(str):
    """A string whose display is itself, without quotes."""

    def _repr_pretty_(self, printer, cycle) -> None:
        printer.text(str(self))


@dataclass(frozen=True)
class Answer:
    """`status` is one of the four above. `settling`: it may change by itself within seconds, so it is worth asking again."""

    status: str
    message: str
    remedy: str = ""
    exercise: str = ""
    settling: bool = False

    @property
    def passed(self) -> bool:
        return self.status == PASSED

    def __str__(self) -> str:
        name = f"{self.exercise}: " if self.exercise else ""
        return f"{_LOOK[self.status][0]} {name}{self.status}. {self.message}" + (f"\n  → {self.remedy}" if self.remedy else "")

    def _repr_pretty_(self, printer, cycle) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        sign, colour = _LOOK[self.status]
        name = f"{html.escape(self.exercise)}: " if self.exercise else ""
        remedy = f"<br>→ {html.escape(self.remedy)}" if self.remedy else ""
        return (f'<div role="status" style="border-left:6px solid {colour};padding:4px 10px"><b>{sign} {name}{self.status}.</b> '
                f"{html.escape(self.message)}{remedy}</div>")


def passed(message: str) -> Answer:
    """The exercise is done; `message` says what was seen."""
    return Answer(PASSED, message)


def not_yet(message: str, remedy: str = "", settling: bool = False) -> Answer:
    """Something is missing; `message` says what."""
    return Answer(NOT_YET, message, remedy, settling=settling)


def wrong(message: str, remedy: str = "") -> Answer:
    """What is there is not what was asked for; `message` says why."""
    return Answer(WRONG, message, remedy)


def broken(message: str, remedy: str) -> Answer:
    """The environment keeps the check from looking; `remedy` is what to run."""
    return Answer(BROKEN, message, remedy)
