"""The cluster map with Slurm's data: which job holds which GPU, which node is drained, down or INVAL."""

from __future__ import annotations

from orchlab import views
from orchlab.course import Lab


def cluster(lab: Lab) -> views.Live:
    """Follows the environment that the lab speaks to; `.text` says the same in words."""
    return views.Live(lab.slurm_feed(f"lab-{lab.number}-map").ready(), parts=("map", "pending"), key=f"lab-{lab.number}-map",
                      title=f"Environment {lab.env.name}")
