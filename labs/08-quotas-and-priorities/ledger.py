"""Follows the teams' pods and quotas, and keeps the account: who waited, who was evicted, what it cost."""

from __future__ import annotations

import time

from orchlab import accounting
from orchlab.accounting import Account
from orchlab.course import Lab, Text
from orchlab.kube.feed import Feed
from orchlab.timeline import Record
from orchlab.views import accounts

SECONDS = 30


class Ledger(Feed):
    """A feed of the whole cluster that knows the lab's quotas as well. What was submitted before the last `again` is not counted."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab.env.client())
        self.lab, self._since, self._before = lab, 0.0, set()
        self.spaces = set(lab.folder.namespaces)
        # (namespace, quota) -> its status
        self.quotas: dict[tuple[str, str], dict] = {}
        self.follow("ResourceQuota", "/api/v1/resourcequotas", self._list_quotas, self._quota)

    def again(self) -> None:
        """A new account, from now on."""
        self._since, self._before = time.time(), {one.id for one in self.timeline.records()}

    def records(self) -> list[Record]:
        """Those of the lab's namespaces. Kubernetes stamps in whole seconds, so that a time alone would not tell new ones from old."""
        return [one for one in self.timeline.records()
                if one.namespace in self.spaces and one.id not in self._before and one.submitted >= self._since - 1]

    def devices(self, pool: str = "a100") -> int:
        """GPUs of a pool."""
        return sum(node.gpus for node in self.lab.env.fleet.nodes() if node.pool == pool)

    def account(self, checkpoint: float | None = None, now: float | None = None) -> Account:
        """`checkpoint` in simulated minutes, None: nothing is saved."""
        every = None if checkpoint is None else self.lab.env.clock.real_seconds(60 * checkpoint)
        return accounting.account(self.records(), time.time() if now is None else now, self.devices(), checkpoint=every)

    def bill(self, checkpoint: float | None = None, evictions: int = 0) -> Text:
        """The account in words; `evictions` waits until so many were seen to the end. Raises TimeLimitReached."""
        self.lab.until(lambda: len(self.account().evictions) >= evictions, SECONDS, f"{evictions} evictions were not seen")
        return Text(accounts.account_text(self.account(checkpoint), self.lab.env.clock))

    def ends(self) -> Text:
        """How each evicted pod ended, in the words of its status."""
        return Text("\n".join(f"{e.unit.removeprefix('lab-08-')}: {e.how}" for e in self.account().evictions))

    def waited(self, team: str, name: str) -> Text:
        """From a pod's creation to its node, in real seconds."""
        found = [one for one in self.records() if (one.namespace, one.name) == (f"lab-08-{team}", name)]
        return Text(f"{name} waited {found[-1].waited(time.time()):.1f} s (real seconds)" if found else f"{name} was not seen")

    def _list_quotas(self, items: list[dict], seen: float) -> None:
        self.quotas = {self._key(item): item.get("status") or {} for item in items if self._key(item)[0] in self.spaces}

    def _quota(self, kind: str, item: dict, seen: float) -> None:
        if self._key(item)[0] not in self.spaces:
            return
        if kind == "DELETED":
            self.quotas.pop(self._key(item), None)
        else:
            self.quotas = self.quotas | {self._key(item): item.get("status") or {}}

    @staticmethod
    def _key(item: dict) -> tuple[str, str]:
        return item["metadata"]["namespace"], item["metadata"]["name"]


def follow(lab: Lab) -> Ledger:
    """A running ledger. Raises EnvironmentBroken if the cluster does not answer."""
    return Ledger(lab).start().ready()
