"""The help desk: opens a ticket by causing its fault on the live cluster, and keeps when it was opened, diagnosed and mended.

One fault at a time: opening a ticket first takes back what the one before did. What is known of a ticket stands in a ConfigMap of the lab's
namespace, so a restarted kernel finds it, and a reset takes it away.
"""

from __future__ import annotations

import hashlib
import time
import tomllib
from dataclasses import dataclass, field
from datetime import UTC, datetime

from orchlab.course import Lab, Text, kubectl, pods
from orchlab.errors import ApiError, BadInput, OrchlabError

NODE = "t4-0"
GPUS, PRODUCT = 2, "Tesla-T4"
GPU, LABEL = "nvidia.com/gpu", "nvidia.com/gpu.product"
PLUGIN, CONFIG = "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/device-plugin.config"
TICKET = "lab-03/ticket"
WORKLOADS = ("apps/v1/deployments", "apps/v1/daemonsets", "apps/v1/statefulsets", "apps/v1/replicasets", "batch/v1/jobs",
             "v1/replicationcontrollers", "v1/resourcequotas", "v1/pods")
SECONDS = 40


@dataclass(frozen=True)
class Fault:
    """One of faults.toml, where the fields are explained."""

    id: str
    cause: str
    symptom: str
    target: str
    manifests: list[str]
    words: str
    running: int
    breaks: list[list[str]] = field(default_factory=list)
    until: dict = field(default_factory=dict)
    refused: bool = False


@dataclass(frozen=True)
class Ticket:
    """What is known of one: seconds since 1970, or None for what has not happened. `is_open`: its fault is the one in the cluster."""

    id: str
    opened: float
    diagnosed: float | None
    mended: float | None
    guesses: int
    is_open: bool


def causes(lab: Lab) -> dict[str, str]:
    """Cause words, each with what one would see if it were that."""
    return _file(lab)["causes"]


def faults(lab: Lab) -> dict[str, Fault]:
    """All faults by id, in the order of the file."""
    return {entry["id"]: Fault(**entry) for entry in _file(lab)["faults"]}


def fault(lab: Lab, ticket: str) -> Fault:
    """Raises BadInput for a ticket that there is not."""
    known = faults(lab)
    if ticket not in known:
        raise BadInput("ticket", ticket, "is not on the board", f"one of: {', '.join(known)}")
    return known[ticket]


def open_ticket(lab: Lab, ticket: str, seconds: float = SECONDS) -> Fault:
    """Clears the desk, causes the ticket's fault, waits until its symptom shows. Raises BadInput, TimeLimitReached."""
    found = fault(lab, ticket)
    look(lab)
    clear(lab, seconds)
    inject(lab, found, seconds)
    path = f"/api/v1/namespaces/{lab.namespace}/configmaps"
    _delete(lab, f"{path}/ticket-{ticket}")
    lab.client.create(path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"ticket-{ticket}", "labels": {TICKET: "open"}},
                             "data": {"opened": f"{time.time():.3f}", "guesses": "0", "state": _fingerprint(lab)}})
    return found


def inject(lab: Lab, found: Fault, seconds: float = SECONDS) -> None:
    """Causes a fault on a cleared cluster and waits until its words are said. Raises OrchlabError, TimeLimitReached."""
    for arguments in found.breaks:
        _run(lab, [str(lab.folder.folder / word) if word.startswith("manifests/") else word for word in arguments])
    if found.until:
        wait_node(lab, found.until["gpus"], found.until.get("product"), seconds)
        if not found.until["gpus"]:
            # Allocatable falls while the plugin's pod is still on its way out.
            lab.until(lambda: not _plugin(lab), seconds, f"the device plugin did not leave {NODE}")
    for name in found.manifests:
        last = name == found.manifests[-1]
        said = _run(lab, ["apply", "--server-side", "--force-conflicts", f"--field-manager={lab.manager}", "-f",
                          str(lab.folder.folder / name)], refused=last and found.refused)
        if not last:
            lab.until(lambda: not _unsettled(lab), seconds, f"what stands around {found.id} did not come to run")
        elif found.refused and found.words not in said:
            raise OrchlabError(f"{name} was refused, but not with {found.words!r}: {said}", "please report it")
    if not found.refused:
        lab.place.until(lambda: found.words in words(lab, found.id), seconds, f"the symptom of {found.id} did not show",
                        seen=lambda: words(lab, found.id))


def clear(lab: Lab, seconds: float = SECONDS) -> None:
    """Takes back what any fault does: the namespace has no workloads and quotas, the node is as it was. Raises TimeLimitReached."""
    for found in lab.place.list("configmap", f"{TICKET}=open"):
        lab.client.patch(f"/api/v1/namespaces/{lab.namespace}/configmaps/{found['metadata']['name']}",
                         {"metadata": {"labels": {TICKET: "closed"}}})
    node = lab.get(f"node/{NODE}")
    if node is None:
        raise OrchlabError(f"{NODE} is gone", f"orchlab reset {lab.number}")
    labels, spec = node["metadata"]["labels"], node["spec"]
    change: dict = {}
    # The operator sees to what is missing among its labels, but leaves alone what somebody chose.
    if wrong := {key: value for key, value in ((PLUGIN, "true"), (CONFIG, None)) if labels.get(key) != value}:
        change["metadata"] = {"labels": wrong}
    if spec.get("unschedulable") or any(taint["key"] == "team" for taint in spec.get("taints") or []):
        kept = [taint for taint in spec.get("taints") or [] if taint["key"] not in ("team", "node.kubernetes.io/unschedulable")]
        change["spec"] = {"unschedulable": None, "taints": kept}
    if change:
        lab.client.patch(f"/api/v1/nodes/{NODE}", change)
    lab.until(lambda: _swept(lab), seconds, "the workloads of the last ticket did not go")
    wait_node(lab, GPUS, PRODUCT, seconds)


def wait_node(lab: Lab, gpus: int, product: str | None = None, seconds: float = SECONDS) -> None:
    """Waits until the node offers so many GPUs, under that product label. Raises TimeLimitReached."""
    def seen() -> tuple[int, str]:
        node = lab.get(f"node/{NODE}")
        return int(node["status"]["allocatable"].get(GPU, 0)), node["metadata"]["labels"].get(LABEL, "")

    lab.place.until(lambda: seen()[0] == gpus and product in (None, seen()[1]), seconds, f"{NODE} did not come to offer {gpus} GPUs",
                    seen=lambda: "{} x {}".format(*seen()))


def words(lab: Lab, app: str) -> str:
    """What scheduler, controllers and kubelets say about a workload: a sentence a line, each once."""
    said = []
    for pod in lab.pods(f"app={app}"):
        said.append(pods.unschedulable(pod))
        for status in pod["status"].get("containerStatuses") or []:
            ended = (status.get("lastState") or {}).get("terminated") or (status.get("state") or {}).get("terminated")
            said.append(f"container {status['name']} ended: exit {ended['exitCode']} ({ended.get('reason', '')})" if ended else "")
    for condition in ((lab.get(f"deployment/{app}") or {}).get("status") or {}).get("conditions") or []:
        said.append(condition["message"] if condition["type"] == "ReplicaFailure" else "")
    return "\n".join(dict.fromkeys(filter(None, said)))


# -- what is known of the tickets


def tickets(lab: Lab) -> dict[str, Ticket]:
    """Those that were opened since the last reset, by id."""
    found = {}
    for one in lab.place.list("configmap", TICKET):
        data, name = one.get("data") or {}, one["metadata"]["name"].removeprefix("ticket-")
        moments = [float(data[key]) if data.get(key) else None for key in ("diagnosed", "mended")]
        found[name] = Ticket(name, float(data["opened"]), *moments, int(data["guesses"]), one["metadata"]["labels"][TICKET] == "open")
    return found


def opened(lab: Lab) -> Ticket | None:
    """The ticket whose fault is in the cluster."""
    return next((ticket for ticket in tickets(lab).values() if ticket.is_open), None)


def diagnose(lab: Lab, cause: str) -> Text:
    """Whether that is the open ticket's cause; the first right answer stops its clock. Raises BadInput for an unknown word."""
    known, now = causes(lab), opened(lab)
    if cause not in known:
        raise BadInput("cause", cause, "is not a cause that the board knows", f"one of: {', '.join(known)}")
    if now is None:
        raise BadInput("cause", cause, "there is no open ticket", "open one first")
    if cause != fault(lab, now.id).cause:
        _note(lab, now.id, guesses=str(now.guesses + 1))
        return Text(f"{now.id}: not {cause}. {known[cause]}")
    if now.diagnosed is None:
        _note(lab, now.id, diagnosed=f"{time.time():.3f}")
    took = (now.diagnosed or time.time()) - now.opened
    return Text(f"{now.id}: {cause}, that is it. Diagnosed after {took:.0f} s" + (f"; wrong words: {now.guesses}" if now.guesses else ""))


def look(lab: Lab) -> Ticket | None:
    """Judges the open ticket, as its exercise's check does where it has one, and notes when it was mended. The moment is the cluster's:
    the latest at which one of its pods became ready."""
    now = opened(lab)
    if now is None or now.mended is not None or not mended(lab, now.id):
        return now
    ready = [datetime.fromisoformat(pods.condition(pod, "Ready")["lastTransitionTime"]).replace(tzinfo=UTC).timestamp()
             for pod in running(lab, now.id)]
    # Kubernetes cuts its times off to whole seconds: the upper end, as far as it has come.
    _note(lab, now.id, mended=f"{max([now.opened, *(min(time.time(), moment + 1) for moment in ready)]):.3f}")
    return opened(lab)


def mended(lab: Lab, ticket: str) -> bool:
    """Whether the workload runs as it should, and what was to be kept is kept."""
    exercise = next((one for one in lab.file.exercises if one.name == ticket), None)
    if exercise:
        return getattr(lab.folder.module("checks"), exercise.function)(lab).passed
    found = running(lab, ticket)
    settled = all(not status.get("restartCount") for pod in found for status in pod["status"].get("containerStatuses") or [])
    return len(found) >= fault(lab, ticket).running and settled and all(map(held, found))


def running(lab: Lab, app: str) -> list[dict]:
    """Pods labelled app=`app` that run and are ready, without those that are going."""
    return [pod for pod in lab.pods(f"app={app}") if pods.phase(pod) == "Running" and "deletionTimestamp" not in pod["metadata"]
            and pods.condition(pod, "Ready").get("status") == "True"]


def held(pod: dict) -> list[str]:
    """Device ids that the pod's containers hold."""
    return [device for ids in pods.devices(pod).values() for device in ids]


def touched(lab: Lab) -> bool:
    """Whether anybody has changed workloads, quotas or the node since the ticket was opened: only then is an answer worth waiting for."""
    now = opened(lab)
    known = lab.get(f"configmap/ticket-{now.id}") if now else None
    return known is not None and known["data"].get("state") != _fingerprint(lab)


# -- doing


def _file(lab: Lab) -> dict:
    return tomllib.loads((lab.folder.folder / "faults.toml").read_text(encoding="utf-8"))


def _run(lab: Lab, arguments: list[str], refused: bool = False) -> str:
    """kubectl's words. Raises OrchlabError if it fails and should not, or the other way round."""
    said: list[str] = []
    status = kubectl.run(lab.env, lab.namespace, arguments, out=said.append)
    if bool(status) != refused:
        raise OrchlabError(f"kubectl {' '.join(arguments)} ended with {status}: {''.join(said)}", f"orchlab reset {lab.number}")
    return "".join(said)


def _note(lab: Lab, ticket: str, **data: str) -> None:
    lab.client.patch(f"/api/v1/namespaces/{lab.namespace}/configmaps/ticket-{ticket}", {"data": data})


def _delete(lab: Lab, path: str, **query: object) -> None:
    try:
        lab.client.delete(path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}, **query)
    except ApiError as error:
        if error.status not in (404, 409):
            raise


def _fingerprint(lab: Lab) -> str:
    """Changes with every change of somebody's wishes, not with what controllers and scheduler make of them."""
    seen = [f"{one['kind']} {one['metadata']['uid']} {one['metadata']['generation']}"
            for kind in ("deployment", "daemonset", "job") for one in lab.place.list(kind)]
    seen += [str(one["spec"]) for one in lab.place.list("resourcequota")]
    seen += [pod["metadata"]["uid"] for pod in lab.pods() if not pod["metadata"].get("ownerReferences")]
    node = lab.get(f"node/{NODE}")
    labels = node["metadata"]["labels"]
    seen += [str(node["spec"].get("taints")), str(node["spec"].get("unschedulable")), f"{labels.get(PLUGIN)} {labels.get(CONFIG)}"]
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()


def _plugin(lab: Lab) -> list[dict]:
    """The device plugin's pods on the node."""
    found = lab.place.list("pod", "app=nvidia-device-plugin-daemonset", "gpu-operator")
    return [pod for pod in found if pod["spec"].get("nodeName") == NODE]


def _swept(lab: Lab) -> bool:
    """Deletes all workloads and quotas; whether there were none any more."""
    empty = True
    for name in WORKLOADS:
        version, _, plural = name.rpartition("/")
        path = f"/{'api' if version == 'v1' else 'apis'}/{version}/namespaces/{lab.namespace}/{plural}"
        if lab.client.list(path)[0]:
            empty = False
            _delete(lab, path)
    return empty


def _unsettled(lab: Lab) -> bool:
    """Whether a Deployment lacks ready replicas, a DaemonSet pods, or a quota its count."""
    def status(thing: dict, key: str) -> int:
        return (thing.get("status") or {}).get(key, 0)

    return (any(status(one, "readyReplicas") != one["spec"]["replicas"] for one in lab.place.list("deployment"))
            or any(not status(one, "desiredNumberScheduled") or status(one, "numberReady") != status(one, "desiredNumberScheduled")
                   for one in lab.place.list("daemonset"))
            or any(not status(one, "hard") for one in lab.place.list("resourcequota")))
