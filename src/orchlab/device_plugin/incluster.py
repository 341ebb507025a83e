"""The API client of a program that runs in a pod, with the pod's service account."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from orchlab.errors import BadInput
from orchlab.kube.client import Client

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class PodClient(Client):
    """Reads the token anew when its file changes: kubelet renews it before it runs out."""

    def __init__(self, server: str, context: ssl.SSLContext | None, token: Path, connections: int = 16) -> None:
        super().__init__(server, context, None, connections)
        self._token = token
        self._read = (-1, -1)

    def _raw(self, *arguments, **named):
        try:
            # kubelet swaps a symbolic link, so inode and time are those of another file afterwards.
            found = self._token.stat()
            if (stamp := (found.st_ino, found.st_mtime_ns)) != self._read:
                token = self._token.read_text(encoding="ascii").strip()
                self._headers = {"Accept": "application/json", "Authorization": f"Bearer {token}"}
                self._read = stamp
        except OSError:
            # While it is being swapped the one that was read last is still good.
            pass
        return super()._raw(*arguments, **named)


def client(folder: Path = ACCOUNT, connections: int = 16) -> Client:
    """The API server as every container finds it: KUBERNETES_SERVICE_HOST and _PORT, token and CA in `folder`. Raises BadInput outside of a
    pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise BadInput("KUBERNETES_SERVICE_HOST", host, "is not set: this is no pod", "run it in a pod with a service account")
    if not (folder / "token").exists():
        raise BadInput("service account", str(folder / "token"), "is not there", "set automountServiceAccountToken: true")
    address = f"[{host}]" if ":" in host else host
    return PodClient(f"https://{address}:{port}", ssl.create_default_context(cafile=str(folder / "ca.crt")), folder / "token", connections)
