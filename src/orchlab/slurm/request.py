"""What is asked for when a job is submitted, and the #SBATCH lines of a script for transports that do not read them themselves."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orchlab.errors import BadInput


@dataclass(frozen=True)
class JobRequest:
    """A batch script and its options, each named as sbatch's. `gres` is per node, `gpus` for the whole job; `time` in sbatch's forms
    (minutes, HH:MM:SS, D-HH …); None or "" leaves an option to the script's #SBATCH lines, then to the cluster. `environment` comes on top
    of the caller's. `hold` submits it held."""

    script: str
    job_name: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    nodes: int | None = None
    ntasks: int | None = None
    cpus_per_task: int | None = None
    gres: str = ""
    gpus: str = ""
    gpus_per_task: str = ""
    mem: int | None = None
    time: str = ""
    array: str = ""
    dependency: str = ""
    chdir: str = ""
    output: str = ""
    error: str = ""
    hold: bool = False
    requeue: bool | None = None
    reservation: str = ""
    constraint: str = ""
    comment: str = ""
    signal: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.script.startswith("#!"):
            raise BadInput("script", self.script[:40], "does not begin with #!", "the first line names the interpreter: #!/bin/bash")
        for name in ("nodes", "ntasks", "cpus_per_task", "mem"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise BadInput(name, value, "is not a whole number from 1")

    def options(self) -> list[str]:
        """As arguments of sbatch."""
        words = []
        for name in (*_TEXTS, *_NUMBERS):
            value = getattr(self, name)
            if value not in (None, ""):
                words.append(f"--{name.replace('_', '-')}={value}")
        if self.hold:
            words.append("--hold")
        if self.requeue is not None:
            words.append("--requeue" if self.requeue else "--no-requeue")
        return words

    def with_directives(self) -> JobRequest:
        """The same with the script's #SBATCH lines read in; what was given beside the script wins. Raises BadInput for an option that
        this reader does not know."""
        found = directives(self.script)
        return replace(self, **{name: value for name, value in found.items() if getattr(self, name) in (None, "", False)})


_TEXTS = (
    "job_name",
    "account",
    "partition",
    "qos",
    "gres",
    "gpus",
    "gpus_per_task",
    "time",
    "array",
    "dependency",
    "chdir",
    "output",
    "error",
    "reservation",
    "constraint",
    "comment",
    "signal",
)
_NUMBERS = ("nodes", "ntasks", "cpus_per_task", "mem")
_SHORT = {
    "J": "job_name",
    "A": "account",
    "p": "partition",
    "q": "qos",
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus_per_task",
    "G": "gpus",
    "t": "time",
    "a": "array",
    "d": "dependency",
    "D": "chdir",
    "o": "output",
    "e": "error",
    "C": "constraint",
    "H": "hold",
}


def directives(script: str) -> dict[str, object]:
    """Options in the #SBATCH lines at the head of a script (sbatch stops at the first command). Raises BadInput for what is not known."""
    found: dict[str, object] = {}
    for line in script.splitlines()[1:]:
        if line.strip() and not line.startswith("#"):
            break
        if not line.startswith("#SBATCH"):
            continue
        words = shlex.split(line[len("#SBATCH") :], comments=True)
        while words:
            name, value = _option(words, line)
            found[name] = value
    return found


def _option(words: list[str], line: str) -> tuple[str, object]:
    word = words.pop(0)
    unknown = BadInput(
        "#SBATCH",
        line,
        f"{word} is not known to this transport",
        "submit with the commands (transport='commands'), which read every option",
    )
    if match := re.fullmatch(r"--([a-z-]+)(?:=(.*))?", word):
        name, value = match[1].replace("-", "_"), match[2]
    elif match := re.fullmatch(r"-([A-Za-z])(.*)", word):
        name, value = _SHORT.get(match[1], ""), match[2].removeprefix("=") or None
    else:
        raise unknown
    if name in ("hold", "requeue", "no_requeue"):
        return ("requeue", name == "requeue") if "requeue" in name else ("hold", True)
    if name not in (*_TEXTS, *_NUMBERS):
        raise unknown
    if value is None:
        if not words:
            raise BadInput("#SBATCH", line, f"{word} has no value")
        value = words.pop(0)
    if name == "mem":
        return name, megabytes(value)
    if name in _NUMBERS:
        if not value.isdecimal():
            raise BadInput("#SBATCH", line, f"{value} is not a whole number", "ranges need the commands (transport='commands')")
        return name, int(value)
    return name, value


def megabytes(text: str) -> int:
    """MiB in sbatch's --mem ("4G", "512", "1T"). Raises BadInput."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if not match:
        raise BadInput("mem", text, "is not a size", 'write it like "4G" or 512 (MiB)')
    return max(1, int(match[1]) * {"K": 1, "": 1024, "M": 1024, "G": 1024**2, "T": 1024**3}[match[2]] // 1024)


def minutes(text: str) -> int:
    """Whole minutes in sbatch's --time: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S; seconds are rounded up. Raises BadInput."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if not match:
        raise BadInput("time", text, "is not a time limit", "write minutes, HH:MM:SS or D-HH:MM:SS")
    days, parts = int(match[1] or 0), [int(part) for part in match.groups()[1:] if part is not None]
    if match[1] is not None:
        hours, mins, secs = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, mins, secs = parts
    else:
        hours, mins, secs = 0, *(*parts, 0)[:2]
    return days * 1440 + hours * 60 + mins + -(-secs // 60)
