"""A lab as data: labs/NN-name.ipynb and labs/NN-name/ beside it. Nothing about a particular lab is in this package.

The folder holds lab.toml and, as the lab needs them, checks.py, widget.py, manifests/, solutions/, wrong/ and fleet.yaml.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from orchlab.errors import BadInput, OrchlabError
from orchlab.paths import repository

NAME = re.compile(r"(?P<number>\d\d)-(?P<slug>[a-z0-9]+(-[a-z0-9]+)*)")
EXERCISE = r"[a-z0-9]+(-[a-z0-9]+)*"
TEAM = r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
BACKENDS = {"kubernetes": ("local", "kind", "existing"), "slurm": ("local", "docker", "existing")}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Exercise(_Part):
    """One exercise: `name` ties its notebook cell, check and solution together; `after` names exercises to be passed first; `hints` is a
    ladder, from a nudge to nearly the answer; `start` a manifest in the lab's folder that the exercise begins with,
    or a cell (.ipy) that breaks something."""

    name: str = Field(pattern=rf"^{EXERCISE}$", max_length=40)
    title: str = Field(min_length=3, max_length=80)
    after: list[str] = []
    start: str = ""
    hints: list[str] = Field(min_length=2, max_length=6)

    @property
    def function(self) -> str:
        """The name of its check in checks.py."""
        return self.name.replace("-", "_")


class LabFile(_Part):
    """lab.toml. `minutes` is a learner's time; `backends` lists by orchestrator what the lab can run on; `engines` what it needs;
    `environments` names the environments that the lab brings up by itself (reset takes them down); `namespaces` the namespaces that it has
    beside lab-NN, by what follows in their names: "vision" is lab-NN-vision (opening the lab makes them, reset empties them)."""

    title: str = Field(min_length=3, max_length=60)
    goal: str = Field(min_length=10, max_length=300)
    minutes: int = Field(ge=1, le=180)
    backends: dict[str, list[str]] = Field(min_length=1)
    engines: list[str] = Field(min_length=1)
    environments: list[str] = []
    namespaces: list[str] = []
    exercises: list[Exercise] = []

    @model_validator(mode="after")
    def _fits_together(self) -> LabFile:
        for kind, names in self.backends.items():
            known = BACKENDS.get(kind)
            if known is None:
                raise ValueError(f"backends.{kind}: use one of {', '.join(BACKENDS)}")
            for name in names:
                if name not in known:
                    raise ValueError(f"backends.{kind}: {name!r} is none of {', '.join(known)}")
        for name in self.namespaces:
            if not re.fullmatch(TEAM, name) or self.namespaces.count(name) > 1:
                raise ValueError(f"namespaces: {name!r} is not a name of its own in lower case, digits and hyphens")
        earlier: set[str] = set()
        for exercise in self.exercises:
            if exercise.name in earlier:
                raise ValueError(f"exercises: {exercise.name!r} is there twice; give each its own name")
            for name in exercise.after:
                if name not in earlier:
                    raise ValueError(f"exercises: {exercise.name!r} comes after {name!r}, which is not an exercise above it")
            earlier.add(exercise.name)
        return self


@dataclass(frozen=True)
class LabFolder:
    """One lab under `home`."""

    home: Path
    name: str

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def notebook(self) -> Path:
        return self.home / f"{self.name}.ipynb"

    @property
    def folder(self) -> Path:
        return self.home / self.name

    @property
    def namespace(self) -> str:
        return f"lab-{self.number}"

    @property
    def namespaces(self) -> list[str]:
        """All namespaces of the lab, its main one first."""
        return [self.namespace, *(f"{self.namespace}-{name}" for name in self.file.namespaces)]

    @cached_property
    def file(self) -> LabFile:
        """lab.toml, read and validated. Raises BadInput that names the file and the field."""
        path = self.folder / "lab.toml"
        shown = f"labs/{self.name}/lab.toml"
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BadInput(shown, "missing", "every lab has one", "scripts/new-lab writes one to start from") from None
        except (OSError, ValueError) as error:
            raise BadInput(shown, "unreadable", str(error), "mend the TOML") from None
        try:
            return LabFile.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            value = first["input"] if field and first["type"] != "missing" else first["type"]
            problem = first["msg"].removeprefix("Value error, ")
            raise BadInput(f"{shown} {field}".strip(), value, problem, "LabFile in src/orchlab/course/folder.py lists the fields") from None

    def exercise(self, name: str) -> Exercise:
        """Raises BadInput for a name that there is not."""
        for exercise in self.file.exercises:
            if exercise.name == name:
                return exercise
        raise BadInput(
            "exercise", name, f"is not in lab {self.number}", f"one of: {', '.join(e.name for e in self.file.exercises) or '(it has none)'}"
        )

    def module(self, stem: str) -> ModuleType:
        """checks.py or widget.py, loaded afresh under a name of its own. Raises OrchlabError if it is missing or does not load."""
        path = self.folder / f"{stem}.py"
        name = f"orchlab_lab_{self.name.replace('-', '_')}_{stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        if not path.exists() or spec is None or spec.loader is None:
            raise OrchlabError(f"labs/{self.name}/{stem}.py is missing", "restore it from the repository")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise OrchlabError(f"labs/{self.name}/{stem}.py does not load: {type(error).__name__}: {error}", "mend that file") from error
        finally:
            sys.dont_write_bytecode = writes
        return module

    def solution(self, exercise: str) -> Path:
        """The file with the solution. Raises OrchlabError when there is not exactly one."""
        found = [p for p in sorted((self.folder / "solutions").glob(f"{exercise}.*")) if p.suffix in SUFFIXES]
        if len(found) != 1:
            raise OrchlabError(f"labs/{self.name}/solutions/ has {len(found)} solutions of {exercise!r}",
                               f"keep one: {exercise}.yaml (applied as it is) or {exercise}.ipy (a notebook cell)")
        return found[0]

    def wrong(self, exercise: str) -> list[Path]:
        """Files with wrong answers: wrong/EXERCISE.WHAT.yaml or .ipy."""
        return [p for p in sorted((self.folder / "wrong").glob(f"{exercise}.*.*")) if p.suffix in SUFFIXES]


# .yaml is applied as it stands; .ipy is the text of a notebook cell, magics and all.
SUFFIXES = (".yaml", ".ipy")


def labs_home() -> Path:
    """Where the labs are: $ORCHLAB_LABS, else labs/ of the repository."""
    if given := os.environ.get("ORCHLAB_LABS"):
        return Path(given).expanduser().absolute()
    return repository() / "labs"


def labs(home: Path | None = None) -> list[LabFolder]:
    """All labs, in order. A notebook or a folder with a lab's name makes a lab; that both exist is for the lint to say."""
    home = home or labs_home()
    names = {p.name.removesuffix(".ipynb") for p in home.iterdir() if p.is_dir() or p.suffix == ".ipynb"} if home.is_dir() else set()
    return [LabFolder(home, name) for name in sorted(names) if NAME.fullmatch(name)]


def lab(wanted: str | int, home: Path | None = None) -> LabFolder:
    """The lab with that number ("01", "1", 1) or name. Raises BadInput if there is none."""
    text = str(wanted).strip()
    number = f"{int(text):02d}" if text.isdigit() else None
    known = labs(home)
    for found in known:
        if text == found.name or number == found.number:
            return found
    raise BadInput("lab", wanted, "there is no such lab", f"one of: {', '.join(found.name for found in known) or 'none'}")
