"""What a "why" about Kubernetes looks at: lists of raw JSON objects, from a cluster as they are needed or from a dict.

A cluster is only read. Every list has a limit on its size and a time limit; what could not be read is noted, not guessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cached_property
from urllib.parse import quote

from orchlab.errors import ApiError
from orchlab.kube import why_match as match
from orchlab.kube.client import Client, WatchExpired

# What is read, by its name here.
PATHS = {
    "nodes": "/api/v1/nodes", "pods": "/api/v1/pods", "namespaces": "/api/v1/namespaces", "events": "/api/v1/events",
    "resourcequotas": "/api/v1/resourcequotas", "persistentvolumeclaims": "/api/v1/persistentvolumeclaims",
    "persistentvolumes": "/api/v1/persistentvolumes", "storageclasses": "/apis/storage.k8s.io/v1/storageclasses",
    "podgroups": "/apis/scheduling.k8s.io/v1beta1/podgroups", "jobs": "/apis/batch/v1/jobs", "replicasets": "/apis/apps/v1/replicasets",
    "deployments": "/apis/apps/v1/deployments", "resourceclaims": "/apis/resource.k8s.io/v1/resourceclaims",
}
# A page of a list, at most so many objects of a kind, seconds for a page.
PAGE, MOST, SECONDS = 2000, 50_000, 20


class Facts:
    """Lists of objects by the names of PATHS, and what is derived from them. `read` is called once for each list that is needed."""

    def __init__(self, read: Callable[[str], list[dict]], namespace: str = "") -> None:
        self._read, self._lists = read, {}
        self.namespace = namespace
        self.missing: dict[str, str] = {}

    @classmethod
    def of(cls, facts: dict[str, list[dict]]) -> Facts:
        """From lists that are there already; a list that is not given is empty."""
        return cls(lambda kind: facts.get(kind, []))

    @classmethod
    def from_cluster(cls, client: Client, namespace: str = "") -> Facts:
        """From a cluster; `namespace` narrows events and controllers to one namespace ("": all)."""
        facts = cls(lambda kind: [], namespace)
        facts._read = lambda kind: _list(client, kind, facts)
        return facts

    def __getitem__(self, kind: str) -> list[dict]:
        if kind not in self._lists:
            self._lists[kind] = self._read(kind)
        return self._lists[kind]

    def find(self, kind: str, name: str, namespace: str = "") -> dict | None:
        """An object by its name, in a namespace if it has one."""
        if (kind, "name") not in self._lists:
            self._lists[kind, "name"] = {(one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in self[kind]}
        known = self._lists[kind, "name"]
        return known.get((namespace, name)) or known.get(("", name))

    @cached_property
    def active(self) -> list[dict]:
        """Pods that are on a node and have not ended: those that take room and count for affinity and spread."""
        return [pod for pod in self["pods"] if pod["spec"].get("nodeName") and not match.ended(pod)]

    @cached_property
    def on(self) -> dict[str, list[dict]]:
        """Active pods by node."""
        found: dict[str, list[dict]] = defaultdict(list)
        for pod in self.active:
            found[pod["spec"]["nodeName"]].append(pod)
        return found

    @cached_property
    def asked(self) -> dict[str, dict[str, int]]:
        """Thousandths by resource that each active pod counts for, by its uid."""
        return {pod["metadata"]["uid"]: match.requests(pod) for pod in self.active}

    @cached_property
    def used(self) -> dict[str, dict[str, int]]:
        """Thousandths in use by node and resource."""
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for pod in self.active:
            node = found[pod["spec"]["nodeName"]]
            for resource, value in self.asked[pod["metadata"]["uid"]].items():
                node[resource] = node.get(resource, 0) + value
        return found

    @cached_property
    def nominated(self) -> list[dict]:
        """Pods without a node for which the scheduler keeps a place on one."""
        return [pod for pod in self["pods"] if not pod["spec"].get("nodeName") and not match.ended(pod)
                and (pod.get("status") or {}).get("nominatedNodeName")]

    @cached_property
    def _events(self) -> dict[tuple[str, str, str], list[dict]]:
        found: dict[tuple[str, str, str], list[dict]] = defaultdict(list)
        for event in self["events"]:
            about = event.get("involvedObject") or {}
            found[about.get("kind", ""), about.get("namespace", ""), about.get("name", "")].append(event)
        for events in found.values():
            events.sort(key=when)
        return found

    def events(self, obj: dict, *reasons: str) -> list[dict]:
        """The events about an object, oldest first; an earlier object of the same name had another uid."""
        about = obj["metadata"]
        found = self._events.get((obj.get("kind", ""), about.get("namespace", ""), about["name"]), [])
        return [event for event in found if (event["involvedObject"].get("uid") or about.get("uid")) == about.get("uid")
                and (not reasons or event.get("reason") in reasons)]

    def owned(self, kind: str, owner: dict) -> list[dict]:
        """Objects whose controller is `owner`."""
        return self._by_owner(kind).get(owner["metadata"]["uid"], [])

    def _by_owner(self, kind: str) -> dict[str, list[dict]]:
        if (kind, "owner") not in self._lists:
            found: dict[str, list[dict]] = defaultdict(list)
            for one in self[kind]:
                if owner := controller(one):
                    found[owner["uid"]].append(one)
            self._lists[kind, "owner"] = found
        return self._lists[kind, "owner"]


def controller(obj: dict) -> dict | None:
    """The owner reference of the controller that made it."""
    return next((one for one in obj["metadata"].get("ownerReferences") or [] if one.get("controller")), None)


def when(event: dict) -> str:
    """The RFC 3339 time of an event's latest occurrence."""
    series = event.get("series") or {}
    return (series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
            or event["metadata"].get("creationTimestamp") or "")


def full_name(obj: dict) -> str:
    """NAMESPACE/NAME."""
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}".lstrip("/")


def _list(client: Client, kind: str, facts: Facts) -> list[dict]:
    path = PATHS[kind]
    if facts.namespace and kind in ("events", "jobs", "replicasets", "deployments", "podgroups", "resourceclaims", "resourcequotas",
                                    "persistentvolumeclaims"):
        head, _, plural = path.rpartition("/")
        path = f"{head}/namespaces/{quote(facts.namespace)}/{plural}"
    found: list[dict] = []
    more = ""
    try:
        while True:
            query = {"limit": PAGE} | ({"continue": more} if more else {})
            answer = client.request("GET", path, timeout=SECONDS, **query)
            name = answer.get("kind", "").removesuffix("List")
            for item in answer.get("items") or []:
                item.setdefault("kind", name)
                found.append(item)
            more = (answer.get("metadata") or {}).get("continue", "")
            if not more:
                return found
            if len(found) >= MOST:
                facts.missing[kind] = f"only the first {len(found)} {kind} were read"
                return found
    except WatchExpired:
        facts.missing[kind] = f"only the first {len(found)} {kind} were read: the list expired meanwhile"
        return found
    except ApiError as error:
        # A user without the right, or a server without that API.
        if error.status not in (403, 404):
            raise
        facts.missing[kind] = f"{kind} could not be read: {error}"
        return []
