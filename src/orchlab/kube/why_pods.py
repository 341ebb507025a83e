"""Why a pod that has a node does not run, or ended as it did: kubelet's words, container states, events, the node. Pure.

Reasons follow the kubelet's own (pkg/kubelet/images, kuberuntime, lifecycle) and the API's conditions of pods.
"""

from __future__ import annotations

import re

from orchlab.diagnosis import Diagnosis, unknown
from orchlab.kube import why_holders as holders
from orchlab.kube import why_match as match
from orchlab.kube.objects import DEVICES, _lists, is_ready
from orchlab.kube.why_causes import asks
from orchlab.kube.why_facts import Facts, full_name

# What a container waits for: (cause, remedy).
STATES = {
    "ErrImagePull": ("The image of container {name} cannot be pulled.", "correct the image's name and tag, or give imagePullSecrets"),
    "ImagePullBackOff": ("The image of container {name} cannot be pulled; the kubelet tries again at growing intervals.",
                         "correct the image's name and tag, or give imagePullSecrets"),
    "InvalidImageName": ("The image name of container {name} cannot be read.", "correct spec.containers[].image"),
    "ErrImageNeverPull": ("The image of container {name} is not on the node, and imagePullPolicy is Never.",
                          "use IfNotPresent, or put the image on the node"),
    "CreateContainerConfigError": ("Container {name} needs a ConfigMap, Secret or key that is not there.",
                                   "make it in the pod's namespace; the kubelet tries again by itself"),
    "CreateContainerError": ("The container runtime cannot make container {name}.", "its message says why; kubectl describe pod"),
    "RunContainerError": ("The container runtime cannot start container {name}.", "correct command and mounts; kubectl describe pod"),
}
# status.reason of a failed pod: (cause, remedy).
ENDED = {
    "Evicted": ("The kubelet evicted it because its node ran short of memory or disk.", "ask for what it uses, so that it goes where there is room"),
    "DeadlineExceeded": ("It ran longer than its activeDeadlineSeconds.", "raise the deadline, or do less in one pod"),
    "NodeShutdown": ("Its node was shut down.", "let a Job or Deployment make it, which starts another"),
    "Terminated": ("Its node was shut down.", "let a Job or Deployment make it, which starts another"),
    "NodeLost": ("Its node stopped answering.", "kubectl describe node"),
    "NodeAffinity": ("Its node no longer matched its node selector or affinity when the kubelet admitted it.", "delete it; its owner makes another"),
    "Preempting": ("The kubelet made room for a critical pod.", "delete it; its owner makes another"),
}
DISRUPTED = {
    "PreemptionByScheduler": ("The scheduler preempted it for a pod of higher priority.", "give it a higher PriorityClass, or let a Job start it again"),
    "DeletionByTaintManager": ("It was evicted because its node has a NoExecute taint that it does not tolerate.", "kubectl describe node"),
    "EvictionByEvictionAPI": ("Somebody evicted it through the API: a drain, for one.", "its owner makes another elsewhere"),
    "TerminationByKubelet": ("The kubelet ended it: shortage on the node, or its shutdown.", "kubectl describe pod"),
    "DeletionByPodGC": ("It was removed because its node is no more.", "its owner makes another elsewhere"),
}
_PLUGIN = re.compile(r"Allocate failed due to (?P<why>.*?), which is unexpected", re.DOTALL)


def placed(facts: Facts, pod: dict) -> Diagnosis:
    """For a pod with a node, whatever its phase."""
    status, node = pod.get("status") or {}, pod["spec"].get("nodeName", "")
    phase = status.get("phase", "Pending")
    seen = [f"pod {full_name(pod)} is {phase}{f' on {node}' if node else ''}" + (f", {status['reason']}" if status.get("reason") else "")]
    if status.get("message"):
        seen.append(f"status says: {status['message']}")
    if pod["metadata"].get("deletionTimestamp"):
        return _leaving(facts, pod, seen)
    if phase == "Succeeded":
        return Diagnosis("It ran and ended with exit status 0; nothing is wrong.", seen)
    if phase == "Failed":
        return _failed(facts, pod, seen)
    if (broken := _node(facts, pod, seen)) is not None:
        return broken
    if (stuck := _containers(facts, pod, seen)) is not None:
        return stuck
    if phase == "Running":
        return _running(facts, pod, seen)
    return _starting(facts, pod, seen)


def _leaving(facts: Facts, pod: dict, seen: list[str]) -> Diagnosis:
    metadata, node = pod["metadata"], facts.find("nodes", pod["spec"].get("nodeName", ""))
    seen = [*seen, f"deleted at {metadata['deletionTimestamp']} (its grace period is in that), grace {metadata.get('deletionGracePeriodSeconds', 0)} s"]
    disrupted = _condition(pod, "DisruptionTarget")
    why = [f"{disrupted.get('reason')}: {disrupted.get('message', '')}"] if disrupted else []
    if finalizers := metadata.get("finalizers"):
        return Diagnosis(f"It is deleted but stays until its finalizers are taken away: {', '.join(finalizers)}.", [*seen, *why],
                         "see to the controller that set them; as a last resort: kubectl patch pod NAME --type=merge -p"
                         " '{\"metadata\":{\"finalizers\":null}}'")
    if pod["spec"].get("nodeName") and node is not None and not is_ready(node):
        return Diagnosis(f"It is being deleted, but its node {node['metadata']['name']} does not answer: nobody confirms that it has stopped.",
                         [*seen, *why], "bring the node back; or kubectl delete pod NAME --force if the machine is surely off")
    return Diagnosis("It is terminating: its containers have until the end of the grace period to stop.", [*seen, *why], "wait")


def _failed(facts: Facts, pod: dict, seen: list[str]) -> Diagnosis:
    status = pod["status"]
    reason, message = status.get("reason", ""), status.get("message", "")
    if reason == "UnexpectedAdmissionError":
        found = _PLUGIN.search(message)
        return Diagnosis(f"The kubelet refused it: the device plugin could not give what it asks for{': ' + found['why'] if found else ''}.",
                         [*seen, f"it asks for {asks(pod)}"],
                         "it is not tried again: delete it, and let a controller make another; see the node's allocatable, the device plugin,"
                         " and failRequestsGreaterThanOne where GPUs are shared")
    if reason.startswith("OutOf"):
        return Diagnosis(f"The kubelet refused it: its node had too little {reason.removeprefix('OutOf')} left when it came.", seen,
                         "it is not tried again: delete it; a pod with spec.nodeName goes round the scheduler, which would have counted")
    if reason in ENDED:
        cause, remedy = ENDED[reason]
        return Diagnosis(cause, seen, remedy)
    disrupted = _condition(pod, "DisruptionTarget")
    if disrupted and disrupted.get("reason") in DISRUPTED:
        cause, remedy = DISRUPTED[disrupted["reason"]]
        return Diagnosis(cause, [*seen, disrupted.get("message", "")], remedy)
    for container in _statuses(pod):
        end = (container.get("state") or {}).get("terminated") or {}
        if end.get("reason") == "OOMKilled":
            return _oom(pod, container["name"], seen)
        if end.get("exitCode"):
            signal = f" (signal {end['exitCode'] - 128})" if end["exitCode"] > 128 else ""
            return Diagnosis(f"Container {container['name']} ended with exit status {end['exitCode']}{signal}.",
                             [*seen, *([end["message"]] if end.get("message") else [])], f"kubectl logs {pod['metadata']['name']} -c {container['name']}")
    return unknown([*seen, *_events(facts, pod)], "kubectl describe pod")


def _node(facts: Facts, pod: dict, seen: list[str]) -> Diagnosis | None:
    name = pod["spec"].get("nodeName", "")
    if "nodes" in facts.missing or not name:
        return None
    node = facts.find("nodes", name)
    if node is None:
        return Diagnosis(f"It is bound to node {name}, which there is not.", seen,
                         "delete it; leave spec.nodeName out, so that the scheduler chooses (nodeSelector narrows the choice)")
    if is_ready(node):
        return None
    condition = next((one for one in (node.get("status") or {}).get("conditions") or [] if one["type"] == "Ready"), {})
    taints = [match.taint_text(one) for one in (node["spec"].get("taints") or [])]
    return Diagnosis(f"Its node {name} is not ready: {condition.get('reason', 'no condition Ready')}.",
                     [*seen, f"node {name}: {condition.get('message', '')}", *([f"taints: {', '.join(taints)}"] if taints else [])],
                     "bring the node's kubelet back; after tolerationSeconds (300 by default) the pod is evicted, and its owner makes another")


def _containers(facts: Facts, pod: dict, seen: list[str]) -> Diagnosis | None:
    for container in _statuses(pod):
        state, name = container.get("state") or {}, container["name"]
        wait = state.get("waiting") or {}
        reason = wait.get("reason", "")
        said = [f"container {name}: {reason}" + (f": {wait['message']}" if wait.get("message") else "")]
        last = (container.get("lastState") or {}).get("terminated") or state.get("terminated") or {}
        if reason in STATES:
            cause, remedy = STATES[reason]
            return Diagnosis(cause.format(name=name), [*seen, *said, *_events(facts, pod, "Failed")], remedy)
        if reason == "CrashLoopBackOff" or (last.get("exitCode") and container.get("restartCount") and "running" not in state):
            said.append(f"{container.get('restartCount', 0)} restarts; the last run ended with {last.get('reason', '?')}, exit status {last.get('exitCode', '?')}")
            if last.get("reason") == "OOMKilled":
                return _oom(pod, name, [*seen, *said])
            return Diagnosis(f"Container {name} ends again and again (exit status {last.get('exitCode', '?')}); the kubelet waits longer before"
                             " each start.", [*seen, *said, *shares(facts, pod)], f"kubectl logs {pod['metadata']['name']} -c {name} --previous")
    return None


def _oom(pod: dict, name: str, seen: list[str]) -> Diagnosis:
    container = next((one for one in (*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]) if one["name"] == name), {})
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    return Diagnosis(f"Container {name} was killed because it used more memory than its limit{f' of {limit}' if limit else ''} (OOMKilled).",
                     seen, "raise resources.limits.memory, or use less; this is the node's memory, not a GPU's")


def _running(facts: Facts, pod: dict, seen: list[str]) -> Diagnosis:
    if not is_ready(pod):
        condition = _condition(pod, "Ready", "False")
        if condition:
            probes = _events(facts, pod, "Unhealthy")
            if probes:
                return Diagnosis("It runs but is not ready: a probe fails.", [*seen, *probes], "see what the probe asks, and the container's log")
            return Diagnosis("It runs but is not ready.", [*seen, condition.get("message", "")], f"kubectl logs {pod['metadata']['name']}")
    return Diagnosis("It runs; nothing is wrong.", [*seen, *shares(facts, pod)])


def shares(facts: Facts, pod: dict) -> list[str]:
    """With whom it shares a GPU, where replicas of it are handed out."""
    mine = _gpus_of(pod)
    others = {}
    for other in facts.on.get(pod["spec"].get("nodeName", ""), ()) if mine else ():
        if other["metadata"]["uid"] != pod["metadata"]["uid"] and (both := mine & _gpus_of(other)):
            others[full_name(other)] = (both, other["metadata"].get("namespace"))
    lines = [f"it shares GPU {', '.join(sorted(both))} with pod {name}: time-slicing and MPS replicas are the same GPU"
             for name, (both, _) in sorted(others.items())[:6]]
    if any(space != pod["metadata"].get("namespace") for _, space in others.values()):
        lines.append("pods of different namespaces share a GPU: its replicas have no memory limits of their own under time-slicing; MIG divides a GPU")
    return lines


def _gpus_of(pod: dict) -> set[str]:
    held = _lists((pod["metadata"].get("annotations") or {}).get(DEVICES))
    ids = {one for devices in held.values() for one in devices}
    ids |= {one["resourceID"] for state in (pod.get("status") or {}).get("containerStatuses") or []
            for entry in state.get("allocatedResourcesStatus") or [] for one in entry.get("resources") or []}
    return {one.partition("::")[0] for one in ids if "::" in one}


def _starting(facts: Facts, pod: dict, seen: list[str]) -> Diagnosis:
    told = _events(facts, pod, "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume", "NetworkNotReady", "Failed")
    waits = [f"container {one['name']}: {wait.get('reason', '')}" for one in _statuses(pod) if (wait := (one.get("state") or {}).get("waiting"))]
    text = " ".join(told)
    if "FailedMount" in text or "FailedAttachVolume" in text or "FailedMapVolume" in text:
        return Diagnosis("Its node cannot mount one of its volumes.", [*seen, *told], "make the ConfigMap, Secret or volume that the event names")
    if "FailedCreatePodSandBox" in text or "NetworkNotReady" in text:
        return Diagnosis("Its node cannot make the pod's sandbox: the container runtime or the network plugin fails, or its RuntimeClass is not"
                         " set up there.", [*seen, *told], "the event names it; see the node's container runtime, CNI and NVIDIA runtime")
    if told:
        return unknown([*seen, *told], "kubectl describe pod")
    if waits and all(line.rpartition(" ")[2] in ("ContainerCreating", "PodInitializing") for line in waits):
        running = [one["name"] for one in (pod["status"].get("initContainerStatuses") or []) if "running" in (one.get("state") or {})]
        if running:
            return Diagnosis(f"Its init container {running[0]} runs; its containers start after that.", [*seen, *waits],
                             f"wait; kubectl logs {pod['metadata']['name']} -c {running[0]}")
        return Diagnosis("Its node is preparing it (ContainerCreating): pulling images, mounting volumes; nothing has failed yet.",
                         [*seen, *waits, *_not_ready(facts, pod)], "wait; kubectl describe pod shows new events")
    return unknown([*seen, *waits, *_events(facts, pod)], "kubectl describe pod")


def _not_ready(facts: Facts, pod: dict) -> list[str]:
    return holders.operands(facts, {pod["spec"].get("nodeName", "")})[:2]


def _statuses(pod: dict) -> list[dict]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _condition(pod: dict, kind: str, value: str = "True") -> dict:
    return next((one for one in (pod.get("status") or {}).get("conditions") or [] if one["type"] == kind and one["status"] == value), {})


def _events(facts: Facts, pod: dict, *reasons: str) -> list[str]:
    return [f"event {event.get('reason')}: {event.get('message', '')}" for event in facts.events(pod, *reasons)[-3:]
            if reasons or event.get("type") == "Warning"]
