"""What the exercises of lab 00 ask for, looked at in the live cluster."""

from __future__ import annotations

from orchlab.course import Answer, Lab, not_yet, passed, pods, wrong


def hello(lab: Lab) -> Answer:
    """The Deployment hello has a pod that runs and holds GPUs."""
    found, answer = _pods(lab)
    if answer:
        return answer
    return passed(f"{pods.sentence(found[0])}, with {pods.gpus(found[0])} GPU{'s' if pods.gpus(found[0]) > 1 else ''}.")


def three(lab: Lab) -> Answer:
    """The Deployment hello wants three pods, and all of them run and hold GPUs."""
    wanted = (lab.get("deployment/hello") or {"spec": {"replicas": 0}})["spec"]["replicas"]
    if wanted == 1:
        return not_yet("hello still wants one pod.")
    if wanted != 3:
        return wrong(f"hello wants {wanted} pods, not three.")
    found, answer = _pods(lab)
    if answer:
        return answer
    return passed(f"{len(found)} pods run, on {', '.join(sorted({pod['spec']['nodeName'] for pod in found}))}.")


def _pods(lab: Lab) -> tuple[list[dict], Answer | None]:
    """The Deployment's present pods, or the answer if they are not all that was asked for."""
    deployment = lab.get("deployment/hello")
    if deployment is None:
        return [], not_yet("There is no Deployment called hello.", "run the cell above")
    current = lab.place.pods_of({("replicaset", name) for name in _newest(lab)})
    status = deployment.get("status") or {}
    if status.get("observedGeneration", 0) < deployment["metadata"]["generation"] or len(current) < deployment["spec"]["replicas"]:
        return [], not_yet("The Deployment has not made its pods yet.", settling=True)
    for pod in current:
        if pods.gpus(pod) == 0:
            return [], wrong("The pods of hello ask for no GPU.")
        if words := pods.unschedulable(pod):
            return [], not_yet(f"A pod of hello is pending. It asks for {pods.gpus(pod)} GPUs. The scheduler says: {words}")
        if pods.phase(pod) != "Running":
            return [], not_yet(pods.sentence(pod), settling=True)
    return current, None


def _newest(lab: Lab) -> list[str]:
    """The ReplicaSet of the Deployment's latest revision: the one that was made from its present template."""
    owned = [
        item for item in lab.place.list("replicaset") if any(o["name"] == "hello" for o in item["metadata"].get("ownerReferences", []))
    ]

    def revision(item: dict) -> int:
        return int(item["metadata"].get("annotations", {}).get("deployment.kubernetes.io/revision", 0))

    return [item["metadata"]["name"] for item in owned if revision(item) == max(map(revision, owned))]
