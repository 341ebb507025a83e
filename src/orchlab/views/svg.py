"""Bits of SVG: escaping, fitted text, the style sheet and the hatch patterns that all pictures share."""

from __future__ import annotations

import hashlib
from html import escape

from orchlab.views.labels import Labels
from orchlab.views.style import PALETTE, PATTERNS
from orchlab.views.text import plain

# JupyterLab's own theme variables first, so that a picture follows its theme; elsewhere the reader's preference for light or dark.
_LIGHT = {"paper": ("--jp-layout-color1", "#ffffff"), "panel": ("--jp-layout-color2", "#f3f5f7"), "line": ("--jp-border-color1", "#9aa5b1"),
          "ink": ("--jp-ui-font-color1", "#1b2733"), "soft": ("--jp-ui-font-color2", "#52606d")}
_DARK = {"paper": "#15191e", "panel": "#20262d", "line": "#64707d", "ink": "#e8edf2", "soft": "#aeb9c4"}

FONT = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"


def variables(scope: str) -> str:
    """CSS custom properties --paper, --panel, --line, --ink, --soft for whatever matches `scope`."""
    light = ";".join(f"--{name}:var({theme},{value})" for name, (theme, value) in _LIGHT.items())
    dark = ";".join(f"--{name}:var({_LIGHT[name][0]},{value})" for name, value in _DARK.items())
    return f"{scope}{{{light}}}@media(prefers-color-scheme:dark){{{scope}{{{dark}}}}}"


def style_sheet() -> str:
    fills = "".join(f".olmap .f{i}{{fill:{fill}}}.olmap .i{i}{{fill:{ink};stroke:{fill}}}"
                    for i, (_, fill, ink) in enumerate(PALETTE))
    return (
        f"<style>{variables('.olmap')}.olmap{{{FONT};max-width:100%;height:auto}}.olmap text{{fill:var(--ink);font-size:12px}}"
        ".olmap .h{font-size:17px;font-weight:600}.olmap .z{font-size:13px;font-weight:600}.olmap .s{font-size:10.5px;fill:var(--soft)}"
        ".olmap .n{font-weight:600}.olmap .m{font-size:10px;font-weight:700}.olmap .bg{fill:var(--paper)}"
        ".olmap .zone{fill:var(--panel);stroke:none}.olmap .rack{fill:none;stroke:var(--line);stroke-dasharray:3 3}"
        ".olmap .card{fill:var(--paper);stroke:var(--line)}.olmap .bad .card{stroke:#D55E00;stroke-width:2}"
        ".olmap .cord .card{stroke-dasharray:6 3;stroke:var(--ink);stroke-width:1.5}"
        ".olmap .free{fill:none;stroke:var(--line)}.olmap .off{stroke:var(--soft);stroke-width:1.3;fill:none}"
        ".olmap .guess{fill:none;stroke:var(--ink);stroke-dasharray:2 2;stroke-width:1.4}.olmap .soon{opacity:.35}"
        ".olmap .tag{fill:var(--ink)}.olmap .tagt{fill:var(--paper);font-size:9.5px;font-weight:700}"
        ".olmap .hollow{fill:none;stroke:var(--ink);stroke-dasharray:3 2}.olmap .hollowt{text-anchor:middle;font-weight:700}"
        ".olmap .lab{fill:none;stroke:var(--soft)}"
        ".olmap .code{text-anchor:middle;font-weight:700;paint-order:stroke;stroke-width:3px;stroke-linejoin:round}"
        ".olmap .bar{stroke:var(--ink);stroke-width:.8}.olmap .waiting{fill:#BBBBBB}.olmap .starting{fill:#F0E442}"
        ".olmap .running{fill:#56B4E9}.olmap .held{fill:#56B4E9}.olmap .mark{text-anchor:middle;font-weight:700;fill:var(--ink);"
        "stroke:var(--paper);stroke-width:3px;paint-order:stroke}.olmap .grid{stroke:var(--line);stroke-opacity:.5}"
        ".olmap .gap{fill:#D55E00;fill-opacity:.2;stroke:#D55E00;stroke-dasharray:3 3}"
        ".olmap [data-k]:focus{outline:3px solid var(--jp-brand-color1,#0072B2);outline-offset:1px}"
        f"{fills}</style>")


def patterns(prefix: str) -> str:
    """Definitions of the hatch patterns; ids begin with `prefix`, since ids are shared by all pictures of a page."""
    tiles = "".join(
        f'<pattern id="{prefix}p{i}" width="6" height="6" patternUnits="userSpaceOnUse"><path d="{path}" stroke="#000" '
        f'stroke-opacity=".55" stroke-width="1" fill="{"#000" if i == 6 else "none"}" fill-opacity=".55"/></pattern>'
        for i, (_, path, _) in enumerate(PATTERNS) if path)
    return f"<defs>{tiles}</defs>"


def picture(title: str, width: float, height: float, prefix: str, shapes: list[str]) -> str:
    """The SVG element around `shapes`, with its style sheet and patterns. Each shape is one element and gets a line of its own: panel.js
    replaces only the lines that differ."""
    name = escape(plain(title))
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" class="olmap" viewBox="0 0 {num(width)} {num(height)}" width="{num(width)}" '
            f'height="{num(height)}" role="group" aria-label="{name}">')
    base = [f"<title>{name}</title>", style_sheet(), patterns(prefix), rect(0, 0, width, height, "bg", 8)]
    return "\n".join([head, *base, *shapes, "</svg>"])


def badges(labels: Labels, right: float, y: float) -> list[str]:
    """What is real, simulated and modelled, in frames that end at `right`."""
    out = []
    for name, words in reversed(labels.parts()):
        label = f"{name}: {words}"
        wide = width_of(label, 10.5) + 16
        out += [rect(right - wide, y, wide, 18, "lab", 9), text(right - wide + 8, y + 13, label, "s")]
        right -= wide + 6
    return out


def ids(title: str) -> str:
    """A prefix for ids that is always the same for a title."""
    return "ol" + hashlib.sha256(title.encode()).hexdigest()[:8]


def text(x: float, y: float, words: str, css: str = "", width: float | None = None, size: float = 12) -> str:
    """Escaped text; shortened to about `width` pixels at `size` if given (the full words then come as a tooltip)."""
    words = plain(words)
    shown = words if width is None else fit(words, width, size)
    tip = f"<title>{escape(words)}</title>" if shown != words else ""
    attribute = f' class="{css}"' if css else ""
    return f'<text x="{num(x)}" y="{num(y)}"{attribute}>{tip}{escape(shown)}</text>'


def fit(words: str, width: float, size: float = 12) -> str:
    """Words cut to about `width` pixels, counting 0.56 em a character, with an ellipsis where something was cut."""
    room = max(1, int(width / (0.56 * size)))
    return words if len(words) <= room else words[:room - 1].rstrip() + "…"


def width_of(words: str, size: float = 12, bold: bool = False) -> float:
    return len(words) * (0.68 if bold else 0.56) * size


def rect(x: float, y: float, w: float, h: float, css: str, radius: float = 0) -> str:
    round_ = f' rx="{num(radius)}"' if radius else ""
    return f'<rect class="{css}" x="{num(x)}" y="{num(y)}" width="{num(w)}" height="{num(h)}"{round_}/>'


def num(value: float) -> str:
    """A number as short as it goes, to a tenth of a pixel."""
    return f"{value:.1f}".rstrip("0").rstrip(".")
