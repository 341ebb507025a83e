"""The board of fault tickets: what users wrote, how long it took to name the cause, how long until it was mended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from html import escape

import ipywidgets

from orchlab import views
from orchlab.course import Lab, StatusLine, Text
from orchlab.errors import BadInput, OrchlabError, TimeLimitReached
from orchlab.views import Labels

LABELS = Labels("the faults, all times, and every word of API server, scheduler and controllers", "nodes, GPUs, run times; the users")
# Sign, word and colour of a ticket's state: the colour only repeats what the other two say.
STATES = {"new": ("·", "#767676"), "open": ("!", "#D55E00"), "diagnosed": ("?", "#56B4E9"), "mended": ("✔", "#009E73"),
          "closed": ("–", "#767676")}
HEADS = ("ticket", "state", "opened", "diagnosed", "mended", "wrong words")
SECONDS = 60


def tickets(lab: Lab) -> Board:
    """The board of the lab's environment."""
    return Board(lab)


class Board:
    """`open` causes a fault and tells its symptom only; `diagnose` judges a cause word; `text` is the board in words. Buttons do the same,
    in threads, so that the browser is not held up; `settled` waits for them."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.desk = lab, lab.load("desk")
        self.faults, self.causes = self.desk.faults(lab), self.desk.causes(lab)
        self.said = "no ticket is open"
        self._one = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.status = StatusLine(lambda: self.said)
        layout, style = ipywidgets.Layout(width="260px"), {"description_width": "60px"}
        self.ticket = ipywidgets.Dropdown(options=list(self.faults), description="Ticket", layout=layout, style=style)
        self.cause = ipywidgets.Dropdown(options=list(self.causes), description="Cause", layout=layout, style=style)
        self.opener = ipywidgets.Button(description="Open", tooltip="Causes the ticket's fault in the cluster")
        self.judge = ipywidgets.Button(description="That is it", tooltip="Names the cause of the open ticket")
        self.opener.on_click(lambda _: self._start(self.open, self.ticket.value))
        self.judge.on_click(lambda _: self._start(self.diagnose, self.cause.value))
        # The chart of waits makes the view redraw every second, and with it the seconds since a ticket was opened.
        self.view = views.Live(lab.client, parts=(("Tickets", lambda *_: self._html(), lambda *_: str(self.text)), "gantt"),
                               key=f"lab-{lab.number}-tickets", namespace=lab.namespace)
        self.widget = ipywidgets.VBox([ipywidgets.HBox([self.ticket, self.opener]), ipywidgets.HBox([self.cause, self.judge]),
                                       self.status.widget, self.view.widget])
        self.status.update()

    # -- what a learner does

    def open(self, ticket: str) -> Text:
        """Takes back the fault of the ticket before, causes this one's, and says what the user wrote. Raises BadInput,
        TimeLimitReached."""
        with self._one:
            self._say(f"{ticket}: is being opened")
            found = self.desk.open_ticket(self.lab, ticket)
            return self._say(f"ticket {ticket}: {found.symptom}")

    def diagnose(self, cause: str) -> Text:
        """Names the cause of the open ticket; the answer says what one would see if it were that. Raises BadInput."""
        with self._one:
            return self._say(self.desk.diagnose(self.lab, cause))

    def mended(self, seconds: float = SECONDS) -> Text:
        """Waits until the open ticket is mended; says how long that took. Raises TimeLimitReached."""
        now = self.desk.opened(self.lab)
        if now is None:
            raise BadInput("ticket", "", "no ticket is open", "board.open(TICKET) opens one")
        self.lab.place.until(lambda: self.desk.look(self.lab).mended, seconds, f"{now.id} was not mended",
                             seen=lambda: self.desk.words(self.lab, now.id))
        now = self.desk.opened(self.lab)
        return self._say(f"{now.id}: mended after {now.mended - now.opened:.0f} s")

    def settled(self, seconds: float = SECONDS) -> Text:
        """Waits for what buttons have begun; returns the last words. Raises TimeLimitReached."""
        for thread in list(self._threads):
            thread.join(seconds)
            if thread.is_alive():
                raise TimeLimitReached(f"the board was not done within {seconds:g} s", "%kubectl get pods tells more")
        return Text(self.said)

    @property
    def text(self) -> Text:
        """The board as text: one line a ticket, and the symptom of the open one."""
        rows = [HEADS, *self._rows()]
        widths = [max(len(row[place]) for row in rows) for place in range(len(HEADS))]
        table = ["  ".join(f"{word:<{width}}" for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        now = self.desk.opened(self.lab)
        symptom = [f"open is {now.id}: {self.faults[now.id].symptom}"] if now else []
        return Text("\n".join([*table, *symptom, LABELS.text()]))

    # -- how it works

    def _start(self, task: Callable[[str], Text], word: str) -> None:
        def work() -> None:
            try:
                task(word)
            except OrchlabError as error:
                self._say(str(error))

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=work, name="lab03-board", daemon=True))
        self._threads[-1].start()

    def _say(self, words: str) -> Text:
        self.said = str(words)
        self.status.update()
        self.view.update()
        return Text(words)

    def _rows(self) -> list[tuple[str, ...]]:
        """A row for each ticket, as in HEADS."""
        self.desk.look(self.lab)
        known, rows = self.desk.tickets(self.lab), []
        now = datetime.now().timestamp()
        for name in self.faults:
            one = known.get(name)
            if one is None:
                rows.append((name, "new", "-", "-", "-", "-"))
                continue
            def after(moment: float | None, begin: float = one.opened) -> str:
                return f"after {moment - begin:.0f} s" if moment else "-"

            ago = f"{now - one.opened:.0f} s ago" if one.is_open else "before"
            rows.append((name, _state(one), ago, after(one.diagnosed), after(one.mended), str(one.guesses)))
        return rows

    def _html(self) -> str:
        heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
        rows = []
        for name, state, *cells in self._rows():
            sign, colour = STATES[state]
            symptom = self.faults[name].symptom if state != "new" else "not opened yet"
            title = f"<title>{escape(f'{name}, {state}: {symptom}')}</title>"
            shown = "".join(f"<td>{cell}</td>" for cell in cells)
            rows.append(f'<tr><th scope="row" tabindex="-1" data-k="{name}">{title}{name}</th>'
                        f'<td style="border-left:4px solid {colour}">{sign} {state}</td>{shown}</tr>')
        now = self.desk.opened(self.lab)
        symptom = f"<p><b>{now.id}</b> {escape(self.faults[now.id].symptom)}</p>" if now else ""
        return (f'<div class="ol-head"><b>Tickets</b> {LABELS.html()}</div>{symptom}<table class="ol-table"><thead><tr>{heads}</tr></thead>'
                f'<tbody>{"".join(rows)}</tbody></table>')

    def close(self) -> None:
        """Stops following the cluster. Tickets and pods stay."""
        self.view.close()

    def _repr_mimebundle_(self, **options: object) -> dict:
        words = "two menus, two buttons, a table of tickets and a chart of waits; .text says the same in words"
        return self.widget._repr_mimebundle_(**options) | {"text/plain": words}


def _state(ticket) -> str:
    if ticket.mended:
        return "mended"
    if not ticket.is_open:
        return "closed"
    return "diagnosed" if ticket.diagnosed else "open"
