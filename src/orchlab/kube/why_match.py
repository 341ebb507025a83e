"""What matches what, by the scheduler's rules: selectors, node affinity, tolerations, a pod's effective requests. Raw JSON in.

Sources: Kubernetes' API reference for LabelSelector, NodeSelector and Toleration; k8s.io/component-helpers/resource for requests.
"""

from __future__ import annotations

from functools import lru_cache

from orchlab.simulator.pods import milli

NOT_STARTING = ("NoSchedule", "NoExecute")
CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@lru_cache(maxsize=1 << 14)
def amount(quantity: str | int | float) -> int:
    """Thousandths in a quantity; 0 for one that cannot be read."""
    try:
        return milli(quantity)
    except (ValueError, KeyError):
        return 0


def shown(resource: str, thousandths: int) -> str:
    """An amount as people write it: 8 GPUs as "8", 250 thousandths of a CPU as "250m", memory in Gi or Mi."""
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        size = thousandths / 1000
        for unit, name in ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi")):
            if abs(size) >= unit:
                return f"{size / unit:.4g}{name}"
        return f"{size:.0f}"
    return f"{thousandths // 1000}" if thousandths % 1000 == 0 else f"{thousandths}m"


def labels(obj: dict) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def priority(pod: dict) -> int:
    return pod["spec"].get("priority") or 0


def ended(pod: dict) -> bool:
    """Whether it has ended for good: then it takes no part in any decision of the scheduler."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def selects(selector: dict | None, found: dict[str, str]) -> bool:
    """A LabelSelector: a missing one selects nothing, an empty one everything."""
    if selector is None:
        return False
    return (all(found.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
            and all(_holds(one, found) for one in selector.get("matchExpressions") or []))


def node_selected(pod: dict, node: dict) -> bool:
    """nodeSelector and required node affinity: terms are alternatives, an empty term selects nothing."""
    spec, found = pod["spec"], labels(node)
    if any(found.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = (affinity(pod, "nodeAffinity").get("requiredDuringSchedulingIgnoredDuringExecution"))
    return required is None or node_terms(required, node)


def node_terms(selector: dict, node: dict) -> bool:
    """A NodeSelector, of a pod or of a volume."""
    found, fields = labels(node), {"metadata.name": node["metadata"]["name"]}
    for term in selector.get("nodeSelectorTerms") or []:
        expressions, names = term.get("matchExpressions") or [], term.get("matchFields") or []
        if ((expressions or names) and all(_holds(one, found) for one in expressions) and all(_holds(one, fields) for one in names)):
            return True
    return False


def named_nodes(pod: dict) -> set[str] | None:
    """The nodes that the pod's affinity names by metadata.name in each of its terms (DaemonSets do so), or None."""
    required = affinity(pod, "nodeAffinity").get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    names: set[str] = set()
    for term in required.get("nodeSelectorTerms") or []:
        fields = [set(one.get("values") or []) for one in term.get("matchFields") or []
                  if one["key"] == "metadata.name" and one["operator"] == "In"]
        if not fields:
            return None
        names |= set.intersection(*fields)
    return names or None


def affinity(pod: dict, kind: str) -> dict:
    """`kind`: nodeAffinity, podAffinity or podAntiAffinity."""
    return (pod["spec"].get("affinity") or {}).get(kind) or {}


def untolerated(pod: dict, node: dict) -> list[dict]:
    """The node's taints that keep the pod from starting there."""
    taints = (node.get("spec") or {}).get("taints") or []
    accepted = pod["spec"].get("tolerations") or []
    return [taint for taint in taints if taint.get("effect") in NOT_STARTING and not any(tolerates(one, taint) for one in accepted)]


def cordoned(pod: dict, node: dict) -> bool:
    """Whether the node is cordoned and the pod does not tolerate that."""
    return bool((node.get("spec") or {}).get("unschedulable")) and not any(tolerates(one, CORDONED)
                                                                           for one in pod["spec"].get("tolerations") or [])


def tolerates(toleration: dict, taint: dict) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    operator, mine, its = toleration.get("operator") or "Equal", toleration.get("value") or "", taint.get("value") or ""
    if operator == "Exists":
        return True
    if not toleration.get("key"):
        return False
    return _compared(operator, its, mine) if operator in ("Gt", "Lt") else mine == its


def taint_text(taint: dict) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"


def requests(pod: dict) -> dict[str, int]:
    """What the scheduler counts for a pod, in thousandths by resource: the sum over containers and sidecars, or an init container's need
    together with the sidecars before it if that is more; requests of the pod as a whole go before; plus its overhead."""
    spec = pod["spec"]
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    running: dict[str, int] = {}
    sizes = _resized(pod)
    for container in spec.get("initContainers") or []:
        asks = _asks(container, sizes)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, asks)
            asks = {}
        for name in asks.keys() | sidecars.keys():
            peak[name] = max(peak.get(name, 0), asks.get(name, 0) + sidecars.get(name, 0))
    for container in spec.get("containers") or []:
        _add(running, _asks(container, sizes))
    _add(running, sidecars)
    total = {name: max(running.get(name, 0), peak.get(name, 0)) for name in running.keys() | peak.keys()}
    total |= {name: amount(value) for name, value in ((spec.get("resources") or {}).get("requests") or {}).items()}
    _add(total, {name: amount(value) for name, value in (spec.get("overhead") or {}).items()})
    return total


def init_that_asks(pod: dict, resource: str) -> str:
    """The init container that makes a pod's request what it is: it asks for more than the containers together. "" if none does."""
    inits = [one for one in pod["spec"].get("initContainers") or [] if one.get("restartPolicy") != "Always"]
    alone = requests({"spec": {**pod["spec"], "initContainers": [one for one in pod["spec"].get("initContainers") or [] if one not in inits]}})
    if not inits or requests({"spec": pod["spec"]}).get(resource, 0) <= alone.get(resource, 0):
        return ""
    return max(inits, key=lambda one: _asks(one, {}).get(resource, 0))["name"]


def _asks(container: dict, sizes: dict[str, dict[str, int]]) -> dict[str, int]:
    wanted = (container.get("resources") or {}).get("requests") or {}
    # The API server copies limits to missing requests; a manifest that it has not seen has them still to be copied.
    wanted = {**((container.get("resources") or {}).get("limits") or {}), **wanted}
    asks = {name: amount(value) for name, value in wanted.items()}
    for name, value in sizes.get(container["name"], {}).items():
        asks[name] = max(asks.get(name, 0), value)
    return asks


def _resized(pod: dict) -> dict[str, dict[str, int]]:
    """What containers have at present, which a resize may not have reduced yet."""
    status = pod.get("status") or {}
    return {one["name"]: {name: amount(value) for name, value in held.items()}
            for one in status.get("containerStatuses") or [] if (held := (one.get("resources") or {}).get("requests"))}


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _holds(expression: dict, found: dict[str, str]) -> bool:
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    if operator == "Exists":
        return key in found
    if operator == "DoesNotExist":
        return key not in found
    if operator == "In":
        return key in found and found[key] in values
    if operator == "NotIn":
        return found.get(key) not in values
    return key in found and len(values) == 1 and _compared(operator, found[key], values[0])


def _compared(operator: str, left: str, right: str) -> bool:
    try:
        return int(left) > int(right) if operator == "Gt" else int(left) < int(right)
    except ValueError:
        return False
