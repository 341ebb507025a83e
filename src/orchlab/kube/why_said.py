"""kube-scheduler's sentence about a pod, taken apart: how many nodes, how many for which reason, what preemption found.

Words of kube-scheduler 1.23 to 1.37; the sentences of 1.37 are in tests/unit/why_sentences.py as it says them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

_WHOLE = re.compile(r"(?P<fit>\d+)/(?P<all>\d+) nodes are available: (?P<reasons>.*?)\.?(?: preemption: (?P<preemption>.*))?", re.DOTALL)
_PART = re.compile(r"(\d+) (.+)", re.DOTALL)

# The scheduler's words for a reason: its kind here. In the order of the scheduler's filters, of which the first that fails counts.
KINDS: tuple[tuple[str, str], ...] = (
    (r"node\(s\) were unschedulable", "unschedulable"),
    (r"node\(s\) didn't match the requested node name", "name"),
    (r"node\(s\) had untolerated taint.*|node\(s\) had taint .*, that the pod didn't tolerate", "taint"),
    (r"node\(s\) didn't match Pod's node affinity(/selector)?|node\(s\) didn't match node selector", "affinity"),
    (r"node\(s\) didn't satisfy plugin\(?s?\)? \[NodeAffinity\]", "named"),
    (r"node\(s\) didn't have free ports for the requested pod ports", "ports"),
    (r"Too many pods", "resource pods"),
    (r"Insufficient (?P<resource>\S+)", "resource"),
    (r"node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode", "volume-once"),
    (r"node\(s\) exceed max volume count", "volume-count"),
    (r"node\(s\) didn't match PersistentVolume's node affinity|node\(s\) had volume node affinity conflict", "volume-affinity"),
    (r"node\(s\) didn't find available persistent volumes to bind", "volume-bind"),
    (r"node\(s\) did not have enough free storage", "volume-space"),
    (r"node\(s\) had no available volume zone", "volume-zone"),
    (r"node\(s\) didn't match pod topology spread constraints \(missing required label\)", "spread-label"),
    (r"node\(s\) didn't match pod topology spread constraints", "spread"),
    (r"node\(s\) didn't match pod affinity rules", "pod-affinity"),
    (r"node\(s\) didn't match pod anti-affinity rules", "pod-anti-affinity"),
    (r"node\(s\) didn't satisfy existing pods anti-affinity rules", "existing-anti-affinity"),
    (r"cannot allocate all claims|node\(s\) cannot allocate all claims", "claims"),
)
ORDER = tuple(kind for _, kind in KINDS)


@dataclass(frozen=True)
class Said:
    """`counts`: nodes by kind ("resource nvidia.com/gpu", "taint" …). A node that is short of several resources counts under each.
    `whole` is a reason that holds for all nodes at once, in the scheduler's words; `unread` are reasons that no kind fits."""

    nodes: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    whole: str = ""
    preemption: str = ""
    unread: tuple[str, ...] = ()


def read(sentence: str) -> Said | None:
    """A FailedScheduling message or the condition PodScheduled's; None if it is not of that form (a pod group's, for one)."""
    match = _WHOLE.fullmatch(sentence.strip())
    if match is None:
        return None
    counts: Counter[str] = Counter()
    unread, whole = [], []
    for part in re.split(r", (?=\d+ )", match["reasons"]):
        numbered = _PART.fullmatch(part)
        if numbered is None:
            whole.append(part.removesuffix(". not found"))
        elif found := kind(numbered[2]):
            counts[found] += int(numbered[1])
        else:
            unread.append(numbered[2])
    return Said(int(match["all"]), counts, ", ".join(whole), match["preemption"] or "", tuple(unread))


def kind(reason: str) -> str:
    """The kind of one reason, "" for words that are not known."""
    for pattern, name in KINDS:
        if match := re.fullmatch(pattern, reason.rstrip(".")):
            return f"resource {match['resource']}" if name == "resource" else name
    return ""
