"""The form of an answer to "why": for pods, jobs and nodes alike."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Diagnosis:
    """`cause` is one sentence, `evidence` what was seen (in the orchestrator's words where it said something), `remedy` what to do.

    `known` is False where the cause is not known: then the evidence is all there is, and nothing is guessed.
    """

    cause: str
    evidence: list[str] = field(default_factory=list)
    remedy: str = ""
    known: bool = True

    def __str__(self) -> str:
        lines = [f"cause     {self.cause}", *(f"evidence  {line}" for line in self.evidence)]
        return "\n".join([*lines, *([f"remedy    {self.remedy}"] if self.remedy else [])])


def unknown(evidence: list[str], remedy: str = "") -> Diagnosis:
    """An honest answer where the evidence fits no cause that is known."""
    return Diagnosis("I don't know.", evidence, remedy, known=False)
