"""The engines: real daemons such as kube-apiserver, found, downloaded or built at their pinned versions.

`ensure` gives a binary for each name, from the first source that has it: the cache, PATH (exactly the pinned version), the official
release (checked), a build from source. Settings: ORCHLAB_CACHE (where), ORCHLAB_MIRROR (replaces the releases' scheme and host),
ORCHLAB_NO_DOWNLOAD=1 (skip the releases).
"""

from orchlab.engines.acquire import SOURCES, ensure
from orchlab.engines.events import Progress
from orchlab.engines.inventory import EngineState, listing, prune
from orchlab.engines.spec import Build, Download, Engine, Probe, load, names, standard

__all__ = ["SOURCES", "Build", "Download", "Engine", "EngineState", "Probe", "Progress", "ensure", "listing", "load", "names", "prune", "standard"]
