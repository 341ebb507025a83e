"""Where a lab's commands go: an environment and the lab's namespace in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from orchlab.course import pods
from orchlab.course.answers import Text
from orchlab.environment import Environment
from orchlab.errors import ApiError, BadInput, EnvironmentBroken, TimeLimitReached
from orchlab.kube.client import Client, base_path
from orchlab.snapshot import natural

EVERY = 0.1
Found = TypeVar("Found")


@dataclass(frozen=True)
class Resource:
    """One kind of object that the API server serves."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    names: frozenset[str]
    verbs: frozenset[str]

    def path(self, namespace: str, name: str = "") -> str:
        where = f"/namespaces/{namespace}" if self.namespaced else ""
        return f"{base_path(self.api_version)}{where}/{self.plural}" + (f"/{name}" if name else "")


SLOWER_ON_KIND = 3


class Place:
    """Raises EnvironmentBroken if there is no such environment or nobody answers there. Times in seconds."""

    def __init__(self, environment: str, namespace: str) -> None:
        self.env = Environment.load(environment)
        self.namespace = namespace
        self._resources: list[Resource] = []

    @cached_property
    def client(self) -> Client:
        return self.env.client()

    @cached_property
    def version(self) -> str:
        """The API server's version, e.g. v1.37.2."""
        return self.client.get("/version")["gitVersion"]

    def ensure_namespace(self, seconds: float = 20) -> None:
        """Makes the namespace, waiting for an old one that is still being deleted, and waits for its default service account:
        until then no pod can be created in it."""
        path = f"/api/v1/namespaces/{self.namespace}"
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}

        def there() -> bool:
            found = self.get_path(path)
            if found is None:
                self.client.create("/api/v1/namespaces", manifest)
                return False
            if found["metadata"].get("deletionTimestamp"):
                return False
            return self.get_path(f"{path}/serviceaccounts/default") is not None

        self.until(there, seconds, f"namespace {self.namespace} is not ready", f"orchlab reset {self.namespace[-2:]} clears it")

    def get_path(self, path: str, **query: object) -> dict[str, Any] | None:
        """The object, or None if there is none."""
        return self.client.find(path, **query)

    def get(self, target: str) -> dict[str, Any] | None:
        """An object by "kind/name" in the lab's namespace (or cluster-wide, by its kind), or None."""
        resource, name = self.parse(target)
        return self.get_path(resource.path(self.namespace, name))

    def list(self, kind: str, selector: str = "", namespace: str | None = None) -> list[dict[str, Any]]:
        """Objects of a kind in the lab's namespace (`namespace`: another one, "" for all), by name."""
        resource = self.resource(kind)
        path = resource.path(self.namespace if namespace is None else namespace)
        if namespace == "":
            path = Resource.path(Resource(resource.api_version, resource.kind, resource.plural, False, resource.names, resource.verbs), "")
        try:
            items, _ = self.client.list(path, **({"labelSelector": selector} if selector else {}))
        except ApiError as error:
            if error.status != 404:
                raise
            return []
        return sorted(items, key=lambda item: (item["metadata"].get("namespace", ""), natural(item["metadata"]["name"])))

    def events(self, kind: str, name: str) -> list[dict[str, Any]]:
        """Events about one object of the namespace, oldest first."""
        items, _ = self.client.list(f"/api/v1/namespaces/{self.namespace}/events",
                                    fieldSelector=f"involvedObject.kind={kind},involvedObject.name={name}")
        return sorted(
            items, key=lambda event: event.get("eventTime") or event.get("lastTimestamp") or event["metadata"]["creationTimestamp"]
        )

    # -- waiting

    def until(
        self, look: Callable[[], Found], seconds: float, failure: str, remedy: str = "", seen: Callable[[], str] = lambda: ""
    ) -> Found:
        """Calls `look` until it returns something true. Raises TimeLimitReached with `failure` and what `seen` says. On kind it waits longer:
        real kubelets start real containers, and share the machine with them."""
        if self.env.record.kubernetes == "kind":
            seconds *= SLOWER_ON_KIND
        deadline = time.monotonic() + seconds
        while True:
            if found := look():
                return found
            if time.monotonic() >= deadline:
                last = seen()
                raise TimeLimitReached(f"{failure} within {round(seconds, 1):g} s" + (f"; last seen: {last}" if last else ""), remedy)
            time.sleep(EVERY)

    def wait(self, target: str, state: str | None = None, seconds: float = 30) -> Text:
        """Waits for an object, by "kind/name". `state`: for a pod a phase, or "settled" (the default: it runs, has ended, or the scheduler
        has declared it unschedulable); for other kinds a condition that becomes True (default: exists); "deleted" for all.
        Returns one sentence. Raises TimeLimitReached with what was last seen."""
        resource, name = self.parse(target)
        wanted = state or ("settled" if resource.kind == "Pod" else "exists")
        last: dict[str, Any] | None = None

        def look() -> bool:
            nonlocal last
            last = self.get_path(resource.path(self.namespace, name))
            if last is None or wanted == "deleted":
                return last is None and wanted == "deleted"
            return _in_state(last, resource.kind, wanted)

        self.until(look, seconds, f"{target} was not {wanted}", f"%kubectl describe {target} tells more",
                   lambda: _sentence(last, resource.kind, name))
        return Text(_sentence(last, resource.kind, name))

    def pods_of(self, made: set[tuple[str, str]]) -> list[dict[str, Any]]:
        """The pods that are, or by their owners belong to, one of these (kind in lower case, name)."""
        wanted = set(made)

        def belongs(thing: dict[str, Any]) -> bool:
            return any((owner["kind"].lower(), owner["name"]) in wanted for owner in thing["metadata"].get("ownerReferences") or [])

        if any(kind == "deployment" for kind, _ in made):
            wanted |= {("replicaset", thing["metadata"]["name"]) for thing in self.list("replicaset") if belongs(thing)}
        return [pod for pod in self.list("pod") if ("pod", pod["metadata"]["name"]) in wanted or belongs(pod)]

    # -- what the API server serves

    def resources(self) -> list[Resource]:
        """All kinds that it serves, each group in its preferred version."""
        groups = [group["preferredVersion"]["groupVersion"] for group in self.client.get("/apis")["groups"]]
        self._resources = []
        for api_version in ["v1", *groups]:
            for entry in self.client.get(base_path(api_version))["resources"]:
                if "/" not in entry["name"]:
                    names = {entry["name"], entry.get("singularName") or entry["kind"].lower(), *entry.get("shortNames", [])}
                    self._resources.append(Resource(api_version, entry["kind"], entry["name"], entry["namespaced"], frozenset(names),
                                                    frozenset(entry.get("verbs", []))))
        return self._resources

    def resource(self, word: str) -> Resource:
        """A kind by its plural, singular or short name. Raises BadInput for one that isn't served."""
        for known in (self._resources, None):
            for resource in self.resources() if known is None else known:
                if word.lower() in resource.names:
                    return resource
        raise BadInput("kind", word, "is not served by this cluster", "%kubectl api-resources lists what is")

    def parse(self, target: str) -> tuple[Resource, str]:
        kind, slash, name = target.partition("/")
        if not slash or not kind or not name:
            raise BadInput("target", target, "is not KIND/NAME", "write it like pod/trainer")
        return self.resource(kind), name


def _in_state(thing: dict[str, Any], kind: str, wanted: str) -> bool:
    if wanted == "exists":
        return True
    if kind == "Pod" and wanted == "settled":
        return pods.settled(thing)
    status = thing.get("status") or {}
    return status.get("phase") == wanted or any(c["type"] == wanted and c["status"] == "True" for c in status.get("conditions") or [])


def _sentence(thing: dict[str, Any] | None, kind: str, name: str) -> str:
    if thing is None:
        return f"{kind.lower()}/{name} is not there"
    if kind == "Pod":
        return pods.sentence(thing)
    conditions = [c["type"] for c in (thing.get("status") or {}).get("conditions") or [] if c["status"] == "True"]
    return f"{kind.lower()}/{name} " + (", ".join(conditions) or "exists")


def running(environment: str) -> bool:
    """Whether there is an environment of that name with anything running."""
    try:
        return Environment.load(environment).running()
    except EnvironmentBroken:
        return False
