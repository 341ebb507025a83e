"""Solutions and wrong answers: files that are a notebook cell (.ipy) or YAML to apply (.yaml)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from orchlab.course.working import home
from orchlab.errors import BadInput, OrchlabError
from orchlab.paths import private_folder

if TYPE_CHECKING:
    from orchlab.course.lab import Lab

# The first line of a wrong answer says how it is refused and with which words.
REFUSED = re.compile(r"# refused \((?P<status>wrong|not yet)\): (?P<words>\S.*)\n")


def cell(path: Path) -> str:
    """The text of the notebook cell that the file stands for."""
    text = REFUSED.sub("", path.read_text(encoding="utf-8"), count=1).strip("\n")
    return f"%%apply\n{text}" if path.suffix == ".yaml" else text


def refusal(path: Path) -> tuple[str, str]:
    """(status, words) with which a wrong answer has to be refused. Raises BadInput if its first line does not say."""
    found = REFUSED.match(path.read_text(encoding="utf-8"))
    if not found:
        raise BadInput(f"{path.parent.parent.name}/{path.parent.name}/{path.name}", "line 1", "does not say how this answer is refused",
                       'begin it with "# refused (wrong): WORDS OF THE ANSWER" or "# refused (not yet): …"')
    return found["status"], found["words"].strip()


def carry_out(lab: Lab, path: Path) -> None:
    """Runs a solution or a wrong answer as if it stood in a cell of the lab's notebook. Raises OrchlabError if the cell fails."""
    if path.suffix == ".yaml":
        lab.apply(cell(path).removeprefix("%%apply\n"))
        return
    from orchlab.course import magics

    shell = _shell()
    magics.register(shell, lab)
    shell.user_ns["lab"] = lab
    result = shell.run_cell(cell(path), store_history=False)
    if not result.success:
        raise OrchlabError(f"{path.name} did not run: {result.error_before_exec or result.error_in_exec}")


def _shell():
    """The notebook's shell; on the command line one that keeps no history and stays out of ~/.ipython."""
    from IPython import get_ipython
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    return get_ipython() or InteractiveShell.instance(
        ipython_dir=str(private_folder(home() / "ipython")), config=Config(HistoryManager={"enabled": False})
    )
