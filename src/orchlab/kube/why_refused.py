"""What the API server refuses, and why: its messages explained, and files tried by server dry-run. Nothing is stored.

Messages are those of kube-apiserver's validation and admission plugins (ResourceQuota, LimitRanger, Priority, RuntimeClass, ServiceAccount,
PodSecurity, webhooks), 1.37.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import yaml

from orchlab.diagnosis import Diagnosis, unknown
from orchlab.errors import ApiError, BadInput
from orchlab.kube import why_causes as causes
from orchlab.kube import why_match as match
from orchlab.kube.client import Client, base_path
from orchlab.kube.why_facts import Facts

LARGEST = 1024 * 1024
SECONDS = 15
RESOURCES = r"[a-z0-9./-]+"

# Message: (cause, remedy), filled in with the pattern's groups.
REFUSED: tuple[tuple[str, str, str], ...] = (
    (rf"(?P<field>[\w.\[\]]+): Invalid value: \"?(?P<value>[^\":]+)\"?: must be equal to (?P<r>{RESOURCES}) limit of (?P<limit>[^\s,\]]+)",
     "It requests {value} {r} with a limit of {limit}: the two must be equal for an extended resource.",
     "give limits only (the request is copied), or the same number in both"),
    (rf"limits\[(?P<r>{RESOURCES})\]: Invalid value: \"?(?P<value>[^\":]+)\"?: must be an integer",
     "It asks for {value} {r}: extended resources are whole numbers.",
     "ask for whole devices; a part of a GPU is a MIG instance (nvidia.com/mig-…) or a replica of a shared GPU"),
    (r"Limit must be set for non overcommitable resources",
     "It requests an extended resource without a limit for it.", "put the number into resources.limits; requests may be left out"),
    (rf"\[(?P<r>{RESOURCES})\]: Invalid value: \"[^\"]+\": must be a standard resource",
     "There is no resource named {r}: names other than cpu, memory and the like need a domain.", "for GPUs: nvidia.com/gpu"),
    (rf"must be less than or equal to (?P<r>{RESOURCES}) limit of (?P<limit>[^\s,\]]+)",
     "It requests more {r} than its limit of {limit}.", "raise the limit, or request less"),
    (r"exceeded quota: (?P<quota>\S+), requested: (?P<asked>\S+), used: (?P<used>\S+), limited: (?P<limit>\S+)",
     "It would exceed ResourceQuota {quota} of its namespace: requested {asked}, used {used}, limit {limit}.",
     "wait until pods of the namespace end, ask for less, or have the quota raised; kubectl describe quota"),
    (r"failed quota: (?P<quota>\S+): must specify (?P<what>.+?)(?: for: (?P<who>.+))?$",
     "ResourceQuota {quota} of its namespace counts {what}, which it does not say.", "put {what} into each container's resources; a LimitRange can set defaults"),
    (r"insufficient quota to match these scopes: (?P<scopes>.+)$",
     "Pods like it are only allowed in a namespace with a ResourceQuota for their scope ({scopes}).",
     "use another PriorityClass, or a namespace whose quota has that scope"),
    (rf"(?P<which>maximum|minimum) (?P<r>{RESOURCES}) usage per (?P<what>\w+) is (?P<limit>[^\s,\]]+?), but (?P<kind>limit|request) is"
     r" (?P<value>[^\s,\]]+?)\.?(?=[\s,\]]|$)",
     "A LimitRange of its namespace sets the {which} of {r} per {what} to {limit}, and its {kind} is {value}.",
     "keep within it; kubectl describe limitrange"),
    (rf"(?P<which>maximum|minimum) (?P<r>{RESOURCES}) usage per (?P<what>\w+) is (?P<limit>[^\s,\]]+?)\.\s+No (?P<kind>limit|request) is specified",
     "A LimitRange of its namespace sets the {which} of {r} per {what} to {limit}, and it gives no {kind}.", "give one; kubectl describe limitrange"),
    (rf"(?P<r>{RESOURCES}) max limit to request ratio per (?P<what>\w+) is (?P<limit>[^\s,\]]+)",
     "A LimitRange of its namespace allows a limit of at most {limit} times the request of {r} per {what}.", "bring limit and request closer together"),
    (r"error looking up service account (?P<name>\S+): ", "Its ServiceAccount {name} does not exist.",
     "kubectl create serviceaccount, or correct serviceAccountName; right after a namespace is made, wait a moment"),
    (r"no PriorityClass with name (?P<name>\S+) was found", "Its PriorityClass {name} does not exist.",
     "kubectl get priorityclass lists them; correct priorityClassName"),
    (r"RuntimeClass \"(?P<name>[^\"]+)\" not found", "Its RuntimeClass {name} does not exist.",
     "kubectl get runtimeclass lists them; the GPU Operator makes nvidia; or leave runtimeClassName out"),
    (r"violates PodSecurity \"(?P<level>[^\"]+)\": (?P<what>.+)$", "Its namespace enforces the Pod Security level {level}, which it does not keep.",
     "set what the message asks for in securityContext, or use another namespace"),
    (r"admission webhook \"(?P<name>[^\"]+)\" denied the request", "The admission webhook {name} refuses it.", "its message says why; ask whoever runs it"),
    (r"failed calling webhook \"(?P<name>[^\"]+)\"", "The admission webhook {name} does not answer, and nothing is let in without it.",
     "bring the webhook's pods back; kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"),
    (r"ValidatingAdmissionPolicy '(?P<name>[^']+)'.* denied request", "The ValidatingAdmissionPolicy {name} refuses it.", "its message says why"),
    (r"namespaces \"(?P<name>[^\"]+)\" not found", "The namespace {name} does not exist.", "kubectl create namespace, or another -n"),
    (r"unable to create new content in namespace (?P<name>\S+) because it is being terminated", "The namespace {name} is being deleted.",
     "wait and make it again, or use another"),
    (r"User \"(?P<user>[^\"]+)\" cannot (?P<verb>\w+) resource \"(?P<what>[^\"]+)\"", "User {user} may not {verb} {what} there.",
     "kubectl auth can-i --list; ask for a Role"),
    (r"strict decoding error: (?P<what>.+)$", "It has fields that the API does not know: {what}.", "correct their names and places; kubectl explain"),
    (r"field is immutable", "It changes a field that cannot be changed.", "delete the object and make it anew"),
    (r"is invalid: (?P<what>.+)$", "The API server finds it invalid: {what}.", "correct the field that it names; kubectl explain"),
)


def refusal(message: str, facts: Facts | None = None, namespace: str = "") -> Diagnosis:
    """Why the API server refused something, from its message, or from a FailedCreate event's. `facts` adds what its quota counts."""
    text = message.removeprefix("(combined from similar events): ").removeprefix("Error creating: ").strip()
    for pattern, cause, remedy in REFUSED:
        if found := re.search(pattern, text, re.DOTALL):
            values = {name: value or "" for name, value in found.groupdict().items()}
            evidence = [f"the API server says: {text}"]
            if facts is not None and "quota" in values:
                evidence += _quota(facts, values["quota"], namespace)
            return Diagnosis(cause.format(**values), evidence, remedy.format(**values))
    return unknown([f"the API server says: {text}"], "kubectl describe the object that should make it")


def _quota(facts: Facts, name: str, namespace: str) -> Iterator[str]:
    quota = facts.find("resourcequotas", name, namespace)
    if quota is None:
        return
    status, spec = quota.get("status") or {}, quota.get("spec") or {}
    yield f"quota {name}: " + ", ".join(f"{resource} {(status.get('used') or {}).get(resource, 0)} of {hard}"
                                       for resource, hard in sorted((status.get("hard") or spec.get("hard") or {}).items()))
    scopes = [*(spec.get("scopes") or []), *(f"{one['scopeName']} {one['operator']} {' '.join(one.get('values') or [])}".strip()
                                            for one in (spec.get("scopeSelector") or {}).get("matchExpressions") or [])]
    if scopes:
        yield f"it counts only pods with {', '.join(scopes)}"


# -- files


def objects(text: str, source: str) -> list[dict]:
    """The objects of a YAML or JSON file, a List taken apart. Raises BadInput for what is no manifest."""
    if len(text) > LARGEST:
        raise BadInput("-f", source, "is larger than 1 MiB", "try its parts one by one")
    try:
        found = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise BadInput("-f", source, f"is not YAML: {f'line {mark.line + 1}: ' if mark else ''}{getattr(error, 'problem', error)}") from None
    found = [part for one in found for part in (one.get("items") or [] if isinstance(one, dict) and one.get("kind") == "List" else [one])]
    for one in found:
        if not isinstance(one, dict) or not one.get("apiVersion") or not one.get("kind") or not isinstance(one.get("metadata"), dict):
            raise BadInput("-f", source, "is neither a batch script (which begins with #!) nor a manifest: apiVersion, kind and metadata are required")
    if not found:
        raise BadInput("-f", source, "holds no object")
    return found


def tried(client: Client, text: str, source: str, namespace: str = "default") -> list[tuple[str, Diagnosis]]:
    """For each object of a file what the API server would refuse of it, and of the pods that it would make; for what it takes, whether a
    node could take such a pod now. Only dry-run requests. Raises BadInput."""
    return [(f"{one['kind'].lower()}/{one['metadata'].get('name') or one['metadata'].get('generateName', '')}", _tried(client, one, namespace))
            for one in objects(text, source)]


def _tried(client: Client, obj: dict, namespace: str) -> Diagnosis:
    where = obj["metadata"].get("namespace") or namespace
    facts = Facts.from_cluster(client, where)
    try:
        answer = _dry_run(client, obj, where)
    except ApiError as error:
        return refusal(str(error), facts, where)
    except BadInput as error:
        return Diagnosis(f"The cluster serves no {obj['apiVersion']} {obj['kind']}.", [str(error)], "kubectl api-resources; is its CRD installed?")
    template, copies = _template(answer)
    seen = ["nothing was stored: server dry-run"]
    if template is None:
        return Diagnosis("The API server finds nothing to refuse.", seen, "kubectl apply -f it")
    if answer["kind"] != "Pod":
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**(template.get("metadata") or {}), "generateName": "why-", "namespace": where},
               "spec": template.get("spec") or {}}
        pod["metadata"].pop("name", None)
        try:
            answer = _dry_run(client, pod, where)
        except ApiError as error:
            found = refusal(str(error), facts, where)
            return Diagnosis(found.cause, ["the object itself would be taken, its pods would be refused", *found.evidence, *seen], found.remedy, found.known)
    if short := _quota_short(facts, answer, copies, where):
        return Diagnosis(short, seen, "fewer copies, or have the quota raised; kubectl describe quota")
    nowhere = None if facts.missing else causes.could_start(facts, answer)
    if nowhere is None:
        return Diagnosis("The API server finds nothing to refuse.", seen, "kubectl apply -f it; if its pods wait: orchlab why pod/NAME")
    return Diagnosis(f"The API server would take it, but no node could take its pod now: {nowhere.cause}", [*seen, *nowhere.evidence], nowhere.remedy,
                     nowhere.known)


def _dry_run(client: Client, obj: dict, namespace: str) -> dict:
    """The object as the API server would store it. Raises ApiError, and BadInput for a kind that it does not serve."""
    plural, namespaced = client.resource(obj["apiVersion"], obj["kind"])
    path = base_path(obj["apiVersion"]) + (f"/namespaces/{namespace}" if namespaced else "") + f"/{plural}"
    query = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "orchlab-why"}
    try:
        return client.request("POST", path, obj, timeout=SECONDS, **query)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
    # It is there already: the question is about one more like it.
    again = json.loads(json.dumps(obj))
    again["metadata"]["generateName"] = again["metadata"].pop("name")[:50] + "-"
    return client.request("POST", path, again, timeout=SECONDS, **query)


def _template(obj: dict) -> tuple[dict | None, int]:
    """(pod or pod template, how many at once) of what an object makes; (None, 0) for what makes no pods."""
    spec = obj.get("spec") or {}
    if obj["kind"] == "Pod":
        return obj, 1
    if obj["kind"] == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    template = spec.get("template")
    if not isinstance(template, dict) or "containers" not in (template.get("spec") or {}):
        return None, 0
    return template, spec.get("parallelism", spec.get("replicas", 1))


def _quota_short(facts: Facts, pod: dict, copies: int, namespace: str) -> str:
    """A cause if a quota without scopes has room for some of the copies only."""
    wanted = match.requests(pod)
    for quota in facts["resourcequotas"] if copies > 1 else []:
        status, spec = quota.get("status") or {}, quota.get("spec") or {}
        if quota["metadata"].get("namespace") != namespace or spec.get("scopes") or spec.get("scopeSelector"):
            continue
        for name, hard in (status.get("hard") or {}).items():
            each = 1000 if name == "pods" else wanted.get(name.removeprefix("requests."), 0)
            left = match.amount(hard) - match.amount((status.get("used") or {}).get(name, 0))
            if each and each * copies > left:
                return (f"ResourceQuota {quota['metadata']['name']} has room for {max(0, left) // each} of its {copies} pods:"
                        f" {match.shown(name, left)} {name} are left of {hard}, each pod takes {match.shown(name, each)}.")
    return ""
