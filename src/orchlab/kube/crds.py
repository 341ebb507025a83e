"""CustomResourceDefinitions that an optional engine brings, and how they go without leaving anything."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path

from orchlab.errors import ApiError, TimeLimitReached
from orchlab.kube.client import Client, base_path

PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DIGEST = "orchlab/applied"
SECONDS = 60


def read(files: Iterable[Path]) -> list[dict]:
    """The objects in YAML files, in their order."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for file in files for document in yaml.load_all(file.read_text(encoding="utf-8"), loader) if document]


def install(client: Client, definitions: list[dict], seconds: float = SECONDS) -> None:
    """Applies those that are not there as they should be and waits until all are established. Raises TimeLimitReached."""
    for definition in definitions:
        digest = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16]
        wanted = definition | {"metadata": definition["metadata"] | {"annotations": (definition["metadata"].get("annotations") or {}) | {DIGEST: digest}}}
        found = client.find(f"{PATH}/{definition['metadata']['name']}")
        if not found or found["metadata"].get("deletionTimestamp") or (found["metadata"].get("annotations") or {}).get(DIGEST) != digest:
            client.apply(wanted)
    deadline = time.monotonic() + seconds
    for name in (definition["metadata"]["name"] for definition in definitions):
        while not _established(client.get(f"{PATH}/{name}")):
            if time.monotonic() > deadline:
                raise TimeLimitReached(f"{name} is not established after {seconds:.0f} s", "orchlab logs kube-apiserver")
            time.sleep(0.05)


def remove(client: Client, group: str, seconds: float = SECONDS) -> int:
    """Removes all CRDs of an API group with all their objects, and waits until the server no longer serves the group. Returns how many CRDs there were.
    Finalizers are taken off: who would have cleared them is gone. Raises TimeLimitReached with what is left."""
    deadline = time.monotonic() + seconds
    count = len(_of(client, group))
    begun: set[str] = set()
    while left := _of(client, group):
        for definition in left:
            name = definition["metadata"]["name"]
            if name not in begun:
                # A conversion webhook of an engine that is gone would keep the objects from being listed and removed.
                if (definition["spec"].get("conversion") or {}).get("strategy") == "Webhook":
                    _try(client, "PATCH", f"{PATH}/{name}", {"spec": {"conversion": {"strategy": "None", "webhook": None}}})
                _try(client, "DELETE", f"{PATH}/{name}")
                begun.add(name)
            _free(client, definition)
        check(deadline, seconds, [definition["metadata"]["name"] for definition in left])
        time.sleep(0.3)
    while client.find(f"/apis/{group}"):
        check(deadline, seconds, [f"{group} in the server's discovery"])
        time.sleep(0.1)
    return count


def check(deadline: float, seconds: float, left: list[str]) -> None:
    """Raises TimeLimitReached after the deadline (of time.monotonic), naming what is left."""
    if time.monotonic() > deadline:
        raise TimeLimitReached(f"not removed within {seconds:.0f} s: {', '.join(left)}", "orchlab logs kube-apiserver")


def _of(client: Client, group: str) -> list[dict]:
    """The group's CRDs, whoever applied them."""
    return [definition for definition in client.list(PATH)[0] if definition["spec"]["group"] == group]


def _free(client: Client, definition: dict) -> None:
    """Takes the finalizers off the CRD's objects."""
    spec = definition["spec"]
    stored = next(version["name"] for version in spec["versions"] if version["storage"])
    base, plural = base_path(f"{spec['group']}/{stored}"), spec["names"]["plural"]
    try:
        found, _ = client.list(f"{base}/{plural}")
    except ApiError:  # gone, or not served any more
        return
    for item in found:
        if item["metadata"].get("finalizers"):
            space = item["metadata"].get("namespace")
            _try(client, "PATCH", f"{base}{f'/namespaces/{space}' if space else ''}/{plural}/{item['metadata']['name']}", {"metadata": {"finalizers": None}})


def _established(definition: dict) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)


def _try(client: Client, method: str, path: str, body: dict | None = None) -> None:
    """For what may be gone meanwhile or has to be tried again."""
    try:
        client.request(method, path, body, "application/merge-patch+json" if method == "PATCH" else "application/json")
    except ApiError as error:
        if error.status not in (404, 409):
            raise
