"""Optional engines in a notebook: the progress of adding one as lines, for a build takes minutes."""

from __future__ import annotations

import time

from orchlab.course.answers import Text
from orchlab.environment import Environment
from orchlab.kube import addons

EVERY = 20.0  # seconds between two lines about the same phase of a build


class Lines:
    """What `addons.add` reports, as lines where they are printed. Of an engine that is there nothing is said."""

    def __init__(self) -> None:
        self._phase, self._when = "", 0.0

    def __call__(self, text: str) -> None:
        """Steps of seconds each: not worth a line in a notebook."""

    def engine(self, event) -> None:
        if event.phase == "found" or (event.phase == self._phase and event.phase != "note" and time.monotonic() - self._when < EVERY):
            return
        self._phase, self._when = event.phase, time.monotonic()
        percent = "" if event.fraction is None else f" {event.fraction:.0%}"
        print(f"{event.engine}: {event.phase}{percent} {event.text}", flush=True)


def add(env: Environment, name: str) -> Text:
    """Adds or heals it; says what runs now."""
    env = addons.add(env, name, Lines())
    return Text(f"{name} {addons.versions(env)[name]} runs beside the default scheduler, until `lab.remove_engine(\"{name}\")` or a reset")


def remove(env: Environment, name: str) -> Text:
    found = name in addons.present(env)
    addons.remove(env, name, Lines())
    return Text(f"{name} is removed with all its objects" if found else f"{name} was not there")
