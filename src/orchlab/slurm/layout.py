"""Where an environment keeps what belongs to Slurm: everything is under `slurm` in its folder, or `slurm-docker`, `slurm-existing`
for the other backends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from orchlab.environment import Environment
from orchlab.errors import EnvironmentBroken
from orchlab.slurm.packages import Programs
from orchlab.slurm.versions import Release, parse

CLUSTER = "orchlab"
PARTS = {"docker": "slurm-docker", "existing": "slurm-existing"}


@dataclass(frozen=True)
class Layout:
    """Paths, by what is kept there. `bin` is what `orchlab env` puts on PATH; `run` has sockets and pid files."""

    environment: Path
    part: str = "slurm"

    @property
    def folder(self) -> Path:
        return self.environment / self.part

    def __getattr__(self, name: str) -> Path:
        if name in ("etc", "run", "bin", "lib", "state", "spool", "dev", "mysql", "keys"):
            return self.folder / name
        raise AttributeError(name)

    @property
    def conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.socket"

    @property
    def mysql_socket(self) -> Path:
        return self.run / "mysql.socket"

    @property
    def rest_socket(self) -> Path:
        return self.run / "slurmrestd.socket"

    @property
    def preload(self) -> Path:
        return self.lib / "loopback.so"

    @property
    def registered(self) -> Path:
        """There when cluster and accounts are in the database; holds which ones (a digest)."""
        return self.folder / "registered"

    @property
    def programs_file(self) -> Path:
        return self.folder / "programs.json"

    def keep_programs(self, programs: Programs) -> str:
        """JSON for `programs_file`."""
        return (
            json.dumps(
                {
                    "version": programs.release.version,
                    "root": str(programs.root or ""),
                    "plugins": [str(path) for path in programs.plugins],
                    "compiler": str(programs.compiler or ""),
                    "paths": {name: str(path) for name, path in programs.paths.items()},
                },
                indent=1,
            )
            + "\n"
        )

    def programs(self) -> Programs:
        """What the last `up` chose. Raises EnvironmentBroken before the first."""
        try:
            data = json.loads(self.programs_file.read_text())
        except (OSError, ValueError):
            raise EnvironmentBroken(
                f"environment {self.environment.name!r} has no Slurm yet", f"orchlab up --name {self.environment.name}"
            ) from None
        return Programs(
            {name: Path(path) for name, path in data["paths"].items()},
            parse(data["version"]),
            Path(data["root"]) if data["root"] else None,
            tuple(Path(path) for path in data["plugins"]),
            Path(data["compiler"]) if data["compiler"] else None,
        )

    def release(self) -> Release:
        return self.programs().release

    def variables(self) -> dict[str, str]:
        """What a command of Slurm's needs in its environment; PATH is to be put in front."""
        return {"SLURM_CONF": str(self.conf), "PATH": str(self.bin)}


def of(env: Environment) -> Layout:
    """The layout of the backend that an environment's Slurm has now."""
    return Layout(env.folder, PARTS.get(env.record.slurm, "slurm"))
