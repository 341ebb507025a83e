"""Back to a lab's start, however broken its cluster is: environment healed, nodes as the fleet has them, namespaces empty."""

from __future__ import annotations

import re
import shutil
import time
from typing import Any

from orchlab import environment, faults
from orchlab.course import fleets, slurm_reset, slurm_side
from orchlab.course.folder import LabFolder
from orchlab.course.place import Place
from orchlab.errors import ApiError, EnvironmentBroken, OrchlabError, TimeLimitReached
from orchlab.fleet_nodes import FleetNode
from orchlab.gpu_operator import restore as operator
from orchlab.gpu_operator.names import is_owned
from orchlab.kube import addons
from orchlab.kube.objects import is_ready

SECONDS = 60
EVERY = 0.1
KIND_SECONDS = 120
ENGINE_SECONDS = 30
NOT_OURS = {"Namespace", "Node", "ClusterPolicy"}
BY_CONDITION = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
RENEWED = {("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}


def cluster(lab: LabFolder, name: str = "default", seconds: float = SECONDS) -> list[str]:
    """Resets the lab's cluster state in environment `name` and takes down the environments that the lab brings up by itself. Returns
    what was done, one line each. Other namespaces, notebooks and progress are left alone. Raises what `environment.up` raises, and
    TimeLimitReached when the namespace cannot be emptied."""
    deadline = time.monotonic() + seconds
    done = []
    for own in lab.file.environments:
        if environment.down(own, purge=True):
            done.append(f"environment {own}: down and removed")
    # Out of the record first: `up` need not bring up what goes. Then what they left in the cluster: their webhooks and finalizers would be in
    # the way of emptying namespaces.
    gone = addons.forget(name)
    _heal(name)
    gone = dict.fromkeys([*gone, *addons.sweep(environment.Environment.load(name), max(ENGINE_SECONDS, deadline - time.monotonic()))])
    done.append(f"environment {name}: up and healthy")
    done += [f"engine {engine}: removed" for engine in gone]
    if changed := fleets.enter(lab, name):
        done.append(changed)
    place = Place(name, lab.namespace)
    if "slurm" in lab.file.backends:
        slurm_side.require(place.env)
        done += slurm_reset.cluster(place.env, lab, seconds)
    else:
        # lab.start notes there what it has broken.
        shutil.rmtree(place.env.folder / "work" / lab.namespace, ignore_errors=True)
    return done + (_kubernetes(lab, place, deadline) if "kubernetes" in lab.file.backends else [])


def _kubernetes(lab: LabFolder, place: Place, deadline: float) -> list[str]:
    done = []
    ours = place.env.record.kubernetes in ("local", "kind")
    if place.env.record.kubernetes == "kind":
        # Real kubelets start and end real containers.
        deadline += KIND_SECONDS
    if ours and (count := _restore_nodes(place)):
        done.append(f"nodes: {count} put back as the fleet has them")
    if count := _remove_cluster_wide(place, f"orchlab-{lab.namespace}"):
        done.append(f"cluster-wide objects of this lab: {count} removed")
    for space in lab.namespaces:
        own = Place(place.env.name, space)
        _empty_namespace(own, deadline)
        own.ensure_namespace()
    if ours:
        _await_nodes(place, deadline)
        # Now that nothing of the lab's holds a GPU any more.
        gpus = {node.name: node.gpus for node in place.env.fleet.nodes() if node.gpus}
        done += operator.restore(place.client, gpus, deadline,
                                 f"orchlab down --purge --name {place.env.name}, then orchlab up --name {place.env.name}")
    return [*done, *(f"namespace {space}: empty" for space in lab.namespaces)]


def others(lab: LabFolder, name: str, seconds: float = SECONDS) -> None:
    """Empties the namespaces of all other labs in environment `name`: for runs whose outputs are compared with others. Raises
    TimeLimitReached."""
    place = Place(name, lab.namespace)
    if place.env.record.kubernetes == "none":
        return
    for found in _list(place, "/api/v1/namespaces"):
        space = found["metadata"]["name"]
        if re.fullmatch(r"lab-\d\d(-.+)?", space) and space not in lab.namespaces:
            _empty_namespace(Place(name, space), time.monotonic() + seconds)


def _heal(name: str) -> None:
    """Faults are cleared first, since `up` respects them; `up` heals daemons. Nodes that were deleted come back when the simulator starts,
    as a machine registers when it boots."""
    try:
        env = environment.Environment.load(name)
        if env.running():
            faults.clear(env)
            if slurm_reset.has_slurm(env):
                slurm_reset.before_up(env)
        if env.record.kubernetes == "local" and env.supervisor.running() and not _all_nodes_there(env):
            env.supervisor.stop_process("simulator")
    except OrchlabError:
        pass  # no environment yet, a damaged record, a daemon that does not come back: `up` mends it or says why not
    environment.up(name)


def _all_nodes_there(env: environment.Environment) -> bool:
    try:
        there = {node["metadata"]["name"] for node in env.client().list("/api/v1/nodes", timeout=3)[0]}
    except (ApiError, EnvironmentBroken):
        return False
    return {node.name for node in env.fleet.nodes()} <= there


def _restore_nodes(place: Place) -> int:
    """Labels, taints and cordons as the fleet has them, and no other nodes. Returns how many had to be changed."""
    wanted = {node.name: node for node in place.env.nodes()}
    count = 0
    for found in _list(place, "/api/v1/nodes"):
        name = found["metadata"]["name"]
        path = f"/api/v1/nodes/{name}"
        if CONTROL_PLANE in (found["metadata"].get("labels") or {}):
            # Not the fleet's; but `kubectl cordon` of all nodes is one of it too.
            if found["spec"].get("unschedulable"):
                place.client.patch(path, {"spec": {"unschedulable": None}})
                count += 1
            continue
        if name not in wanted:
            _try(place, "DELETE", path)
            count += 1
        elif change := _difference(found, wanted[name]):
            place.client.patch(path, change)
            count += 1
    return count


def _difference(found: dict[str, Any], wanted: FleetNode) -> dict[str, Any]:
    """The merge patch that makes a node what the fleet says. What Kubernetes itself adds (beta labels, taints by condition) and
    what the GPU Operator sees to on nodes with GPUs stays."""
    labels, right = found["metadata"].get("labels") or {}, wanted.labels
    seen_to = {key for key in labels if key.startswith("beta.kubernetes.io/") or (wanted.gpus and is_owned(key))}
    extra = {key: None for key in labels.keys() - right.keys() - seen_to}
    missing = {key: value for key, value in right.items() if labels.get(key) != value}
    taints = found["spec"].get("taints") or []
    own = [
        taint for taint in taints if taint["key"].startswith("node.kubernetes.io/") and taint["key"] != "node.kubernetes.io/unschedulable"
    ]
    fleet = [{"key": t.key, "effect": t.effect, **({"value": t.value} if t.value else {})} for t in wanted.taints]
    there = [{key: value for key, value in taint.items() if key != "timeAdded"} for taint in taints if taint not in own]
    spec: dict[str, Any] = {}
    if found["spec"].get("unschedulable"):
        spec["unschedulable"] = None
    if sorted(there, key=str) != sorted(fleet, key=str):
        spec["taints"] = fleet + own
    return ({"metadata": {"labels": extra | missing}} if extra or missing else {}) | ({"spec": spec} if spec else {})


def _await_nodes(place: Place, deadline: float) -> None:
    """Waits until every node is Ready and the controllers have taken back their taints: a node that was down or made anew may need a
    renewal of its lease. Raises TimeLimitReached."""
    while silent := sorted(node["metadata"]["name"] for node in _list(place, "/api/v1/nodes") if not _is_ready(node)):
        if time.monotonic() > deadline:
            raise TimeLimitReached(f"not Ready: {', '.join(silent)}",
                                   f"orchlab down --name {place.env.name}, then orchlab up --name {place.env.name}")
        time.sleep(EVERY)


def _is_ready(node: dict[str, Any]) -> bool:
    return is_ready(node) and not any(taint["key"] in BY_CONDITION for taint in node["spec"].get("taints") or [])


def _empty_namespace(place: Place, deadline: float) -> None:
    """Empties the namespace instead of deleting it, unless it is being deleted already: the namespace controller lets a deleted one wait
    for 5 s before it looks at it."""
    path = f"/api/v1/namespaces/{place.namespace}"
    found = place.get_path(path)
    if found is None:
        return
    kinds = [r for r in place.resources() if r.namespaced and {"deletecollection", "list"} <= r.verbs]
    pending, again = kinds, True
    while found and (pending or found["metadata"].get("deletionTimestamp")):
        pending = [r for r in pending if _sweep(place, r.path(place.namespace))]
        if pending:
            again = True
        elif again:
            # A controller may have made something anew before it saw that its owner is gone.
            pending, again = [r for r in kinds if _things(place, r.path(place.namespace))], False
        if (found := place.get_path(path)) and time.monotonic() > deadline:
            left = ", ".join(resource.plural for resource in pending) or "nothing that can be listed"
            raise TimeLimitReached(f"namespace {place.namespace} cannot be emptied; left in it: {left}",
                                   f"orchlab down --purge --name {place.env.name}, then orchlab up --name {place.env.name}")
        if found and (pending or found["metadata"].get("deletionTimestamp")):
            time.sleep(EVERY)
    if found:
        labels = {name: None for name in found["metadata"].get("labels") or {} if name != "kubernetes.io/metadata.name"}
        notes = {name: None for name in found["metadata"].get("annotations") or {}}
        if labels or notes:
            place.client.patch(path, {"metadata": {"labels": labels, "annotations": notes}})


def _sweep(place: Place, path: str) -> bool:
    """Deletes all objects of one kind at once, pods without a grace period: there is no kubelet whose word would be worth waiting for.
    Returns whether there were any."""
    there = _things(place, path)
    _try(place, "DELETE", path, gracePeriodSeconds=0, propagationPolicy="Background")
    for item in there:
        if item["metadata"].get("finalizers"):
            _try(place, "PATCH", f"{path}/{item['metadata']['name']}", {"metadata": {"finalizers": None}})
    return bool(there)


def _things(place: Place, path: str) -> list[dict[str, Any]]:
    """The objects at `path`, without events and without those that a controller makes anew in each namespace."""
    return [item for item in _list(place, path) if (item["kind"], item["metadata"]["name"]) not in RENEWED and item["kind"] != "Event"]


def _remove_cluster_wide(place: Place, manager: str) -> int:
    """Objects outside namespaces that the lab applied: they bear its field manager."""
    count = 0
    for resource in place.resources():
        if resource.namespaced or resource.kind in NOT_OURS or not {"list", "delete"} <= resource.verbs:
            continue
        path = resource.path("")
        for item in _list(place, path):
            if any(
                entry.get("manager") == manager and entry.get("operation") == "Apply"
                for entry in item["metadata"].get("managedFields") or []
            ):
                _try(place, "DELETE", f"{path}/{item['metadata']['name']}")
                count += 1
    return count


def _list(place: Place, path: str) -> list[dict[str, Any]]:
    try:
        return place.client.list(path)[0]
    except ApiError:  # gone meanwhile, or a kind whose server does not answer
        return []


def _try(place: Place, method: str, path: str, body: dict | None = None, **query: object) -> None:
    """For what may have happened already (404) or has to be tried again (409)."""
    try:
        place.client.request(method, path, body, "application/merge-patch+json" if method == "PATCH" else "application/json", **query)
    except ApiError as error:
        if error.status not in (404, 405, 409):
            raise
