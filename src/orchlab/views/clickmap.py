"""A picture whose parts are buttons: by click, or with the arrow keys and Enter or the space bar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anywidget
import traitlets

_here = Path(__file__).parent
# One module: what panel.js does, then what is added to it.
_SCRIPT = (_here / "panel.js").read_text().replace("export default { render };", "") + (_here / "clickmap.js").read_text()


class ClickMap(anywidget.AnyWidget):
    """Like a Panel; elements with data-k and role="button" call `pressed` with their key. `html` must be escaped already."""

    _esm = _SCRIPT
    _css = (_here / "panel.css").read_text() + ".ol-panel [role=button] { cursor: pointer; }\n"
    html = traitlets.Unicode("").tag(sync=True)
    text = traitlets.Unicode("").tag(sync=True)
    title = traitlets.Unicode("").tag(sync=True)

    def __init__(self, pressed: Callable[[str], None], **traits: object) -> None:
        super().__init__(**traits)
        self._pressed = pressed
        self.on_msg(self._heard)

    def _heard(self, widget: object, content: object, buffers: object) -> None:
        # What comes from a browser is not ours: anything but a key is ignored.
        if isinstance(content, dict) and isinstance(key := content.get("press"), str):
            self._pressed(key)
