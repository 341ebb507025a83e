"""Parts for pictures of a cluster. A lab's own widget.py puts them together.

Live, in a notebook (a Client makes the view own its feed; running the cell again closes the earlier view with the same key):

    view = Live(environment.client(), parts=("map", "pending"), key="lab01", title="Lab 01", namespace="lab01")
    view                      # as the cell's last value, or view.widget inside a layout of your own
    print(view.text)          # the text twin
    view.close()              # stops every thread of the view

Still, from a snapshot (`feed.snapshot()`) or a timeline (`feed.timeline`) of an orchlab.kube.feed.Feed. Each picture has a text twin:

    map_svg, map_text                         nodes by zone and rack, GPUs by who holds them
    pending_html, pending_text                what doesn't run yet, and why, in the orchestrator's words
    events_html, events_text                  the event feed
    gantt_svg, gantt, gantt_text              what each unit did and when (SVG; plotly, to zoom into; text)
    devices_svg, gantt_devices, devices_text  who held each GPU and when
    occupancy_svg, occupancy, occupancy_text  GPUs held on each node over time
    account_svg, account_text                 waits, evictions and GPU-hours by team and priority (of an orchlab.accounting.Account)

`Styles` keeps a unit's colour, pattern and letter the same in all of them; `Labels` says what is real, simulated and modelled (by
default it is told from the nodes). Plotly and widgets are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from orchlab.views.accounts import account_svg, account_text
from orchlab.views.charts import devices_svg, gantt_svg, occupancy_svg
from orchlab.views.clustermap import map_svg
from orchlab.views.labels import Labels
from orchlab.views.style import Styles
from orchlab.views.tables import events_html, pending_html
from orchlab.views.text import devices_text, events_text, gantt_text, map_text, occupancy_text, pending_text

if TYPE_CHECKING:
    from orchlab.views.live import Live, Panel, close_all
    from orchlab.views.plots import gantt, gantt_devices, occupancy

_LATER = {name: "orchlab.views.plots" for name in ("gantt", "gantt_devices", "occupancy")}
_LATER |= {name: "orchlab.views.live" for name in ("Live", "Panel", "close_all")}

__all__ = ["account_svg", "account_text", "Labels", "Live", "Panel", "Styles", "close_all", "devices_svg", "devices_text", "events_html", "events_text", "gantt",
           "gantt_devices", "gantt_svg", "gantt_text", "map_svg", "map_text", "occupancy", "occupancy_svg", "occupancy_text",
           "pending_html", "pending_text"]


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
