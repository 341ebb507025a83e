"""An array by four sliders and a button, submitted to the real slurmctld, and which GPU each task got when."""

from __future__ import annotations

import threading
import time
from collections import Counter
from html import escape

import ipywidgets

from orchlab import views
from orchlab.course import Lab, Text
from orchlab.errors import OrchlabError, TimeLimitReached
from orchlab.slurm import feed
from orchlab.slurm.model import Job

NAME = "widget"
SECONDS = 120


def array(lab: Lab, tasks: int = 6, limit: int = 2, gpus: int = 4, minutes: int = 2) -> Array:
    """`tasks` tasks with `gpus` H100s each, at most `limit` at once (0: no limit), `minutes` of simulated run time."""
    return Array(lab, tasks, limit, gpus, minutes)


class Array:
    """Each press of the button cancels the last array and submits the next. `text` says the same as the pictures."""

    def __init__(self, lab: Lab, tasks: int, limit: int, gpus: int, minutes: int) -> None:
        self.lab, self.job = lab, 0
        style, layout = {"description_width": "180px"}, ipywidgets.Layout(width="550px")

        def slider(value: int, low: int, high: int, words: str) -> ipywidgets.IntSlider:
            return ipywidgets.IntSlider(value, low, high, description=words, continuous_update=False, style=style, layout=layout)

        self.tasks, self.limit = slider(tasks, 1, 32, "Tasks"), slider(limit, 0, 32, "At once (0: no limit)")
        self.gpus, self.minutes = slider(gpus, 1, 8, "H100s per task"), slider(minutes, 1, 10, "Run time (simulated min)")
        self.button = ipywidgets.Button(description="Submit", button_style="primary")
        self.status = ipywidgets.HTML("")
        self._asked, self._working = threading.Condition(), False
        begun = int(time.time())
        self.feed = lab.slurm_feed(f"lab-{lab.number}-array", only=lambda job: job.name == NAME and (job.submitted or 0) >= begun)
        self.view = views.Live(self.feed, parts=("devices", "pending"), key=f"lab-{lab.number}-array", title=f"Environment {lab.env.name}")
        self.widget = ipywidgets.VBox([self.tasks, self.limit, self.gpus, self.minutes, self.button, self.status, self.view.widget])
        self._leave = self.feed.on_change(self._say)
        self.button.on_click(lambda button: self.submit())
        self.submit()

    @property
    def script(self) -> Text:
        """The batch script that the sliders stand for."""
        at_once = f"%{self.limit.value}" if self.limit.value else ""
        return Text(f"#!/bin/bash\n#SBATCH --job-name={NAME} --output=/dev/null\n#SBATCH --array=0-{self.tasks.value - 1}{at_once}\n"
                    f"#SBATCH --gres=gpu:h100:{self.gpus.value}\norchlab-sleep {self.minutes.value}m\n")

    def submit(self) -> None:
        """Asks for what the sliders say now; returns at once. A press while the last one is being served is left out."""
        with self._asked:
            if not self._working:
                self._working = True
                threading.Thread(target=self._work, args=(self.script,), name="lab13-array", daemon=True).start()

    def settled(self, seconds: float = SECONDS) -> Text:
        """Waits until every task has ended; returns the summary. Raises TimeLimitReached."""
        deadline = time.monotonic() + seconds
        with self._asked:
            if not self._asked.wait_for(lambda: not self._working, seconds):
                raise TimeLimitReached(f"the array was not submitted within {seconds:g} s", "%slurm squeue tells more")
        self.lab.slurm.wait(self.job, seconds=max(0.0, deadline - time.monotonic()))
        return self.text

    @property
    def text(self) -> Text:
        """How many tasks run, wait and why, have ended."""
        return summary([job for job in self.lab.slurm.jobs(self.job)] if self.job else [])

    def close(self) -> None:
        """Stops following the cluster. The jobs stay."""
        self._leave()
        self.view.close()
        self.feed.stop()

    def _repr_mimebundle_(self, **options: object) -> dict:
        words = "four sliders, a button and a Gantt chart by GPU; .text says the same in words"
        return self.widget._repr_mimebundle_(**options) | {"text/plain": words}

    def _work(self, script: str) -> None:
        try:
            if self.job and not all(job.ended_for_good for job in self.lab.slurm.jobs(self.job)):
                self.lab.slurm.cancel(self.job)
            self.job = self.lab.slurm.submit(script, chdir=str(self.lab.work))
            self._say()
        except OrchlabError as error:
            self._show(str(error))
        finally:
            with self._asked:
                self._working = False
                self._asked.notify_all()

    def _say(self) -> None:
        try:
            self._show(self.text)
        except OrchlabError as error:
            self._show(str(error))

    def _show(self, words: str) -> None:
        self.status.value = f'<div role="status">{escape(words)}</div>'


def summary(jobs: list[Job]) -> Text:
    """For example "6 tasks x 4 GPUs: 2 running, 4 waiting (JobArrayTaskLimit)"."""
    counts: Counter[str] = Counter()
    for job in jobs:
        number = len(feed.tasks(job.array_tasks)) if job.array_tasks else 1
        if job.state == "PENDING":
            counts[f"waiting ({job.reason if job.reason not in ('', 'None') else 'not looked at yet'})"] += number
        else:
            counts[job.state.lower()] += number
    if not counts:
        return Text("nothing was submitted yet")
    return Text(f"{counts.total()} tasks x {max(job.gpus for job in jobs)} GPUs: " + ", ".join(f"{number} {state}" for state,
                                                                                               number in sorted(counts.items())))
