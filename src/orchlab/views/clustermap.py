"""The cluster map: nodes as cards grouped by zone and rack, GPUs as cells with the colour, pattern and letter of who holds them."""

from __future__ import annotations

from itertools import groupby

from orchlab.snapshot import ClusterSnapshot, Node, Unit
from orchlab.views import cards, svg
from orchlab.views import labels as made
from orchlab.views.labels import Labels
from orchlab.views.slots import Cell, slots
from orchlab.views.style import Styles
from orchlab.views.svg import badges, rect, text
from orchlab.views.text import by_place, unit_name

WIDTH, MARGIN, GAP, RACK_PAD, RACK_HEAD, ZONE_HEAD = 960, 14, 8, 8, 18, 24
DENSE_ABOVE = 64
LEGEND = 24


def map_svg(snapshot: ClusterSnapshot, title: str = "Cluster map", styles: Styles | None = None, labels: Labels | None = None,
            prefix: str | None = None) -> str:
    """The map as one SVG element, 960 px wide or less; the same snapshot always gives the same text.

    Above 64 nodes each node is a small tile. `styles` keeps looks stable from one picture to the next (by default they are given
    afresh, by pod, or by job in the small-tile form); `labels` overrides what is said to be real and simulated; `prefix` keeps the
    ids of two pictures on a page apart.
    """
    dense = len(snapshot.nodes) > DENSE_ABOVE
    styles = (styles or Styles("group" if dense else "unit")).meet(snapshot)
    prefix = prefix or svg.ids(title)
    picture = _Picture(snapshot, styles, prefix, dense)
    y = picture.head(title, labels or made.of_map(snapshot))
    for _, nodes in groupby(by_place(snapshot), key=lambda n: n.zone):
        y = picture.zone(list(nodes), y)
    if not snapshot.nodes:
        picture.out.append(text(MARGIN, y + 14, "no nodes"))
        y += 26
    y = picture.waiting(y)
    y = picture.legend(y)
    return svg.picture(title, WIDTH, y, prefix, picture.out)


class _Picture:
    """Collects shapes from top to bottom; each part takes the y at which it begins and returns where it ends."""

    def __init__(self, snapshot: ClusterSnapshot, styles: Styles, prefix: str, dense: bool) -> None:
        self.snapshot, self.styles, self.prefix, self.dense = snapshot, styles, prefix, dense
        self.out: list[str] = []
        self.cells: dict[str, list[Cell]] = slots(snapshot, styles)
        self.pods: dict[str, list[Unit]] = {node.name: [] for node in snapshot.nodes}
        for unit in snapshot.placed():
            for node in unit.nodes:
                if node in self.pods:
                    self.pods[node].append(unit)

    def head(self, title: str, labels: Labels) -> float:
        held = sum(1 for cells in self.cells.values() for c in cells if c.unit)
        total = sum(len(cells) for cells in self.cells.values())
        nodes = len(self.snapshot.nodes)
        self.out.append(text(MARGIN, 27, title, "h", WIDTH - 2 * MARGIN, 17))
        self.out.append(text(MARGIN, 46, f"{nodes} node{'' if nodes == 1 else 's'} · {held} of {total} GPUs held · "
                                         f"{len(self.snapshot.waiting())} waiting", "s"))
        self.out += badges(labels, WIDTH - MARGIN, 34)
        if not self.snapshot.trouble:
            return 62
        self.out.append(text(MARGIN, 66, f"may be out of date: {self.snapshot.trouble}", "n", WIDTH - 2 * MARGIN))
        return 78

    def zone(self, nodes: list[Node], y: float) -> float:
        place, top = len(self.out), y
        words = _titled("zone", nodes[0].zone)
        self.out.append(text(MARGIN + 10, y + 17, words, "z"))
        y += ZONE_HEAD
        x, low = MARGIN + GAP, y
        for _, members in groupby(nodes, key=lambda n: n.rack):
            rack = list(members)
            width, height = self._measure(rack)
            if x > MARGIN + GAP and x + width > WIDTH - MARGIN - GAP:
                x, y = MARGIN + GAP, low + GAP
            self._rack(rack, x, y)
            low = max(low, y + height)
            x += width + GAP
        self.out.insert(place, rect(MARGIN, top, WIDTH - 2 * MARGIN, low + GAP - top, "zone", 8))
        return low + GAP + 10

    def waiting(self, y: float) -> float:
        units = self.snapshot.waiting()
        if not units:
            return y
        self.out.append(text(MARGIN, y + 14, f"Waiting ({len(units)})", "z"))
        chips = [(u, f"{unit_name(u)} wants {u.devices_wanted}") for u in units[:12]]
        return self._chips(chips, y + 22, len(units) - 12, empty=True)

    def legend(self, y: float) -> float:
        seen: dict[str, tuple[Unit, str]] = {}
        held: dict[str, int] = {}
        for unit in self.snapshot.placed():
            if unit.devices_wanted:
                key = self.styles.key(unit)
                seen.setdefault(key, (unit, unit_name(unit) if key == unit.id else unit.group))
                held[key] = held.get(key, 0) + unit.devices_wanted
        def rank(key: str) -> tuple:
            code = self.styles.of(key).code
            return (-held[key] if self.dense else 0, len(code), code)

        order = sorted(seen, key=rank)
        if seen:
            self.out.append(text(MARGIN, y + 14, "Holding GPUs", "z"))
            chips = [(seen[k][0], f"{seen[k][1]} · {held[k]}") for k in order[:LEGEND]]
            y = self._chips(chips, y + 22, len(order) - LEGEND)
        cells = [c for cells in self.cells.values() for c in cells]
        signs = ["empty cell: free", *(["×: not allocatable"] if any(not c.usable for c in cells) else []),
                 *(["dashed cell: which device is not known"] if any(not c.known for c in cells) else []),
                 *(["faint: on a node, not running yet"] if any(c.unit and c.unit.stage == "starting" for c in cells) else [])]
        if cells:
            self.out.append(text(MARGIN, y + 14, " · ".join(signs), "s"))
            y += 22
        return y + 4

    def _chips(self, chips: list[tuple[Unit, str]], y: float, more: int, empty: bool = False) -> float:
        columns, step = 4, (WIDTH - 2 * MARGIN) / 4
        for number, (unit, words) in enumerate(chips):
            row, column = divmod(number, columns)
            x, top = MARGIN + column * step, y + row * 28
            look = self.styles.of(self.styles.key(unit))
            sign = cards.hollow(look, x, top) if empty else cards.swatch(look, x, top, self.prefix)
            self.out.append(f"<g>{sign}{text(x + 30, top + 15, words, '', step - 40)}</g>")
        y += -(-len(chips) // columns) * 28
        if more > 0:
            self.out.append(text(MARGIN, y + 10, f"and {more} more: see the text", "s"))
            y += 18
        return y + 6

    def _measure(self, rack: list[Node]) -> tuple[float, float]:
        columns, width, heights = self._grid(rack)
        gap = 4 if self.dense else GAP
        return columns * (width + gap) - gap + 2 * RACK_PAD, sum(heights) + (len(heights) - 1) * gap + RACK_HEAD + RACK_PAD

    def _grid(self, rack: list[Node]) -> tuple[int, float, list[float]]:
        """Columns, width of one node, height of each row."""
        counts = [len(self.cells[node.name]) for node in rack]
        room = WIDTH - 2 * MARGIN - 2 * GAP - 2 * RACK_PAD
        if self.dense:
            width = cards.tile_size(0)[0]
            # About three times as wide as high, then as much wider as racks of that width leave room for beside each other.
            beside = max(1, round(room / (max(4, (1.7 * len(rack)) ** 0.5) * (width + 4))))
            columns = min(len(rack), int(((room + 2 * RACK_PAD + GAP) / beside - GAP - 2 * RACK_PAD + 4) // (width + 4)))
            sizes = [cards.tile_size(count)[1] for count in counts]
        else:
            width, columns = cards.CARD_WIDTH, min(len(rack), int((room + GAP) // (cards.CARD_WIDTH + GAP)))
            sizes = [cards.card_height(count) for count in counts]
        return columns, width, [max(sizes[i:i + columns]) for i in range(0, len(sizes), columns)]

    def _rack(self, rack: list[Node], x: float, y: float) -> None:
        columns, width, heights = self._grid(rack)
        wide, high = self._measure(rack)
        gap = 4 if self.dense else GAP
        self.out.append(rect(x, y, wide, high, "rack", 6))
        name = _titled("rack", rack[0].rack)
        words = f"{name} · {len(rack)}" if self.dense else name
        self.out.append(text(x + RACK_PAD, y + 13, words, "s", wide - 2 * RACK_PAD, 10.5))
        y += RACK_HEAD
        for number, node in enumerate(rack):
            row, column = divmod(number, columns)
            left, top = x + RACK_PAD + column * (width + gap), y + sum(heights[:row]) + row * gap
            self.out.append(self._node(node, left, top, heights[row]))

    def _node(self, node: Node, left: float, top: float, height: float) -> str:
        cells, place = self.cells[node.name], (left, top, height, self.dense)
        kept, where, shapes = self.styles.kept_shapes.get((self.prefix, node.name), (None, None, ""))
        if kept is not cells or where != place:
            args = (node, cells, self.pods[node.name], self.styles, left, top)
            shapes = cards.tile(*args, self.prefix) if self.dense else cards.card(*args, height, self.prefix)
            self.styles.kept_shapes[self.prefix, node.name] = (cells, place, shapes)
        return shapes


def _titled(kind: str, name: str) -> str:
    """"zone a", but "zone-a" as it is."""
    return f"no {kind}" if not name else name if name.startswith(kind) else f"{kind} {name}"
