"""ClusterPolicy's status: state and conditions, in the operator's words."""

from __future__ import annotations

from datetime import UTC, datetime

READY, NOT_READY, IGNORED = "ready", "notReady", "ignored"


def of(known: dict, missing: list[str], has_labels: bool, has_gpus: bool, namespace: str) -> dict:
    """The new status; `known` is the one that stands, `missing` the states that are not ready, `has_labels` whether any node bears Node
    Feature Discovery's labels, `has_gpus` whether any is known to have GPUs."""
    if missing:
        message = f"ClusterPolicy is not ready, states not ready: [{' '.join(missing)}]"
        return _status(known, NOT_READY, namespace, ready=("False", "Error", ""), error=("True", "OperandNotReady", message))
    reason, message = "Reconciled", "ClusterPolicy is ready as all resources have been successfully reconciled"
    if not has_labels:
        reason, message = "NFDLabelsMissing", "No NFD labels found"
    elif not has_gpus:
        reason, message = "NoGPUNodes", "No GPU node found, watching for new nodes to join the cluster."
    return _status(known, READY, namespace, ready=("True", reason, message), error=("False", "Ready", ""))


def _status(known: dict, state: str, namespace: str, **conditions: tuple[str, str, str]) -> dict:
    before = {c["type"]: c for c in known.get("conditions") or []}
    now, made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), []
    for name, (status, reason, message) in conditions.items():
        kind = name.capitalize()
        old = before.get(kind) or {}
        since = old["lastTransitionTime"] if old.get("status") == status else now
        made.append({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
    return {"state": state, "namespace": namespace, "conditions": made}


