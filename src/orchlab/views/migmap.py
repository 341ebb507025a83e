"""The slice map of a GPU: what is placed on its memory slices, and where each profile still fits. As SVG and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from orchlab.gpus import mig
from orchlab.gpus.catalog import GpuModel, MigProfile
from orchlab.gpus.mig import Placement
from orchlab.views import svg
from orchlab.views.labels import Labels
from orchlab.views.style import PALETTE, look
from orchlab.views.svg import num, rect
from orchlab.views.text import table

WIDTH, MARGIN, NAMES, ROW, TOP = 860, 14, 250, 34, 84
LABELS = Labels(simulated="the GPU and its instances")


@dataclass(frozen=True)
class Place:
    """One place of a profile: `state` is free, placed or blocked; `why` says what is in the way."""

    placement: Placement
    state: str
    why: str = ""

    @property
    def key(self) -> str:
        return f"{self.placement.profile}@{self.placement.start}"

    @property
    def words(self) -> str:
        where = f"{self.placement.profile} at {slices(self.placement)}"
        return f"{where}: {self.why}" if self.state == "blocked" else f"{where}: {'placed' if self.state == 'placed' else 'fits'}"


def slices(placement: Placement) -> str:
    """For example "slice 6" or "slices 0-3"."""
    first, last = placement.start, placement.slices[-1]
    return f"slice {first}" if first == last else f"slices {first}-{last}"


def places(model: GpuModel, held: Sequence[Placement]) -> dict[str, list[Place]]:
    """Every place of every profile beside what is `held`, by profile. Raises BadInput for a GPU without MIG."""
    profiles = mig.capable(model).mig.profiles.values()
    return {profile.name: [_place(profile, start, held) for start in profile.starts] for profile in profiles}


def _place(profile: MigProfile, start: int, held: Sequence[Placement]) -> Place:
    wanted = Placement(start, profile.size, profile.name)
    if wanted in held:
        return Place(wanted, "placed")
    inside = sorted(p for p in held if p.mask & wanted.mask)
    if inside:
        return Place(wanted, "blocked", ", ".join(f"{slices(p)} {'is' if p.size == 1 else 'are'} held by {p.profile}" for p in inside))
    media = next((p for p in held if p.profile.endswith("+me")), None)
    if profile.media and media:
        return Place(wanted, "blocked", f"a GPU has one set of media extensions, and {media.profile} has it")
    return Place(wanted, "free")


def used(model: GpuModel, held: Sequence[Placement]) -> str:
    """How much of the GPU the instances take: compute slices, memory slices and SMs."""
    chosen = [mig.profile(model, p.profile) for p in held]
    return (f"compute slices {sum(p.slices for p in chosen)} of {model.mig.compute_slices}, memory slices {sum(p.size for p in chosen)} of "
            f"{model.mig.memory_slices}, SMs {sum(p.sms for p in chosen)} of {model.sms}")


def mig_svg(model: GpuModel, held: Sequence[Placement], title: str, labels: Labels = LABELS, prefix: str | None = None) -> str:
    """The slice map as one SVG element, 860 px wide. Every place is a button with the key PROFILE@START."""
    prefix = prefix or svg.ids(title)
    total = mig.capable(model).mig.memory_slices
    wide = (WIDTH - 2 * MARGIN - NAMES) / total
    left = MARGIN + NAMES
    looks = {placement: number for number, placement in enumerate(sorted(held))}
    out = [svg.text(MARGIN, 27, title, "h", WIDTH - 2 * MARGIN, 17), svg.text(MARGIN, 46, used(model, held), "s"),
           *svg.badges(labels, WIDTH - MARGIN, 34)]
    out.append(svg.text(MARGIN, TOP - 14, "memory slice", "s"))
    for number in range(total):
        out.append(f'<text class="s" text-anchor="middle" x="{num(left + (number + 0.5) * wide)}" y="{TOP - 14}">{number}</text>')
    out.append(svg.text(MARGIN, TOP + 15, "on the GPU", "n"))
    out.append(rect(left, TOP - 5, total * wide, ROW - 4, "card", 4))
    for placement in sorted(held):
        x, width = left + placement.start * wide + 2, placement.size * wide - 4
        out.append(f'<g>{_block(looks[placement], placement.profile, x, TOP - 3, width, prefix)}</g>')
    y = TOP + ROW + 12
    for name, found in places(model, held).items():
        profile = model.mig.profiles[name]
        out.append(svg.text(MARGIN, y + 12, name, "n"))
        out.append(svg.text(MARGIN + 96, y + 12, f"{profile.sms} SMs · {profile.memory_mib} MiB", "s"))
        for place in found:
            out.append(_button(place, looks, left, wide, y, prefix))
        y += ROW
    signs = "+ fits: press to place it · letter: placed, press to take it away · × does not fit: press to read why"
    out.append(svg.text(MARGIN, y + 8, signs, "s"))
    return svg.picture(title, WIDTH, y + 22, prefix, out)


def _button(place: Place, looks: dict[Placement, int], left: float, wide: float, y: float, prefix: str) -> str:
    spot = place.placement
    x, width = left + spot.start * wide + 2, spot.size * wide - 4
    pressed = "true" if place.state == "placed" else "false"
    middle = f'x="{num(x + width / 2)}" y="{num(y + 12)}"'
    if place.state == "placed":
        shape = _block(looks[spot], "", x, y - 5, width, prefix)
    elif place.state == "free":
        shape = f'{rect(x, y - 5, width, ROW - 8, "hollow", 4)}<text class="hollowt" {middle}>+</text>'
    else:
        box = f'x="{num(x)}" y="{num(y - 5)}" width="{num(width)}" height="{ROW - 8}" rx="4"'
        shape = f'<rect class="free" {box}/><rect fill="url(#{prefix}p1)" fill-opacity=".45" {box}/><text class="mark" {middle}>×</text>'
    # A shape without fill would not be hit by a click inside it.
    hit = f'<rect x="{num(x)}" y="{num(y - 5)}" width="{num(width)}" height="{ROW - 8}" fill="transparent"/>'
    return (f'<g role="button" aria-pressed="{pressed}" aria-label="{escape(place.words)}" tabindex="-1" data-k="{escape(place.key)}">'
            f"<title>{escape(place.words)}</title>{shape}{hit}</g>")


def _block(number: int, name: str, x: float, y: float, width: float, prefix: str) -> str:
    style = look(number)
    fill = next(i for i, (_, colour, _) in enumerate(PALETTE) if colour == style.fill)
    box = f'x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{ROW - 8}" rx="4"'
    hatch = f'<rect fill="url(#{prefix}p{style.pattern})" {box}/>' if style.pattern else ""
    words = f"{style.code} {name}".strip()
    if svg.width_of(words, 12, bold=True) > width:
        words = style.code
    return (f'<rect class="bar f{fill}" {box}/>{hatch}'
            f'<text class="code i{fill}" x="{num(x + width / 2)}" y="{num(y + 17)}">{escape(words)}</text>')


def mig_text(model: GpuModel, held: Sequence[Placement], title: str = "") -> str:
    """The text twin: what is placed, how much that uses, and a row per profile with its places."""
    rows = []
    for name, found in places(model, held).items():
        profile = model.mig.profiles[name]
        at = [", ".join(slices(place.placement).split()[1] for place in found if place.state == state) or "-"
              for state in ("placed", "free", "blocked")]
        rows.append([name, str(profile.sms), str(profile.memory_mib), *at])
    head = f"{title}: {mig.text(held)}" if title else mig.text(held)
    return "\n".join([head, used(model, held), "", table(["profile", "SMs", "MiB", "placed at", "fits at", "does not fit at"], rows)])
