"""Breaking things on purpose, and mending them. What a fault holds down stays so until it is cleared; `reset` and `down` clear all.

A fault goes through the simulator, the supervisor or an engine's own interface; nothing is made up. Each kind says what a learner will see.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from orchlab.environment import Environment, base_variables
from orchlab.errors import ApiError, BadInput, EnvironmentBroken, TimeLimitReached
from orchlab.kube import kind_nodes
from orchlab.kube.client import STRATEGIC
from orchlab.slurm import daemons
from orchlab.slurm import faults as slurm_faults

SECONDS = 30
DEFAULT_XID = 48


@dataclass(frozen=True)
class Kind:
    """`target`: what has to be named, or "". `lasting`: it holds until it is cleared."""

    name: str
    target: str
    lasting: bool
    shows: str


@dataclass(frozen=True)
class Fault:
    """One that is held now."""

    kind: str
    target: str

    def __str__(self) -> str:
        return f"{self.kind} {self.target}".strip()


KINDS = {kind.name: kind for kind in (
    Kind("daemon-down", "process", True, "the process is stopped and not restarted; what it did stops, what it decided before stays"),
    Kind("node-down", "node", True, "its kubelet falls silent: NotReady after the grace period (40 s here, 50 s by default), then the taint "
                                    "node.kubernetes.io/unreachable:NoExecute, and pods go after their tolerationSeconds (300 by default)"),
    Kind("xid", "node/gpu[:xid]", False,
         "the driver reports an XID error of that GPU (48, a double-bit ECC error, if none is named): the device plugin calls it "
         "unhealthy, allocatable drops, and it stays so until the plugin's pod is restarted; XIDs of applications (13, 31, 43, 45, 68, "
         "109) change nothing"),
    Kind("driver-broken", "node", True,
         "the driver's kernel module cannot be loaded: its pod crash-loops, the node's other operands wait in their init containers, "
         "allocatable GPUs fall to 0"),
    Kind("pod-killed", "namespace/pod", False, "the first container ends with exit code 137, as after kill -9; restartPolicy decides what follows"),
    Kind("api-slow", "", True, "etcd is paused nine tenths of the time, as on a starved disk: every request that reaches the store takes long"),
    Kind("store-full", "", True, "etcd has the alarm NOSPACE: it refuses every write (mvcc: database space exceeded) and still answers reads"),
    *(Kind(name, target, True, shows) for name, (target, shows) in slurm_faults.KINDS.items()),
)}

OF_OWN_STORE = {"api-slow", "store-full"}
OF_KUBERNETES = {"node-down", "pod-killed", "api-slow", "store-full"}


def held(env: Environment) -> list[Fault]:
    """The faults that are held now, oldest first."""
    return [Fault(**fault) for fault in env.record.faults]


def cause(env: Environment, kind: str, target: str = "") -> Fault:
    """Causes one. Raises BadInput for an unknown kind or target, EnvironmentBroken if the environment cannot be changed."""
    known = KINDS.get(kind)
    if known is None:
        raise BadInput("kind", kind, "is no fault", f"one of: {', '.join(KINDS)}")
    if bool(target) != bool(known.target):
        raise BadInput("target", target, f"{kind} {'needs a ' + known.target if known.target else 'takes no target'}", "orchlab fault list")
    with env.lock(progress=None):
        env = Environment.load(env.name)
        fault = Fault(kind, target)
        _check(env, fault)
        if known.lasting and fault not in held(env):
            # Marked first: should anything below be interrupted, `clear` still knows of it.
            env.record.faults.append(vars(fault))
            env.save()
        _ACTIONS[kind][0](env, target)
    return fault


def clear(env: Environment, kind: str | None = None, target: str = "") -> list[Fault]:
    """Clears one kind (one target of it, if named), or all. Returns what was cleared."""
    if kind is not None and kind not in KINDS:
        raise BadInput("kind", kind, "is no fault", f"one of: {', '.join(KINDS)}")
    with env.lock(progress=None):
        env = Environment.load(env.name)
        wanted = [fault for fault in held(env) if kind in (None, fault.kind) and target in ("", fault.target)]
        # Daemons first: clearing the others needs them.
        for fault in sorted(wanted, key=lambda fault: fault.kind != "daemon-down"):
            env.record.faults.remove(vars(fault))
            env.save()
            _ACTIONS[fault.kind][1](env, fault.target)
    return wanted


def _check(env: Environment, fault: Fault) -> None:
    if env.record.kubernetes == "none" and fault.kind in OF_KUBERNETES:
        raise BadInput("kind", fault.kind, f"is of Kubernetes, and environment {env.name!r} has none",
                       f"orchlab up --name {env.name} --kubernetes local")
    if env.record.slurm == "existing" and (fault.kind in slurm_faults.KINDS or env.record.kubernetes == "none"):
        raise BadInput("kind", fault.kind, "the Slurm of this environment is an existing cluster, which orchlab never changes",
                       "break one of your own: orchlab up --name broken --kubernetes none --slurm local")
    if env.record.kubernetes == "kind" and fault.kind in OF_OWN_STORE:
        raise BadInput("kind", fault.kind, "needs etcd as a process of this environment, and on kind it is a pod of the cluster's",
                       "use an environment with --kubernetes local")
    if fault.kind == "daemon-down":
        names = daemons.names(env)
        if fault.target not in names:
            raise BadInput("target", fault.target, "is no process of this environment", f"one of: {', '.join(names)}")
    elif fault.kind == "node-down":
        names = [node.name for node in env.fleet.nodes()]
        if fault.target not in names:
            raise BadInput("target", fault.target, "is no simulated node of this environment", f"one of: {', '.join(names)}")
    elif fault.kind == "driver-broken":
        names = [node.name for node in env.fleet.nodes() if node.gpus]
        if fault.target not in names:
            raise BadInput("target", fault.target, "is no simulated node with GPUs", f"one of: {', '.join(names)}")
    elif fault.kind == "xid":
        _gpu(env, fault.target)
    elif fault.kind in slurm_faults.KINDS:
        slurm_faults.check(env, fault.kind, fault.target)
    elif fault.kind == "pod-killed" and fault.target.count("/") != 1:
        raise BadInput("target", fault.target, "is not namespace/pod", "for example: default/trainer-0")
    if not env.running():
        raise EnvironmentBroken(f"environment {env.name!r} is not running", f"orchlab up --name {env.name}")


# -- one pair of actions a kind


def _stop_daemon(env: Environment, name: str) -> None:
    daemons.stop(env, name)


def _start_daemon(env: Environment, name: str) -> None:
    daemons.start(env, name, SECONDS)


def _noted(env: Environment, name: str) -> None:
    """The simulator and the GPU Operator read the record: they let go of the node, or take it back."""


def _stop_node(env: Environment, name: str) -> None:
    """On kind a real node's container is paused; a simulated node's kubelet falls silent by the record."""
    if container := _container(env, name):
        container.pause(name)


def _start_node(env: Environment, name: str) -> None:
    if container := _container(env, name):
        container.resume(name)


def _container(env: Environment, node: str) -> kind_nodes.RealNodes | None:
    found = kind_nodes.of(env) if env.record.kubernetes == "kind" else None
    return found if found and node in found.workers else None


def _gpu(env: Environment, target: str) -> tuple[str, int, int]:
    """(node, index, XID) of NODE/INDEX or NODE/INDEX:XID. Raises BadInput."""
    match = re.fullmatch(r"([^/:]+)/(\d+)(?::(\d+))?", target)
    if match is None:
        raise BadInput("target", target, "is not NODE/INDEX or NODE/INDEX:XID", "for example: h100-0/3 or h100-0/3:79")
    gpus = {node.name: node.gpus for node in env.fleet.nodes() if node.gpus}
    node, index, xid = match[1], int(match[2]), int(match[3] or DEFAULT_XID)
    if node not in gpus:
        raise BadInput("target", target, f"{node} is no simulated node with GPUs", f"one of: {', '.join(gpus)}")
    if index >= gpus[node]:
        raise BadInput("target", target, f"{node} has the GPUs 0 to {gpus[node] - 1}", f"for example: {node}/0")
    return node, index, xid


def _report_xid(env: Environment, target: str) -> None:
    from orchlab.gpu_operator.names import XID

    node, index, xid = _gpu(env, target)
    client, path = env.client(), f"/api/v1/nodes/{node}"
    # One that the operator has not taken up yet stays.
    known = json.loads((client.get(path)["metadata"].get("annotations") or {}).get(XID, "{}"))
    client.patch(path, {"metadata": {"annotations": {XID: json.dumps(known | {str(index): xid})}}})


def _kill_pod(env: Environment, target: str) -> None:
    from orchlab.simulator.pods import KILLED, NEXT

    namespace, _, name = target.partition("/")
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    client = env.client()
    pod = client.find(path)
    if pod is None:
        raise BadInput("target", target, "there is no such pod", "kubectl get pods -A")
    if pod["status"].get("phase") != "Running":
        raise BadInput("target", target, f"is {pod['status'].get('phase')}, so nothing runs in it that could be killed")
    if real := _container(env, pod["spec"]["nodeName"]):
        real.kill(pod["spec"]["nodeName"], namespace, name)
        return
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    count = pod["status"]["containerStatuses"][0]["restartCount"]
    client.patch(path, {"metadata": {"annotations": {KILLED: str(count)}}})
    condition = {"type": NEXT, "status": "True", "reason": "RunsUntil", "message": now}
    client.patch(f"{path}/status", {"status": {"conditions": [condition]}}, STRATEGIC)


def _pause_store(env: Environment, _: str) -> None:
    """The backend declares the pausing process while the fault is held: what runs is brought in line with that."""
    env.supervisor.start(env.specs(), base_variables(env.folder), env.held())


def _alarm(env: Environment, action: str) -> None:
    """etcd's own alarm, over its JSON gateway (etcdserverpb.AlarmRequest)."""
    pki = env.folder / "pki"
    context = ssl.create_default_context(cafile=str(pki / "etcd-ca.crt"))
    context.load_cert_chain(pki / "apiserver-etcd.crt", pki / "apiserver-etcd.key")
    connection = http.client.HTTPSConnection("127.0.0.1", env.port("etcd"), timeout=SECONDS, context=context)
    try:
        connection.request("POST", "/v3/maintenance/alarm", json.dumps({"action": action, "memberID": "0", "alarm": "NOSPACE"}))
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except OSError as error:
        raise EnvironmentBroken(f"etcd does not answer: {error}", "orchlab status") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise EnvironmentBroken(f"etcd refuses the alarm: {text}", "orchlab logs etcd")


def _fill_store(env: Environment, _: str) -> None:
    _alarm(env, "ACTIVATE")


def _empty_store(env: Environment, _: str) -> None:
    _alarm(env, "DEACTIVATE")
    _until(lambda: env.client().patch("/api/v1/namespaces/default", {"metadata": {"annotations": {"orchlab/writes": str(time.time())}}}),
           "the store does not take writes again")


def _until(task: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            task()
            return
        except (ApiError, EnvironmentBroken) as error:
            if time.monotonic() > deadline:
                raise TimeLimitReached(f"{what} after {SECONDS} s: {error}", "orchlab status") from None
        time.sleep(0.2)


_ACTIONS: dict[str, tuple[Callable, Callable]] = {
    "daemon-down": (_stop_daemon, _start_daemon),
    "node-down": (_stop_node, _start_node),
    "xid": (_report_xid, _noted),
    "driver-broken": (_noted, _noted),
    "pod-killed": (_kill_pod, _noted),
    "api-slow": (_pause_store, _pause_store),
    "store-full": (_fill_store, _empty_store),
    **slurm_faults.ACTIONS,
}
