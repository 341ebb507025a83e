"""scripts/execute-labs: runs the untouched notebooks and stores their outputs, without anything that changes from run to run."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import nbformat

from orchlab import runner
from orchlab.course import folder, lint, reset
from orchlab.course.folder import LabFolder
from orchlab.errors import OrchlabError

KERNELSPEC = {"name": "python3", "display_name": "Python 3", "language": "python"}
# A widget's picture needs a kernel; what stays is its text.
DROPPED = ("application/vnd.jupyter.widget-view+json",)


def renew(lab: LabFolder, environment: str = "default") -> float:
    """Resets the lab and empties all others, runs the notebook as it is, writes the outputs into it. Returns the seconds that it took.
    Raises OrchlabError if a cell fails; then nothing is written."""
    reset.cluster(lab, environment)
    reset.others(lab, environment)
    with tempfile.TemporaryDirectory(prefix="orchlab-execute-") as temporary:
        target = Path(temporary)
        shutil.copytree(lab.folder, target / lab.name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(lab.notebook, target / lab.notebook.name)
        begun = time.monotonic()
        report = runner.execute(target / lab.notebook.name, target / "executed.ipynb", environment, target / "progress.json")
        if report.error:
            raise OrchlabError(report.error, f"mend labs/{lab.name}.ipynb")
        executed = nbformat.read(target / "executed.ipynb", as_version=4)
    notebook = nbformat.read(lab.notebook, as_version=4)
    count = 0
    for cell, run in zip(notebook.cells, executed.cells, strict=True):
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        if cell.cell_type == "code":
            count += 1 if cell.source.strip() else 0
            cell.execution_count = count if cell.source.strip() else None
            cell.outputs = [_cleaned(output, count) for output in _joined(run.outputs)]
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    nbformat.write(notebook, lab.notebook)
    return time.monotonic() - begun


def _joined(outputs: list) -> list:
    """A stream comes in as many pieces as the kernel happened to send; stored it is one."""
    joined: list = []
    for output in outputs:
        if joined and output.output_type == "stream" and joined[-1].output_type == "stream" and joined[-1].name == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _cleaned(output: nbformat.NotebookNode, count: int) -> nbformat.NotebookNode:
    if "data" in output:
        for kind in DROPPED:
            output.data.pop(kind, None)
        output.metadata = nbformat.from_dict({})
    if output.output_type == "execute_result":
        output.execution_count = count
    if output.output_type == "stream":
        output.text = re.sub(r"\x1b\[[0-9;]*m", "", output.text)
    return output


def main() -> None:
    """scripts/execute-labs [NN …]"""
    try:
        labs = [folder.lab(number) for number in sys.argv[1:]] or folder.labs()
        for lab in labs:
            print(f"labs/{lab.name}.ipynb … ", end="", flush=True)
            print(f"{renew(lab):.0f} s")
            for finding in lint.examine(lab):
                print(f"  {finding}")
    except OrchlabError as error:
        sys.exit(f"\nerror: {error}")


if __name__ == "__main__":
    main()
