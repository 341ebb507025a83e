"""What differs between Slurm's releases, in one place.

Tried: 22.05.8 (Debian 12, installed) and 24.11.5 (Debian 13, unpacked into the cache by an ordinary user). Written from the manuals and not
tried: 23.11 (Ubuntu 24.04) and others. Sources: the manual pages of each release (slurm.conf, cgroup.conf, slurmrestd) and its release
notes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchlab.errors import EngineUnavailable

OLDEST = (22, 5)
# Versions of the REST API that orchlab's client can read; the newest that both sides know is used.
REST_VERSIONS = tuple(f"v0.0.{number}" for number in range(36, 46))
# From here on numbers come as {"set", "infinite", "number"} and states as lists.
REST_TYPED = "v0.0.40"


@dataclass(frozen=True, order=True)
class Release:
    """A release line, e.g. (22, 5) for 22.05, and the whole version as the daemons print it."""

    year: int
    month: int
    version: str = ""

    @property
    def line(self) -> str:
        return f"{self.year}.{self.month:02d}"

    def at_least(self, year: int, month: int) -> bool:
        return (self.year, self.month) >= (year, month)

    @property
    def tried(self) -> bool:
        """Whether the local backend was run with this release line."""
        return (self.year, self.month) in ((22, 5), (24, 11))


def parse(text: str) -> Release:
    """The release in what `slurmctld -V` prints ("slurm-wlm 22.05.8"). Raises EngineUnavailable for older or unreadable ones."""
    match = re.search(r"(\d{2})\.(\d{1,2})\.(\d+)", text)
    if not match:
        raise EngineUnavailable(f"slurmctld -V says {text.strip()!r}: no version in it", "install Slurm 22.05 or newer")
    release = Release(int(match[1]), int(match[2]), match[0])
    if not release.at_least(*OLDEST):
        raise EngineUnavailable(f"Slurm {release.version} is older than 22.05", "install a newer Slurm")
    return release


def cgroup_plugin(release: Release) -> str:
    """Without root there are no cgroups to make. `disabled` does not exist in 22.05 (a parse error there); its v1 plugin does nothing
    as long as nothing is constrained."""
    return "disabled" if release.at_least(23, 11) else "cgroup/v1"


def json_commands(release: Release) -> frozenset[str]:
    """Commands with --json: sinfo, squeue and sacct in all; scontrol, sacctmgr, sdiag and sshare from 23.11 (seen in 24.11). sprio has
    none."""
    base = {"sinfo", "squeue", "sacct"}
    return frozenset(base | {"scontrol", "sacctmgr", "sdiag", "sshare"} if release.at_least(23, 11) else base)


def pyslurm_requirement(release: Release) -> str:
    """The pyslurm whose major.minor equals Slurm's. PyPI carries 25.11 only; other lines are releases of the project's repository."""
    line = f"{release.year}.{release.month}"
    if release.at_least(25, 11):
        return f"pip install 'pyslurm=={line}.*'"
    known = {(22, 5): "22.5.3", (24, 11): "24.11.0", (23, 11): "23.11.1"}.get((release.year, release.month), f"{line}.x")
    return f"pyslurm {known}, built from its source release with Slurm's headers (libslurm-dev); PyPI has no {line}"
