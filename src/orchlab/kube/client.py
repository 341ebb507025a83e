"""A small raw-JSON client for the Kubernetes API.

The official client's models cost half a second to import and much more per thousand objects; labs may use it freely, the
plumbing uses this. Proxies of the user's environment are never consulted, and every request has a time limit.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import urllib3
import yaml

from orchlab.errors import ApiError, BadInput, EnvironmentBroken

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class WatchExpired(Exception):
    """The resourceVersion is too old (410 Gone): list again and watch from there."""


class Client:
    """Talks JSON to one API server. Thread-safe. All times in seconds."""

    def __init__(self, server: str, context: ssl.SSLContext | None, token: str | None = None, connections: int = 16) -> None:
        self.server = server.rstrip("/")
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._pool = urllib3.PoolManager(num_pools=2, maxsize=connections, ssl_context=context, retries=False, headers=self._headers)
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    @classmethod
    def from_kubeconfig(cls, path: Path | str, context: str | None = None, connections: int = 16) -> Client:
        """From a kubeconfig with certificates (files or data) or a token. Raises BadInput if it names none."""
        config = yaml.safe_load(Path(path).read_text())
        wanted = context or config.get("current-context")
        entry = next((c["context"] for c in config.get("contexts", []) if c["name"] == wanted), None)
        if entry is None:
            raise BadInput("kubeconfig context", wanted, f"not in {path}", "kubectl config get-contexts lists them")
        cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == entry["cluster"])
        user = next(u["user"] for u in config["users"] if u["name"] == entry["user"])
        tls = ssl.create_default_context()
        if "certificate-authority-data" in cluster:
            tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        elif "certificate-authority" in cluster:
            tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        if "client-certificate" in user:
            tls.load_cert_chain(user["client-certificate"], user["client-key"])
        elif "client-certificate-data" in user:
            # ssl reads certificates from files only.
            with tempfile.NamedTemporaryFile() as pair:
                pair.write(base64.b64decode(user["client-certificate-data"]) + b"\n" + base64.b64decode(user["client-key-data"]))
                pair.flush()
                tls.load_cert_chain(pair.name)
        elif "token" not in user:
            raise BadInput("kubeconfig user", entry["user"], "has neither a client certificate nor a token")
        return cls(cluster["server"], tls, user.get("token"), connections)

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json", timeout: float = 10,
                **query: object) -> dict:
        """One request. `path` begins with /api or /apis (or /readyz …). Raises ApiError, or EnvironmentBroken when nobody answers."""
        text = self._raw(method, path, body, content_type, timeout, query).data
        return json.loads(text) if text[:1] in (b"{", b"[") else {"text": text.decode(errors="replace")}

    def get(self, path: str, **query: object) -> dict:
        return self.request("GET", path, **query)

    def find(self, path: str, **query: object) -> dict | None:
        """The object at `path`, or None if there is none."""
        try:
            return self.get(path, **query)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def create(self, path: str, body: dict, **query: object) -> dict:
        return self.request("POST", path, body, **query)

    def patch(self, path: str, body: object, content_type: str = MERGE, **query: object) -> dict:
        return self.request("PATCH", path, body, content_type, **query)

    def delete(self, path: str, body: dict | None = None, **query: object) -> dict:
        return self.request("DELETE", path, body, **query)

    def list(self, path: str, timeout: float = 30, **query: object) -> tuple[list[dict], str]:
        """All items at a collection path and the resourceVersion to watch from."""
        answer = self.request("GET", path, timeout=timeout, **query)
        kind = answer.get("kind", "").removesuffix("List")
        items = answer.get("items") or []
        for item in items:
            item.setdefault("kind", kind)
            item.setdefault("apiVersion", answer.get("apiVersion", ""))
        return items, answer["metadata"]["resourceVersion"]

    def watch(self, path: str, version: str, seconds: float = 60, opened: Callable[[Callable[[], None]], None] | None = None,
              **query: object) -> Iterator[tuple[str, dict]]:
        """Yields (ADDED|MODIFIED|DELETED|BOOKMARK, object) for at most `seconds`. Raises WatchExpired after a 410.

        `opened` is handed a function that breaks the watch off from another thread, which a blocked read would otherwise outlast.
        """
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": max(1, int(seconds))} | query
        deadline = time.monotonic() + seconds + 5
        response = self._raw("GET", path, None, "application/json", seconds + 5, query, stream=True)
        if opened:
            opened(response.shutdown)
        try:
            rest = b""
            for chunk in response.stream(65536, decode_content=True):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        if status.get("code") == 410:
                            raise WatchExpired(status.get("message", ""))
                        raise ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""), status)
                    yield event["type"], event["object"]
                if time.monotonic() > deadline:
                    return
        except urllib3.exceptions.HTTPError as error:
            raise EnvironmentBroken(f"the watch on {path} broke off: {error}") from error
        finally:
            response.close()

    def apply(self, manifest: dict, manager: str = "orchlab", namespace: str | None = None, dry_run: bool = False, force: bool = True) -> dict:
        """Server-side apply of one object; `namespace` is used where a namespaced object names none."""
        path = self.path_of(manifest, namespace)
        query = {"fieldManager": manager, "force": str(force).lower()} | ({"dryRun": "All"} if dry_run else {})
        return self.request("PATCH", path, manifest, APPLY, **query)

    def path_of(self, manifest: dict, namespace: str | None = None) -> str:
        """The URL path of one object, from its apiVersion, kind and metadata. Raises BadInput for a kind that the server doesn't serve."""
        metadata = manifest.get("metadata") or {}
        for field, value in (("apiVersion", manifest.get("apiVersion")), ("kind", manifest.get("kind")), ("metadata.name", metadata.get("name"))):
            if not value:
                raise BadInput(field, value, "is required in every manifest")
        plural, namespaced = self.resource(manifest["apiVersion"], manifest["kind"])
        base = base_path(manifest["apiVersion"])
        where = f"/namespaces/{metadata.get('namespace') or namespace or 'default'}" if namespaced else ""
        return f"{base}{where}/{plural}/{metadata['name']}"

    def resource(self, api_version: str, kind: str) -> tuple[str, bool]:
        """(plural name, namespaced?) by the server's discovery. Raises BadInput for an unknown kind."""
        if (api_version, kind) not in self._plurals:
            try:
                found = self.get(base_path(api_version))["resources"]
            except ApiError as error:
                if error.status != 404:
                    raise
                found = []
            self._plurals |= {(api_version, r["kind"]): (r["name"], r["namespaced"]) for r in found if "/" not in r["name"]}
        try:
            return self._plurals[api_version, kind]
        except KeyError:
            raise BadInput("kind", f"{api_version} {kind}", "is not served by this cluster", "kubectl api-resources lists what is") from None

    def _raw(self, method, path, body, content_type, timeout, query, stream=False):
        url = self.server + path + (f"?{urlencode(query)}" if query else "")
        headers = self._headers | ({"Content-Type": content_type} if body is not None else {})
        data = None if body is None else json.dumps(body).encode()
        limit = urllib3.Timeout(connect=min(5, timeout), read=timeout)
        try:
            response = self._pool.request(method, url, body=data, headers=headers, timeout=limit, preload_content=not stream)
        except urllib3.exceptions.HTTPError as error:
            raise EnvironmentBroken(f"{self.server} does not answer: {error}", "orchlab status shows what runs; orchlab up heals it") from error
        if response.status >= 400:
            text = response.data.decode(errors="replace")
            try:
                status = json.loads(text)
            except ValueError:
                status = {}
            if not isinstance(status, dict):
                status = {}
            if response.status == 410:
                raise WatchExpired(status.get("message", text))
            raise ApiError(response.status, status.get("reason", ""), status.get("message") or text.strip() or f"HTTP {response.status}", status)
        return response


def base_path(api_version: str) -> str:
    """/api/v1 for the core group, /apis/GROUP/VERSION for the others."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
