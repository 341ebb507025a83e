"""Why a pod, a Job, a Deployment or a ReplicaSet does not run, and what the API server would refuse: cause, evidence, remedy.

The one way in for a cluster; what is decided, and from what, is in the modules why_*.py beside it, which know no cluster. A cluster is only
read: GET, LIST and creates by server dry-run. What fits no cause that is known is answered with "I don't know".
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from orchlab.diagnosis import Diagnosis
from orchlab.errors import ApiError, BadInput
from orchlab.kube import why_owners as owners
from orchlab.kube import why_refused
from orchlab.kube.client import Client
from orchlab.kube.why_facts import PATHS, Facts, controller
from orchlab.kube.why_holders import workload

# What can be asked about: (list, kind).
KINDS = {name: found for names, found in (
    (("pod", "pods", "po"), ("pods", "Pod")), (("job", "jobs"), ("jobs", "Job")),
    (("deploy", "deployment", "deployments"), ("deployments", "Deployment")), (("rs", "replicaset", "replicasets"), ("replicasets", "ReplicaSet")),
    (("node", "nodes", "no"), ("nodes", "Node"))) for name in names}
FORMS = ("pod/NAME", "job/NAME", "deploy/NAME", "rs/NAME", "node/NAME")
# When all is asked about, pods are looked at node by node as long as nodes times groups of pods stay below this; the rest is told from the
# scheduler's words. About two seconds on one core.
CELLS = 20_000

Answers = list[tuple[str, Diagnosis]]


class ReadOnly(Client):
    """A client that refuses to change anything: for clusters of somebody else's, and for the others as well."""

    def __init__(self, client: Client) -> None:
        self.__dict__.update(client.__dict__)

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json", timeout: float = 10,
                **query: object) -> dict:
        """As Client's; raises BadInput for whatever is neither GET nor a create by dry-run."""
        if method != "GET" and (method, query.get("dryRun")) != ("POST", "All"):
            raise BadInput("method", method, f"would change {path}", "orchlab why only looks")
        return super().request(method, path, body, content_type, timeout, **query)


def ask(client: Client, kind: str, name: str, namespace: str = "") -> Answers:
    """Answers about one object, in each namespace that has one of that name if none is given. Raises BadInput if there is none."""
    client = ReadOnly(client)
    listed, word = KINDS[kind]
    found = _named(client, listed, name, namespace)
    if not found:
        where = f"in namespace {namespace}" if namespace and listed != "nodes" else "in this cluster"
        raise BadInput(f"{kind}/{name}", name, f"is no {word} {where}", f"kubectl get {listed}{'' if listed == 'nodes' else ' -A'} lists them")
    answers = []
    for one in found:
        facts = Facts.from_cluster(client, one["metadata"].get("namespace", ""))
        answers += [(_target(kind, one), diagnosis) for diagnosis in about(facts, one)]
    return answers


def about(facts: Facts, one: dict) -> list[Diagnosis]:
    """Answers about one raw object with its `kind`: the pure core."""
    explain: dict[str, Callable[[Facts, dict], list[Diagnosis]]] = {
        "Pod": lambda facts, one: [owners.pod(facts, one)], "Job": owners.job, "Node": lambda facts, one: [owners.node(facts, one)]}
    return explain.get(one["kind"], owners.replicas)(facts, one)


def everything(client: Client, namespace: str = "") -> Answers:
    """Answers about all that does not run, in a namespace or in all: see `overview`."""
    return overview(Facts.from_cluster(ReadOnly(client), namespace), namespace)


def overview(facts: Facts, namespace: str = "") -> Answers:
    """Pods that do not run, oldest first and one answer for those that are alike; controllers that make no pods; nodes out of service."""
    def mine(one: dict) -> bool:
        return namespace in ("", one["metadata"].get("namespace", ""))

    # What a Job's failed pods mean is told by the Job.
    bad = [one for one in facts["pods"] if mine(one) and owners.troubled(one)
           and not ((one.get("status") or {}).get("phase") == "Failed" and controller(one) and not one["metadata"].get("deletionTimestamp"))]
    bad.sort(key=lambda one: (one["metadata"].get("creationTimestamp") or "", one["metadata"]["name"]))
    answers: Answers = []
    cells = 0
    for group in owners.alike(bad, facts):
        cells += 0 if group[0]["spec"].get("nodeName") else len(facts["nodes"])
        found = owners.pod(facts, group[0], cells <= CELLS)
        names = [one["metadata"]["name"] for one in group]
        kind, made_by = workload(group[0])
        whose = "" if kind == "Pod" else f" of {made_by}"
        more = [f"the same holds for {len(group) - 1} more{whose}: {', '.join(names[1:5])}{' …' if len(names) > 5 else ''}"]
        if found.cause in NOT_WRONG:
            continue
        evidence = [*found.evidence, *(more if len(group) > 1 else [])]
        answers.append((_target("pod", group[0]), Diagnosis(found.cause, evidence, found.remedy, found.known)))
    for kind, listed, explain in (("job", "jobs", owners.job), ("deploy", "deployments", owners.replicas), ("rs", "replicasets", owners.replicas)):
        for one in facts[listed]:
            if mine(one) and _makes_none(one, facts) and not (kind == "rs" and controller(one)):
                answers += [(_target(kind, one), found) for found in explain(facts, one)[:1]]
    answers += [(_target("node", one), owners.node(facts, one)) for one in facts["nodes"] if owners.broken(one)]
    return answers


def refused(client: Client, text: str, source: str, namespace: str = "default") -> Answers:
    """What the API server would refuse of a manifest, object by object: ("pod/train", …). Raises BadInput."""
    return why_refused.tried(ReadOnly(client), text, source, namespace)


NOT_WRONG = ("It runs; nothing is wrong.",)


def _makes_none(one: dict, facts: Facts) -> bool:
    """Whether a controller itself says why it has too few pods: then its pods cannot tell."""
    spec, status = one.get("spec") or {}, one.get("status") or {}
    true = {part["type"] for part in status.get("conditions") or [] if part["status"] == "True"}
    if one.get("kind") == "Job":
        wants = min(spec.get("parallelism", 1), (spec.get("completions") or spec.get("parallelism", 1)) - status.get("succeeded", 0))
        return not true & {"Complete"} and bool(
            true & {"Failed", "Suspended"} or spec.get("suspend") or (status.get("active", 0) < wants and facts.events(one, "FailedCreate")))
    return "ReplicaFailure" in true


def _named(client: Client, listed: str, name: str, namespace: str) -> list[dict]:
    path = PATHS[listed]
    if namespace and listed != "nodes":
        head, _, plural = path.rpartition("/")
        path = f"{head}/namespaces/{quote(namespace)}/{plural}"
    try:
        return client.list(path, fieldSelector=f"metadata.name={name}")[0]
    except ApiError as error:
        if error.status == 403 and not namespace:
            raise BadInput("-n", namespace, f"looking in all namespaces is not allowed: {error}", "name one: -n NAMESPACE") from None
        raise


def _target(kind: str, one: dict) -> str:
    """As it can be asked for again: pod/train -n team-a."""
    namespace = one["metadata"].get("namespace")
    return f"{kind}/{one['metadata']['name']}" + (f" -n {namespace}" if namespace else "")
