"""Keeps Kueue's webhook configurations in the cluster exactly while Kueue answers: `python -m orchlab.kube.kueue_webhooks --folder FOLDER --port PORT`.

They say failurePolicy Fail: with Kueue gone and its webhooks left behind, no Job could be created. In a cluster Kueue's Deployment and Service share one
life; here Kueue is a process, so this one watches its port. It removes the webhooks within a moment when nobody listens there any more, however that came
about, and when it is stopped itself. Killed together with Kueue, it does so at its next start.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from orchlab import launch
from orchlab.errors import ApiError, EnvironmentBroken
from orchlab.kube.client import Client
from orchlab.paths import write_private

EVERY = 0.2  # seconds between two looks at the port
AGAIN = 10.0  # seconds after which what should be there is made sure of anew
KINDS = {"MutatingWebhookConfiguration": "mutatingwebhookconfigurations", "ValidatingWebhookConfiguration": "validatingwebhookconfigurations"}
STATE = "webhooks"  # in the folder of Kueue's files: "placed" or "removed", what this process has last made sure of


def address(configuration: dict) -> str:
    """The URL path of a webhook configuration."""
    return f"/apis/admissionregistration.k8s.io/v1/{KINDS[configuration['kind']]}/{configuration['metadata']['name']}"


def place(client: Client, configurations: list[dict]) -> None:
    """Raises ApiError or EnvironmentBroken."""
    for configuration in configurations:
        client.request("PATCH", address(configuration), configuration, "application/apply-patch+yaml", timeout=5, fieldManager="orchlab", force="true")


def remove(client: Client, configurations: list[dict]) -> None:
    """Raises ApiError or EnvironmentBroken."""
    for configuration in configurations:
        try:
            client.request("DELETE", address(configuration), timeout=2)
        except ApiError as error:
            if error.status != 404:
                raise


def guard(client: Client, configurations: list[dict], port: int, state: Path) -> None:
    """Until SystemExit; then removes them. Says what it does, and each new reason why it cannot."""
    done, since, trouble = "", 0.0, ""
    try:
        while True:
            wanted = "placed" if launch.listens(port) else "removed"
            if wanted != done or time.monotonic() - since > AGAIN:
                try:
                    (place if wanted == "placed" else remove)(client, configurations)
                    if wanted != done:
                        print(f"webhooks {wanted}: {'Kueue listens' if wanted == 'placed' else 'nobody listens'} on port {port}", flush=True)
                        write_private(state, wanted)
                    done, since, trouble = wanted, time.monotonic(), ""
                except (ApiError, EnvironmentBroken) as error:
                    if str(error) != trouble:
                        trouble = str(error)
                        print(trouble, flush=True)
            time.sleep(EVERY)
    finally:
        state.unlink(missing_ok=True)
        try:
            remove(client, configurations)
            print("webhooks removed: stopping", flush=True)
        except (ApiError, EnvironmentBroken) as error:
            print(f"webhooks not removed: {error}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="orchlab.kube.kueue_webhooks", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="the environment's folder")
    parser.add_argument("--port", type=int, required=True, help="Kueue's webhook port")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    client = Client.from_kubeconfig(given.folder / "kubeconfigs" / "kueue-webhooks.kubeconfig")
    guard(client, json.loads((given.folder / "kueue" / "webhooks.json").read_text()), given.port, given.folder / "kueue" / STATE)


if __name__ == "__main__":
    main()
