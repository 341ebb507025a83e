"""%slurm, %%slurm and %%sbatch: Slurm's own commands and batch scripts, as a user of a cluster writes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class

from orchlab.errors import BadInput

if TYPE_CHECKING:
    from orchlab.course.lab import Lab


@magics_class
class SlurmMagics(Magics):
    """They speak to the environment of the lab that was opened last in this kernel, in the lab's work folder."""

    lab: Lab

    @line_cell_magic("slurm")
    def slurm(self, line: str, cell: str | None = None) -> None:
        """%slurm [-t SECONDS] COMMAND … runs the real command; {job} and $USER are filled in. With %%slurm the cell's text is its input."""
        seconds = 60.0
        words = line.split(None, 2)
        if words[:1] == ["-t"]:
            try:
                seconds = float(words[1])
                if not 0 < seconds <= 600:
                    raise ValueError
            except (IndexError, ValueError):
                raise BadInput("%slurm -t", line, "is not a number of seconds above 0 and at most 600",
                               "for example %slurm -t 90 srun …") from None
            line = words[2] if len(words) > 2 else ""
        said = self.lab.command(os.path.expandvars(line), seconds, cell)
        if said:
            print(said)

    @cell_magic
    def sbatch(self, line: str, cell: str) -> None:
        """%%sbatch [OPTIONS] submits the cell as it is written, #SBATCH lines and all; the job's id is in the variable `job` afterwards.
        Where the first line is no #! line, #!/bin/bash is put before it."""
        job = self.lab.sbatch(cell, os.path.expandvars(line))
        if job is not None:
            self.shell.user_ns["job"] = job
