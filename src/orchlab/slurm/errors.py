"""Slurm's refusals, in Slurm's words."""

from __future__ import annotations

import re

from orchlab.errors import OrchlabError


class SlurmError(OrchlabError):
    """Slurm refused. The message is its own error text, the same over every transport; `details` what else it said."""

    def __init__(self, text: str, details: str = "", remedy: str = "") -> None:
        super().__init__(text, remedy)
        self.text, self.details = text, details


class NotOffered(OrchlabError):
    """This transport cannot do that; another one may."""


_PREFIXES = re.compile(
    r"^(?:\w+: )?(?:error: |fatal: )?(?:Batch job submission failed: |Unable to allocate resources: |allocation failure: |Kill job error on job id \S+: )?"
)
_UNANSWERED = ("Unable to contact slurm controller", "Connection refused", "Socket timed out", "Problem talking to the database")


def from_command(output: str, command: str) -> SlurmError:
    """From what a command wrote to stderr: its last line is the refusal, the lines before it say more."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith('Try "')]
    if not lines:
        return SlurmError(f"{command} failed without a word")
    text = _PREFIXES.sub("", lines[-1])
    # scontrol ends with the job, not with the reason: "Invalid job id specified for job 99".
    text = re.sub(r"^(slurm_\w+ error|\w+ error): ", "", re.sub(r" for job \S+$", "", text))
    return SlurmError(text, "\n".join(_PREFIXES.sub("", line) for line in lines[:-1]), _remedy(text))


def from_words(text: str, details: str = "") -> SlurmError:
    """From an error text that a library or slurmrestd gives."""
    return SlurmError(text, details, _remedy(text))


def _remedy(text: str) -> str:
    return "see whether the daemons run: orchlab status" if any(words in text for words in _UNANSWERED) else ""
