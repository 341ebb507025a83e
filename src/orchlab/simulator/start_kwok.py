"""Starts KWOK, at once able to work: `python -m orchlab.simulator.start_kwok --kubeconfig FILE -- /path/to/kwok ARGUMENTS`.

KWOK takes part in a node's life only while it holds the node's lease, under an identity that is new with every start. One that was killed
leaves leases that keep its successor idle for their 40 s, so these are cleared first. And a KWOK that finds no API server waits for
seconds between its tries, so this waits for it in short steps.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from orchlab.errors import ApiError, EnvironmentBroken
from orchlab.kube.client import Client

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LONGEST_WAIT = 30.0


def clear_leases(client: Client, timeout: float = 2) -> int:
    """Deletes node leases that another process than the node's own kubelet holds (a kubelet's identity is its node's name).
    Returns how many. Raises ApiError and EnvironmentBroken."""
    leases, _ = client.list(LEASES, timeout=timeout)
    foreign = [lease for lease in leases if (lease.get("spec") or {}).get("holderIdentity") != lease["metadata"]["name"]]
    if foreign and len(foreign) == len(leases):
        client.delete(LEASES, timeout=timeout + len(foreign) / 100)
    else:
        for lease in foreign:
            client.delete(f"{LEASES}/{lease['metadata']['name']}", timeout=timeout)
    return len(foreign)


def await_and_clear(client: Client, longest: float = LONGEST_WAIT) -> str:
    """Clears the leases as soon as the API server answers; says what happened. Gives up after `longest` seconds, so that KWOK's own
    patience takes over."""
    deadline = time.monotonic() + longest
    while True:
        try:
            return f"cleared {clear_leases(client)} leases of an earlier KWOK"
        except (ApiError, EnvironmentBroken) as error:
            # 403: the rights come after the first start of the API server.
            if time.monotonic() > deadline:
                return f"leases not cleared: {error.args[0]}"
        time.sleep(0.05)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="orchlab.simulator.start_kwok", description=__doc__.splitlines()[0])
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("kwok", nargs="+", help="the KWOK binary and its arguments, after --")
    given = parser.parse_args(arguments)
    print(await_and_clear(Client.from_kubeconfig(given.kubeconfig)), flush=True)
    sys.stdout.flush()
    os.execv(given.kwok[0], given.kwok)


if __name__ == "__main__":
    main()
