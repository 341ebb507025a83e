"""Runs a lab's checks. A check is a function in the lab's checks.py: it takes the Lab and returns an Answer.

Before it runs, the environment has to be in order: a check must not call an answer wrong when a daemon is down.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from orchlab.course import progress
from orchlab.course.answers import NOT_YET, Answer, broken, not_yet
from orchlab.course.place import Place
from orchlab.errors import OrchlabError
from orchlab.slurm import daemons

if TYPE_CHECKING:
    from orchlab.course.lab import Lab

# How long a check waits for what is on its way (s). Real kubelets start and end real containers.
SETTLING_SECONDS, KIND_SECONDS = 25, 45
EVERY = 0.3


def run(lab: Lab, exercise: str) -> Answer:
    """The answer for one exercise. Raises BadInput for a name that there is not; everything else becomes an answer."""
    wanted = lab.folder.exercise(exercise)
    if trouble := examine(lab):
        return replace(trouble, exercise=exercise)
    for name in wanted.after:
        if not progress.of(lab.folder, name)["passed"]:
            earlier = _ask(lab, name)
            if not earlier.passed:
                return replace(
                    not_yet(f"Exercise {name!r} comes first, and its answer is: {earlier.status}.", f'lab.check("{name}") says more'),
                    exercise=exercise,
                )
    deadline = time.monotonic() + (KIND_SECONDS if lab.env.record.kubernetes == "kind" else SETTLING_SECONDS)
    while True:
        answer = _ask(lab, exercise)
        if answer.status != NOT_YET or not answer.settling or time.monotonic() > deadline:
            return answer
        time.sleep(EVERY)


def examine(lab: Lab) -> Answer | None:
    """What keeps any check from looking, or None."""
    name = lab.home
    again = "" if name == "default" else f" --name {name}"
    try:
        place = Place(name, lab.folder.namespace)
        # What a fault holds down is part of the lesson.
        held = daemons.held_states(place.env)
        for state in place.env.health():
            if not state.healthy and state.name not in held:
                return broken(f"{state.name} of environment {name} is {state.state.lower()}: {state.detail or 'it does not run'}",
                              f"orchlab up{again} heals it")
        if "kubernetes" not in lab.file.backends:
            return None
        namespace = place.get_path(f"/api/v1/namespaces/{lab.folder.namespace}")
    except OrchlabError as error:
        return broken(error.args[0], error.remedy or f"orchlab up{again}")
    if namespace is None or namespace["metadata"].get("deletionTimestamp"):
        gone = "is gone" if namespace is None else "is being deleted"
        return broken(f"Namespace {lab.folder.namespace} {gone}.", f"orchlab reset {lab.number}{again}")
    return None


def _ask(lab: Lab, exercise: str) -> Answer:
    wanted = lab.folder.exercise(exercise)
    at_home = lab.place
    # Checks look at the lab's own environment, whichever one %kubectl speaks to at the moment.
    lab.place = Place(lab.home, lab.folder.namespace)
    try:
        answer = getattr(lab.folder.module("checks"), wanted.function)(lab)
    except OrchlabError as error:
        answer = broken(error.args[0], error.remedy or f"orchlab reset {lab.number}")
    except Exception as error:  # a fault of ours, which a learner must not take for theirs
        answer = broken(
            f"The check itself failed: {type(error).__name__}: {error}", f"orchlab reset {lab.number}; if it comes again, please report it"
        )
    finally:
        lab.place = at_home
    return replace(answer, exercise=exercise)
