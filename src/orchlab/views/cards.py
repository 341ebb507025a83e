"""One node as a card (name, state, taints, a big cell per GPU) or, where there are many, as a tile (small cells only)."""

from __future__ import annotations

from collections import Counter
from html import escape

from orchlab.snapshot import Node, Unit
from orchlab.views.slots import Cell
from orchlab.views.style import PALETTE, Style, Styles
from orchlab.views.svg import num, rect, text, width_of
from orchlab.views.text import plain, state_words, unit_name

CARD_WIDTH, PAD, CELL, STEP, PER_ROW = 206, 8, 22, 24, 8
TILE_CELL, TILE_STEP, TILE_COLUMNS = 7, 8, 4
FILLS = {fill: index for index, (_, fill, _) in enumerate(PALETTE)}


def card_height(cells: int) -> float:
    return 66 + max(1, -(-cells // PER_ROW)) * STEP


def tile_size(cells: int) -> tuple[float, float]:
    return TILE_COLUMNS * TILE_STEP + 3, max(2, -(-cells // TILE_COLUMNS)) * TILE_STEP + 3


def card(node: Node, cells: list[Cell], pods: list[Unit], styles: Styles, x: float, y: float, height: float, prefix: str) -> str:
    """A node as a card with its corner at (x, y)."""
    inner = CARD_WIDTH - 2 * PAD
    tags = _tags(node)
    out = [_group(node, cells, pods, styles), rect(x, y, CARD_WIDTH, height, "card", 6)]
    room = inner - sum(width_of(tag, 9.5, True) + 14 for tag in tags)
    out.append(text(x + PAD, y + 18, node.name, "n", room))
    right = x + CARD_WIDTH - PAD
    for tag in reversed(tags):
        wide = width_of(tag, 9.5, True) + 10
        out.append(rect(right - wide, y + 7, wide, 15, "tag", 3))
        out.append(text(right - wide + 5, y + 18, tag, "tagt"))
        right -= wide + 4
    out.append(text(x + PAD, y + 33, node.product or ("GPUs of unknown model" if cells else "no GPU"), "s", inner - 44, 10.5))
    if pods:
        count = f"{len(pods)} {pods[0].kind.lower()}{'' if len(pods) == 1 else 's'}"
        out.append(text(x + CARD_WIDTH - PAD - width_of(count, 10.5), y + 33, count, "s"))
    for place, cell in enumerate(cells):
        row, column = divmod(place, PER_ROW)
        out.append(_cell(node, place, cell, styles, x + PAD + column * STEP, y + 41 + row * STEP, prefix))
    if node.taints:
        # Of one its key and effect, of several the first one's key: the tooltip and the text have all of it.
        key, _, effect = node.taints[0].rpartition(":")
        more = effect if len(node.taints) == 1 else f"+{len(node.taints) - 1}"
        out.append(text(x + PAD, y + height - 9, f"taint {key.partition('=')[0]} {more}", "s", inner, 10.5))
    out.append("</g>")
    return "".join(out)


def tile(node: Node, cells: list[Cell], pods: list[Unit], styles: Styles, x: float, y: float, prefix: str) -> str:
    """A node as a tile with its corner at (x, y); cells of the same look are one path."""
    width, height = tile_size(len(cells))
    out = [_group(node, cells, pods, styles), f'<path class="card" d="M{num(x)},{num(y)}h{num(width)}v{num(height)}h-{num(width)}z"/>']
    looks: dict[Style | str, list[str]] = {}
    for place, cell in enumerate(cells):
        row, column = divmod(place, TILE_COLUMNS)
        left, top = x + 2 + column * TILE_STEP, y + 2 + row * TILE_STEP
        look = styles.of(styles.key(cell.unit)) if cell.unit else "free" if cell.usable else "off"
        looks.setdefault(look, []).append(f"M{num(left)},{num(top)}h{TILE_CELL}v{TILE_CELL}h-{TILE_CELL}z" if look != "off" else
                                          f"M{num(left + 1)},{num(top + 1)}l5,5m-5,0l5,-5")
    for look, shapes in looks.items():
        path = "".join(shapes)
        if isinstance(look, str):
            out.append(f'<path class="{look}" d="{path}"/>')
            continue
        out.append(f'<path class="f{FILLS[look.fill]}" d="{path}"/>')
        if look.pattern:
            out.append(f'<path fill="url(#{prefix}p{look.pattern})" d="{path}"/>')
        if len(looks) == 1:
            # The whole node is one unit's: there is room for its code.
            at = f'x="{num(x + width / 2)}" y="{num(y + height / 2 + 3.5)}"'
            out.append(f'<text class="code m i{FILLS[look.fill]}" {at}>{look.code}</text>')
    out.append("</g>")
    return "".join(out)


def describe(node: Node, cells: list[Cell], pods: list[Unit], styles: Styles) -> str:
    """What a node's tooltip and its name for screen readers say."""
    words = [node.name, state_words(node), *([f"taints {', '.join(node.taints)}"] if node.taints else [])]
    if cells:
        words.append(f"{sum(1 for c in cells if c.unit)} of {len(cells)} GPUs held")
        lost = sum(1 for c in cells if not c.usable)
        words += [f"{lost} not allocatable"] if lost else []
    else:
        words.append("no GPU")
    held = Counter(c.unit.id for c in cells if c.unit)
    words += [f"{styles.of(styles.key(u)).code} {unit_name(u)} {held[u.id]}" for u in pods if u.id in held]
    return plain("; ".join(words))


def swatch(look: Style, x: float, y: float, prefix: str, pale: bool = False) -> str:
    """A cell with its letter code, as in a card."""
    fill = FILLS[look.fill]
    out = [rect(x, y, CELL, CELL, f"f{fill} soon" if pale else f"f{fill}", 3)]
    if look.pattern:
        out.append(f'<rect x="{num(x)}" y="{num(y)}" width="{CELL}" height="{CELL}" rx="3" fill="url(#{prefix}p{look.pattern})"/>')
    size = "" if len(look.code) == 1 else ' style="font-size:10px"' if len(look.code) == 2 else ' style="font-size:8px"'
    css = "hollowt" if pale else f"code i{fill}"
    out.append(f'<text class="{css}"{size} x="{num(x + CELL / 2)}" y="{num(y + CELL / 2 + 4)}">{look.code}</text>')
    return "".join(out)


def hollow(look: Style, x: float, y: float) -> str:
    """The letter code of a unit that holds nothing yet."""
    size = "" if len(look.code) == 1 else ' style="font-size:10px"' if len(look.code) == 2 else ' style="font-size:8px"'
    return (rect(x + .5, y + .5, CELL - 1, CELL - 1, "hollow", 3) +
            f'<text class="hollowt"{size} x="{num(x + CELL / 2)}" y="{num(y + CELL / 2 + 4)}">{look.code}</text>')


def empty(cell_usable: bool, x: float, y: float) -> str:
    out = rect(x + .5, y + .5, CELL - 1, CELL - 1, "free", 3)
    return out if cell_usable else out + f'<path class="off" d="M{num(x + 5)},{num(y + 5)}l12,12m-12,0l12,-12"/>'


def _cell(node: Node, place: int, cell: Cell, styles: Styles, x: float, y: float, prefix: str) -> str:
    short = cell.resource.removeprefix("nvidia.com/")
    name = f"{short} {place}" if cell.resource in node.devices else short if not cell.device else f"{short} {cell.device}"
    words = f"{node.name}, {name}: "
    if not cell.unit:
        words += "free" if cell.usable else "not allocatable"
        body = empty(cell.usable, x, y)
    else:
        look = styles.of(styles.key(cell.unit))
        body = swatch(look, x, y, prefix, pale=cell.unit.stage == "starting")
        words += f"{look.code} {unit_name(cell.unit)}" + (f" and {cell.shared_by - 1} more" if cell.shared_by > 1 else "")
        if not cell.known:
            body += rect(x + .5, y + .5, CELL - 1, CELL - 1, "guess", 3)
            words += ", which device is not known"
        if not cell.usable:
            body += f'<path class="off" d="M{num(x + 2)},{num(y + 2)}l18,18"/>'
            words += ", no longer allocatable"
    key = escape(f"{node.name}/{place}")
    return f'<g role="img" tabindex="-1" data-k="{key}"><title>{escape(plain(words))}</title>{body}</g>'


def _group(node: Node, cells: list[Cell], pods: list[Unit], styles: Styles) -> str:
    css = " bad" if not node.ready else " cord" if node.cordoned else ""
    title = escape(describe(node, cells, pods, styles))
    return f'<g role="group" class="node{css}" tabindex="-1" data-k="{escape(node.name)}"><title>{title}</title>'


def _tags(node: Node) -> list[str]:
    return [*([] if node.ready else ["NotReady"]), *(["cordoned"] if node.cordoned else [])]
