"""%kubectl, %%kubectl and %%apply: commands and YAML as an operator would write them, in a notebook cell."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import yaml
from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class, no_var_expand

from orchlab.course import kubectl
from orchlab.errors import BadInput

if TYPE_CHECKING:
    from orchlab.course.lab import Lab


NOTHING = "nothing to send: there is no object in this YAML yet"


@magics_class
class LabMagics(Magics):
    """They speak to the environment and namespace of the lab that was opened last in this kernel."""

    lab: Lab

    # Curly braces and dollars are JSONPath's and the shell's here, not Python's.
    @no_var_expand
    @line_cell_magic("kubectl")
    def kubectl(self, line: str, cell: str | None = None) -> None:
        """%kubectl [-t SECONDS] ARGUMENTS … runs the real kubectl; with %%kubectl the cell's text is its standard input (-f -)."""
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise BadInput("%kubectl", line, str(error), "close the quotation marks") from None
        seconds = kubectl.SECONDS
        if words[:1] == ["-t"]:
            seconds = _seconds(words[1:2])
            words = words[2:]
        if words[:1] == ["kubectl"]:
            words = words[1:]
        if words[:1] in (["edit"], ["attach"]) or any(word in ("-it", "-ti", "--stdin") for word in words):
            raise BadInput("%kubectl", line, "needs a terminal", "File > New > Terminal opens one; kubectl works there as well")
        if cell is not None and words[-2:] == ["-f", "-"] and is_empty(cell):
            print(NOTHING)
            return
        kubectl.run(self.lab.env, self.lab.namespace, words, cell, seconds)

    @cell_magic
    def apply(self, line: str, cell: str) -> None:
        """%%apply applies the cell's YAML as it is written, server-side, in the lab's namespace."""
        if line.strip():
            raise BadInput("%%apply", line, "takes no arguments", "write the YAML under it")
        self.lab.apply(cell)


def is_empty(text: str) -> bool:
    """Whether a YAML text holds no objects: nothing but comments. Text that is not YAML is for kubectl to complain about."""
    try:
        return all(document is None for document in yaml.safe_load_all(text))
    except yaml.YAMLError:
        return False


def register(shell, lab: Lab) -> None:
    """Makes the magics of `shell` speak for `lab`."""
    magics = LabMagics(shell)
    magics.lab = lab
    shell.register_magics(magics)
    if "slurm" in lab.file.backends:
        from orchlab.course.slurm_magics import SlurmMagics

        slurm = SlurmMagics(shell)
        slurm.lab = lab
        shell.register_magics(slurm)


def _seconds(words: list[str]) -> float:
    try:
        seconds = float(words[0])
        if not 0 < seconds <= 600:
            raise ValueError
    except (IndexError, ValueError):
        raise BadInput(
            "%kubectl -t", " ".join(words), "is not a number of seconds above 0 and at most 600", "for example %kubectl -t 60 get pods -w"
        ) from None
    return seconds
