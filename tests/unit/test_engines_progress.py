"""How the work on engines is shown."""

from __future__ import annotations

import io

from rich.console import Console

from orchlab.engines import Progress, progress


def shown(terminal: bool, *events: Progress) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with progress.Renderer(console) as renderer:
        for event in events:
            renderer(event)
    return console.file.getvalue()


STEPS = [Progress("tiny, small", "building", number / 10, f"{number} of 10 packages") for number in range(11)]
READY = [Progress("tiny", "found", 1.0, "1.2.3 (build)"), Progress("small", "found", 1.0, "1.2.3 (build)")]


def test_plain_lines_come_when_something_changes():
    text = shown(False, *STEPS, *READY)
    assert text.splitlines() == ["tiny, small: building   0% 0 of 10 packages", "tiny: found 1.2.3 (build)", "small: found 1.2.3 (build)"]


def test_plain_lines_come_again_after_a_while(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_INTERVAL", 0.0)
    assert len(shown(False, *STEPS).splitlines()) == len(STEPS)


def test_an_explanation_is_never_left_out():
    notes = [Progress("tiny", "note", None, f"reason {number}") for number in range(3)]
    for terminal in (False, True):
        text = shown(terminal, *notes)
        assert all(f"reason {number}" in text for number in range(3))


def test_a_terminal_shows_a_bar_that_goes_away_when_all_is_ready():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress.Renderer(console) as renderer:
        renderer(STEPS[5])
        renderer._bars.refresh()
        assert "tiny and 1 more" in console.file.getvalue()
        assert "5 of 10 packages" in console.file.getvalue()
        for event in READY:
            renderer(event)
        assert not renderer._tasks


def test_words_in_brackets_are_text_and_not_markup():
    assert "[red]" in shown(False, Progress("tiny", "note", None, "[red] is not a colour"))
