"""A stream of submissions against two teams' quotas: sliders, the real API server and scheduler, and what it cost."""

from __future__ import annotations

import threading
import time
from html import escape
from types import ModuleType

import ipywidgets
import yaml

from orchlab import views
from orchlab.course import Lab, StatusLine, Text, pods
from orchlab.errors import ApiError, OrchlabError, TimeLimitReached
from orchlab.views import accounts
from orchlab.views.labels import Labels
from orchlab.views.text import table

QUOTA = "requests.nvidia.com/gpu"
EVICTS, WAITS = "production", "patient"
SECONDS = 40
LABELS = Labels("quotas, and what they let in")


def stream(lab: Lab, vision_quota: int = 6, speech_quota: int = 4, vision_jobs: int = 4, speech_jobs: int = 2) -> Stream:
    """Two teams on eight A100s: vision submits research, then speech production, two GPUs each."""
    return Stream(lab, vision_quota, speech_quota, vision_jobs, speech_jobs)


class Stream:
    """Each press of the button begins anew: everything of the teams goes, quotas are set, the pods are submitted. `text` says the same as
    the pictures."""

    def __init__(self, lab: Lab, vision_quota: int, speech_quota: int, vision_jobs: int, speech_jobs: int) -> None:
        self.lab = lab
        self.parts: ModuleType = lab.load("parts")
        style, layout = {"description_width": "300px"}, ipywidgets.Layout(width="640px")

        def slider(value: int, high: int, words: str) -> ipywidgets.IntSlider:
            return ipywidgets.IntSlider(value, 0, high, description=words, continuous_update=False, style=style, layout=layout)

        self.vision_quota = slider(vision_quota, 8, "Quota of vision (GPUs)")
        self.speech_quota = slider(speech_quota, 8, "Quota of speech (GPUs)")
        self.vision_jobs = slider(vision_jobs, 8, "Vision: research pods, 2 GPUs each")
        self.speech_jobs = slider(speech_jobs, 8, "Speech: production pods, 2 GPUs each")
        self.policy = ipywidgets.Dropdown(options=[("may evict", EVICTS), ("waits (preemptionPolicy: Never)", WAITS)], value=EVICTS,
                                          description="Production", style=style, layout=layout)
        self.checkpoint = slider(0, 30, "Checkpoint every … sim. minutes (0: never)")
        self.button = ipywidgets.Button(description="Submit", button_style="primary")
        self.said, self.refused, self._state, self._working = "nothing was submitted yet", {}, threading.Condition(), False
        self.ledger = lab.load("ledger").follow(lab)
        self.ledger.again()
        self.status = StatusLine(lambda: self.said or str(self.text).splitlines()[0])
        own = (("Used against hard", lambda *_: self._quota_html(), lambda *_: self._quota_text()),
               ("What it cost", lambda s, t, now: accounts.account_svg(self._account(now), lab.env.clock, prefix="l08"),
                lambda s, t, now: accounts.account_text(self._account(now), lab.env.clock)))
        self.view = views.Live(self.ledger, parts=own, key=f"lab-{lab.number}-stream")
        self._leave = self.ledger.on_change(self.status.update)
        self.checkpoint.observe(lambda change: self.view.update(), "value")
        self.button.on_click(lambda button: self.submit())
        controls = (self.vision_quota, self.speech_quota, self.vision_jobs, self.speech_jobs, self.policy, self.checkpoint, self.button)
        self.widget = ipywidgets.VBox([*controls, self.status.widget, self.view.widget])
        self.submit()

    @property
    def manifest(self) -> Text:
        """One of vision's pods, as YAML."""
        return Text(yaml.safe_dump(self._pod("vision", 0), sort_keys=False).rstrip())

    def submit(self) -> None:
        """Begins anew with what the controls say; returns at once. A press while the last one is being served is left out."""
        with self._state:
            if self._working:
                return
            self._working = True
        self._tell("submitting …")
        asked = (self.vision_quota.value, self.speech_quota.value, self.vision_jobs.value, self.speech_jobs.value)
        threading.Thread(target=self._work, args=asked, name="lab08-stream", daemon=True).start()

    def settled(self, seconds: float = SECONDS) -> Text:
        """Waits until all was submitted and every pod runs, waits or was evicted; returns the summary. Raises TimeLimitReached."""
        deadline = time.monotonic() + seconds
        with self._state:
            if not self._state.wait_for(lambda: not self._working, seconds):
                raise TimeLimitReached(f"the pods were not submitted within {seconds:g} s", "%kubectl get pods -A tells more")
        self.lab.place.until(lambda: not self._moving(), max(0.0, deadline - time.monotonic()), "not every pod was settled",
                             seen=lambda: ", ".join(self._moving()))
        return self.text

    @property
    def text(self) -> Text:
        """Per team how many pods were refused, run, wait, were evicted; the first refusal in the API server's words."""
        lines = []
        for team in ("vision", "speech"):
            mine = [one for one in self.ledger.records() if one.namespace == f"lab-08-{team}"]
            gone = sum(one.team == f"lab-08-{team}" for one in self._account(time.time()).evictions)
            refused = len(self.refused.get(team, []))
            running = sum(one.ended is None and bool(one.holds) for one in mine)
            waiting = sum(one.ended is None and not one.holds for one in mine)
            lines.append(f"{team}: {len(mine) + refused} submitted, {refused} refused, {running} on a node, {waiting} waiting, {gone} evicted, "
                         f"{len(mine) - running - waiting - gone} done")
        words = [f"  {team}: {said[0]}" for team, said in sorted(self.refused.items()) if said]
        return Text("\n".join(["; ".join(lines), *words]))

    def bill(self) -> Text:
        """The account of what was submitted last, in words."""
        return Text(accounts.account_text(self._account(time.time()), self.lab.env.clock))

    def close(self) -> None:
        """Stops following the cluster. The pods stay."""
        self._leave()
        self.view.close()
        self.ledger.stop()

    # -- submitting

    def _work(self, vision_quota: int, speech_quota: int, vision_jobs: int, speech_jobs: int) -> None:
        try:
            self.parts.fresh(self.lab)
            self.refused = {"vision": [], "speech": []}
            self.ledger.again()
            for name, value, policy in (("production", 100000, ""), ("research", 1000, ""), ("patient", 50000, "Never")):
                self.lab.client.apply({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
                                       "value": value} | ({"preemptionPolicy": policy} if policy else {}), self.lab.manager)
            for team, hard in (("vision", vision_quota), ("speech", speech_quota)):
                self.lab.client.apply({"apiVersion": "v1", "kind": "ResourceQuota",
                                       "metadata": {"name": "gpus", "namespace": f"lab-08-{team}"}, "spec": {"hard": {QUOTA: str(hard)}}}, self.lab.manager)
                self.parts.used(self.lab, team, until=f"of {hard}")
            for team, count in (("vision", vision_jobs), ("speech", speech_jobs)):
                for number in range(count):
                    self._create(team, number)
                # Research is to run for a while before production comes.
                self.lab.place.until(lambda: not self._moving(), SECONDS, "not every pod was settled")
                time.sleep(1 if team == "vision" else 0)
            self.said = ""
        except OrchlabError as error:
            self.said = str(error)
        with self._state:
            self._working = False
            self._state.notify_all()
        self._tell(self.said)

    def _create(self, team: str, number: int) -> None:
        try:
            self.lab.client.create(f"/api/v1/namespaces/lab-08-{team}/pods", self._pod(team, number))
        except ApiError as error:
            if error.status != 403:
                raise
            self.refused[team].append(error.args[0])

    def _pod(self, team: str, number: int) -> dict:
        priority, run_for = ("research", "1h") if team == "vision" else (self.policy.value, "40m")
        return self.parts.manifest(f"{team}-{number}", 2, priority, f"lab-08-{team}", run_for=run_for)

    def _moving(self) -> list[str]:
        """Pods that have not come to rest: unseen by the scheduler, on their way out, or waiting for a place that is being cleared."""
        return [pod["metadata"]["name"] for team in self.parts.TEAMS for pod in self.lab.place.list("pod", namespace=team)
                if not pods.settled(pod) or pod["metadata"].get("deletionTimestamp") or (pod.get("status") or {}).get("nominatedNodeName")
                and not pod["spec"].get("nodeName")]

    def _tell(self, words: str) -> None:
        self.said = words
        self.status.update()
        self.view.update()

    # -- drawing

    def _account(self, now: float):
        return self.ledger.account(self.checkpoint.value or None, now)

    def _rows(self) -> list[tuple[str, int, int]]:
        rows = []
        for team in self.parts.TEAMS:
            status = self.ledger.quotas.get((team, "gpus"), {})
            if QUOTA in status.get("hard", {}):
                rows.append((team, int(status.get("used", {}).get(QUOTA, 0)), int(status["hard"][QUOTA])))
        return rows

    def _quota_text(self) -> str:
        rows = [[team, f"{used} of {hard}", f"{len(self.refused.get(team.removeprefix('lab-08-'), []))}"]
                for team, used, hard in self._rows()]
        return f"{LABELS.text()}\n\n{table(['team', QUOTA, 'refused'], rows) if rows else 'no quota yet'}"

    def _quota_html(self) -> str:
        rows = []
        for team, used, hard in self._rows():
            full = 100 * min(used, hard) / hard if hard else 100
            words = f"{team}: {used} of {hard} used"
            bar = (f'<div style="border:1px solid currentColor;width:200px;height:14px"><div style="width:{full:.0f}%;height:100%;'
                   f'background:repeating-linear-gradient(45deg,#0072B2 0 6px,#56B4E9 6px 12px)"></div></div>')
            refused = len(self.refused.get(team.removeprefix("lab-08-"), []))
            rows.append(f'<tr><th scope="row">{escape(team)}</th><td tabindex="-1" data-k="{escape(team)}"><title>{escape(words)}</title>'
                        f"{bar}</td><td>{used} of {hard}</td><td>{refused}</td></tr>")
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("team", "used", QUOTA, "refused"))
        return (f'<div class="ol-head"><b>Used against hard</b> {LABELS.html()}</div><table class="ol-table"><thead><tr>{heads}</tr></thead>'
                f'<tbody>{"".join(rows) or "<tr><td colspan=4>no quota yet</td></tr>"}</tbody></table>')

    def _repr_mimebundle_(self, **options: object) -> dict:
        words = "six controls, a button, quotas and bars of GPU-hours; .text says the same in words"
        return self.widget._repr_mimebundle_(**options) | {"text/plain": words}
