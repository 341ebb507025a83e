"""What can be said about a lab without running it. Each finding names the file and the cure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import yaml

from orchlab import fleet
from orchlab.course import folder, solutions
from orchlab.course.folder import SUFFIXES, LabFolder
from orchlab.errors import BadInput, OrchlabError

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(\s*<?([^)\s>]+)>?[^)]*\)")
_HTML = re.compile(r"<(img|a)\b[^>]*?\b(?:src|href)\s*=\s*[\"']([^\"']+)[\"'][^>]*>", re.IGNORECASE)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_CHECK = re.compile(r"""\blab\.check\(\s*["']([^"']+)["']""")
_WIDGET = re.compile(r"""\blab\.widget\(\s*(?:["']([^"']+)["'])?""")
_ENVIRONMENT = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")
# Nothing of the machine on which outputs were made belongs into them.
_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|mnt|workspace)/[\w.-]+")


@dataclass(frozen=True)
class Finding:
    """`file` is relative to the folder above labs/."""

    file: str
    problem: str
    cure: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}\n    cure: {self.cure}"


def all_labs(home: Path | None = None) -> list[Finding]:
    """Findings about every lab, and about the labs as a whole."""
    found = folder.labs(home)
    findings = [finding for lab in found for finding in examine(lab)]
    by_number: dict[str, str] = {}
    for lab in found:
        if lab.number in by_number:
            findings.append(
                Finding(f"labs/{lab.name}", f"has the number of labs/{by_number[lab.number]}", "rename one of the two: notebook and folder")
            )
        by_number.setdefault(lab.number, lab.name)
    return findings


def examine(lab: LabFolder) -> list[Finding]:
    """Findings about one lab. With a missing notebook, folder or lab.toml there is nothing else to look at."""
    name = f"labs/{lab.name}"
    if not lab.folder.is_dir():
        return [Finding(f"{name}/", "is missing beside its notebook", "scripts/new-lab makes notebook and folder; or remove the notebook")]
    if not lab.notebook.exists():
        return [Finding(f"{name}.ipynb", "is missing beside its folder", "scripts/new-lab makes notebook and folder; or remove the folder")]
    try:
        lab.file
    except BadInput as error:
        return [Finding(f"{name}/lab.toml", error.args[0], error.remedy)]
    findings = list(_folder(lab))
    try:
        notebook = nbformat.read(lab.notebook, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # json's, nbformat's and jsonschema's own
        return [
            *findings,
            Finding(f"{name}.ipynb", f"is not a valid notebook: {str(error).splitlines()[0][:200]}", "open and save it in JupyterLab"),
        ]
    for look in (_top, _exercises, _outputs, _links, _widgets, _style):
        findings += look(lab, notebook.cells)
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        findings.append(Finding(f"{name}.ipynb", "names another kernel than python3", "scripts/execute-labs sets it"))
    return findings


def _folder(lab: LabFolder) -> Iterator[Finding]:
    name = f"labs/{lab.name}"
    exercises = {exercise.name: exercise for exercise in lab.file.exercises}
    checks = None
    if exercises:
        try:
            checks = lab.module("checks")
        except OrchlabError as error:
            yield Finding(f"{name}/checks.py", error.args[0], error.remedy)
    for exercise in exercises.values():
        if checks and not callable(getattr(checks, exercise.function, None)):
            yield Finding(
                f"{name}/checks.py",
                f"has no check for the exercise {exercise.name!r}",
                f"write def {exercise.function}(lab): it returns an Answer",
            )
        if exercise.start and not (lab.folder / exercise.start).is_file():
            yield Finding(
                f"{name}/lab.toml",
                f"exercise {exercise.name!r} starts from {exercise.start}, which is missing",
                f"add {name}/{exercise.start}",
            )
        try:
            lab.solution(exercise.name)
        except OrchlabError as error:
            yield Finding(f"{name}/solutions/", error.args[0], error.remedy)
        if not lab.wrong(exercise.name):
            yield Finding(
                f"{name}/wrong/", f"has no wrong answer to {exercise.name!r}", f"add {exercise.name}.WHAT.yaml with a common mistake"
            )
        for path in lab.wrong(exercise.name):
            try:
                solutions.refusal(path)
            except BadInput as error:
                yield Finding(f"{name}/wrong/{path.name}", "its first line does not say how it is refused", error.remedy)
    for kind in ("solutions", "wrong"):
        for path in sorted((lab.folder / kind).glob("*")):
            if path.suffix not in SUFFIXES or path.name.split(".")[0] not in exercises:
                yield Finding(
                    f"{name}/{kind}/{path.name}",
                    "belongs to no exercise of lab.toml",
                    "name it EXERCISE.yaml or .ipy (wrong: EXERCISE.WHAT.yaml)",
                )
    for own in lab.file.environments:
        if own == "default" or not _ENVIRONMENT.fullmatch(own):
            yield Finding(
                f"{name}/lab.toml", f"environments: {own!r} cannot be an environment of a lab's own", f'call it "lab{lab.number}"'
            )
    if (lab.folder / "fleet.yaml").exists():
        try:
            fleet.load(lab.folder / "fleet.yaml")
        except BadInput as error:
            yield Finding(f"{name}/fleet.yaml", error.args[0], error.remedy)
    for path in sorted((lab.folder / "manifests").glob("*.y*ml")):
        try:
            list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            yield Finding(f"{name}/manifests/{path.name}", f"is not YAML: {str(error).splitlines()[0]}", "mend it")


def _top(lab: LabFolder, cells: list) -> Iterator[Finding]:
    file = f"labs/{lab.name}.ipynb"
    first = cells[0].source if cells and cells[0].cell_type == "markdown" else ""
    heading = f"# {lab.number} · {lab.file.title}"
    if first.splitlines()[:1] != [heading]:
        yield Finding(
            file,
            "its first cell does not begin with number and title as in lab.toml",
            f'begin the first cell, in Markdown, with "{heading}"',
        )
    if "**Goal.**" not in first:
        yield Finding(file, "the first cell names no goal", 'add a line "**Goal.** …"')
    if f"**Time.** About {lab.file.minutes} minutes" not in first:
        yield Finding(file, "the first cell does not give the time of lab.toml", f'add "**Time.** About {lab.file.minutes} minutes"')
    if not any("**Predict.**" in cell.source for cell in cells if cell.cell_type == "markdown"):
        yield Finding(file, "asks the learner to predict nothing", 'put a question before a run: "**Predict.** …"')
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    if not any(re.search(rf"""Lab\(\s*["']{lab.number}["']""", source) for source in code):
        yield Finding(file, "does not open the lab", f'add a cell: from orchlab.course import Lab; lab = Lab("{lab.number}")')


def _exercises(lab: LabFolder, cells: list) -> Iterator[Finding]:
    file = f"labs/{lab.name}.ipynb"
    names = [exercise.name for exercise in lab.file.exercises]
    places: dict[str, list[int]] = {name: [] for name in names}
    for index, cell in enumerate(cells):
        tags = cell.metadata.get("tags", [])
        tagged = [tag.removeprefix("exercise:") for tag in tags if tag.startswith("exercise:")]
        if bool(tagged) != ("exercise" in tags) or len(tagged) > 1 or (tagged and cell.cell_type != "code"):
            yield Finding(
                file, f"cell {index} is tagged {tags}", 'an exercise cell is a code cell with two tags: "exercise" and "exercise:NAME"'
            )
        for name in tagged:
            if name not in places:
                yield Finding(
                    file, f"cell {index} is tagged as exercise {name!r}, which lab.toml does not have", "add it to lab.toml or mend the tag"
                )
            places.setdefault(name, []).append(index)
    for name in names:
        if len(places[name]) != 1:
            yield Finding(
                file, f"has {len(places[name])} cells for the exercise {name!r}", f'tag one code cell "exercise" and "exercise:{name}"'
            )
            continue
        later = cells[places[name][0] + 1:]
        if not any(name in _CHECK.findall(cell.source) for cell in later if cell.cell_type == "code"):
            yield Finding(file, f"never checks the exercise {name!r}", f'add a cell after it: lab.check("{name}")')
        try:
            same = solutions.cell(lab.solution(name)).strip() == cells[places[name][0]].source.strip()
        except OrchlabError:
            continue
        if same:
            yield Finding(file, f"the cell of {name!r} holds its solution", "leave the learner something to do")


def _outputs(lab: LabFolder, cells: list) -> Iterator[Finding]:
    file = f"labs/{lab.name}.ipynb"
    renew = f"scripts/execute-labs {lab.number} renews the stored outputs"
    for index, cell in enumerate(cells):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        if cell.execution_count is None:
            yield Finding(file, f"cell {index} was never run", renew)
        for output in cell.outputs:
            if output.output_type == "error":
                yield Finding(file, f"cell {index} ends in {output.ename}: {output.evalue.splitlines()[0] if output.evalue else ''}",
                              f"mend the cell, then {renew}")
            if path := _MACHINE.search(json.dumps(output)):
                yield Finding(
                    file,
                    f"the output of cell {index} names a path of the machine that made it ({path[0]})",
                    f"do not print it, then {renew}",
                )


def _links(lab: LabFolder, cells: list) -> Iterator[Finding]:
    file = f"labs/{lab.name}.ipynb"
    for index, cell in enumerate(cells):
        if cell.cell_type != "markdown":
            continue
        text = _CODE.sub("", cell.source)
        targets = [(bool(bang), label, target) for bang, label, target in _LINK.findall(text)]
        targets += [(tag.lower() == "img", "html", target) for tag, target in _HTML.findall(text)]
        for image, label, target in targets:
            if image and not label.strip():
                yield Finding(
                    file, f"cell {index}: the image {target} has no text for those who don't see it", "describe it in the brackets"
                )
            if re.match(r"[a-z]+:", target) or target.startswith("#"):
                continue
            if target.startswith("attachment:"):
                continue
            if not (lab.home / target.split("#")[0]).exists():
                yield Finding(
                    file,
                    f"cell {index}: {'image' if image else 'link'} {target} leads nowhere",
                    "mend the path (it starts at labs/) or add the file",
                )


def _widgets(lab: LabFolder, cells: list) -> Iterator[Finding]:
    wanted = {name or "build" for cell in cells if cell.cell_type == "code" for name in _WIDGET.findall(cell.source)}
    if not wanted:
        return
    try:
        module = lab.module("widget")
    except OrchlabError as error:
        yield Finding(f"labs/{lab.name}/widget.py", error.args[0], error.remedy)
        return
    for name in sorted(wanted):
        if not callable(getattr(module, name, None)):
            yield Finding(
                f"labs/{lab.name}/widget.py",
                f"has no function {name!r}, which the notebook calls",
                f"write def {name}(lab): it returns a widget",
            )


def _style(lab: LabFolder, cells: list) -> Iterator[Finding]:
    for index, cell in enumerate(cells):
        if cell.cell_type == "markdown" and re.search(r"\w!(\s|$)", _CODE.sub("", cell.source)):
            yield Finding(f"labs/{lab.name}.ipynb", f"cell {index} has an exclamation mark", "say it plainly")
