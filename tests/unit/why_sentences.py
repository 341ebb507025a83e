"""Sentences that kube-scheduler 1.37.2 said about pods on nine nodes, word for word, and what is in them; older words for the same below."""

from __future__ import annotations

GPU = "resource nvidia.com/gpu"
UNHELPFUL = " preemption: 0/9 nodes are available: 9 Preemption is not helpful for scheduling."
NO_VICTIMS = " preemption: 0/9 nodes are available: 4 Preemption is not helpful for scheduling, 5 No preemption victims found for incoming pod."

# Sentence: nodes by kind.
COUNTED = {
    "0/9 nodes are available: 2 Insufficient nvidia.com/gpu, 7 node(s) had untolerated taint(s)." + UNHELPFUL: {GPU: 2, "taint": 7},
    "0/9 nodes are available: 9 Insufficient nvidia.com/gpu." + UNHELPFUL: {GPU: 9},
    "0/9 nodes are available: 9 node(s) didn't match Pod's node affinity/selector." + UNHELPFUL: {"affinity": 9},
    "0/9 nodes are available: 2 Insufficient nvidia.com/mig-3g.20gb, 7 node(s) had untolerated taint(s)." + UNHELPFUL:
        {"resource nvidia.com/mig-3g.20gb": 2, "taint": 7},
    "0/9 nodes are available: 9 Insufficient hugepages-2Mi." + UNHELPFUL: {"resource hugepages-2Mi": 9},
    "0/9 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu, 2 Insufficient memory, 2 Insufficient nvidia.com/gpu, 6 node(s)"
    " had untolerated taint(s)." + UNHELPFUL: {"unschedulable": 1, "resource cpu": 2, "resource memory": 2, GPU: 2, "taint": 6},
    "0/9 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match Pod's node affinity/selector, 6 node(s) had untolerated"
    " taint(s)." + UNHELPFUL: {"unschedulable": 1, "affinity": 2, "taint": 6},
    "0/9 nodes are available: 4 node(s) didn't match Pod's node affinity/selector, 5 node(s) didn't match pod anti-affinity rules." + NO_VICTIMS:
        {"affinity": 4, "pod-anti-affinity": 5},
    "0/9 nodes are available: 4 node(s) didn't match Pod's node affinity/selector, 5 node(s) didn't satisfy existing pods anti-affinity rules."
    + NO_VICTIMS: {"affinity": 4, "existing-anti-affinity": 5},
    "0/9 nodes are available: 4 node(s) didn't match Pod's node affinity/selector, 5 node(s) didn't match pod topology spread constraints."
    + NO_VICTIMS: {"affinity": 4, "spread": 5},
    "0/9 nodes are available: 9 node(s) didn't match pod topology spread constraints (missing required label)." + UNHELPFUL: {"spread-label": 9},
    "0/9 nodes are available: 9 node(s) didn't match pod affinity rules." + UNHELPFUL: {"pod-affinity": 9},
    "0/9 nodes are available: 9 node(s) didn't satisfy plugin(s) [NodeAffinity]." + UNHELPFUL: {"named": 9},
    "0/9 nodes are available: 1 Insufficient cpu, 8 node(s) didn't satisfy plugin(s) [NodeAffinity]." + UNHELPFUL: {"resource cpu": 1, "named": 8},
    "0/9 nodes are available: 9 node(s) didn't find available persistent volumes to bind." + UNHELPFUL: {"volume-bind": 9},
    "0/9 nodes are available: 4 node(s) didn't match PersistentVolume's node affinity, 5 node(s) didn't match Pod's node affinity/selector."
    + UNHELPFUL: {"volume-affinity": 4, "affinity": 5},
    "0/9 nodes are available: 4 node(s) had no available volume zone, 5 node(s) didn't match Pod's node affinity/selector." + UNHELPFUL:
        {"volume-zone": 4, "affinity": 5},
    "0/9 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, 8 node(s) didn't match Pod's node"
    " affinity/selector. preemption: 0/9 nodes are available: 1 No preemption victims found for incoming pod, 8 Preemption is not helpful for"
    " scheduling.": {"ports": 1, "affinity": 8},
    "0/9 nodes are available: 1 Insufficient nvidia.com/gpu, 8 node(s) didn't match Pod's node affinity/selector. preemption: not eligible due to"
    " preemptionPolicy=Never.": {GPU: 1, "affinity": 8},
    "0/9 nodes are available: 1 Insufficient nvidia.com/gpu, 8 node(s) didn't match Pod's node affinity/selector. preemption: found a potential"
    " placement for pod on node t4-0, preempting 2 victims": {GPU: 1, "affinity": 8},
    # As older schedulers said it.
    "0/5 nodes are available: 1 Too many pods, 4 node(s) had untolerated taint {nvidia.com/gpu: present}. preemption: 0/5 nodes are available: 5"
    " Preemption is not helpful for scheduling.": {"resource pods": 1, "taint": 4},
    "0/3 nodes are available: 1 node(s) had taint {a: b}, that the pod didn't tolerate, 2 node(s) had volume node affinity conflict.":
        {"taint": 1, "volume-affinity": 2},
}
# Sentences that hold for all nodes at once: words.
WHOLE = {
    "0/9 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found": "pod has unbound immediate PersistentVolumeClaims",
    '0/9 nodes are available: persistentvolumeclaim "none" not found. not found': 'persistentvolumeclaim "none" not found',
}
OTHER = ("pod group is unschedulable, minCount (6) cannot be satisfied: 2 scheduled, 3 remaining, pod group preemption: No preemption victims found"
         " for incoming preemptor", 'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded', "")

# What kube-apiserver 1.37.2 answered, as it stands in a Status or in a FailedCreate event: words of the cause.
REFUSED = {
    'Pod "uneq" is invalid: spec.containers[0].resources.requests: Invalid value: "1": must be equal to nvidia.com/gpu limit of 2':
        "requests 1 nvidia.com/gpu with a limit of 2",
    'Pod "frac" is invalid: [spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer,'
    ' spec.containers[0].resources.requests[nvidia.com/gpu]: Invalid value: "500m": must be an integer]': "whole numbers",
    'Pod "onlyreq" is invalid: spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources':
        "without a limit",
    'Pod "badname" is invalid: [spec.containers[0].resources.limits[gpu]: Invalid value: "gpu": must be a standard resource type or fully'
    ' qualified, spec.containers[0].resources.limits[gpu]: Invalid value: "gpu": must be a standard resource for containers]': "no resource named gpu",
    'Pod "cpuover" is invalid: spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1':
        "more cpu than its limit of 1",
    'pods "nosa" is forbidden: error looking up service account w/nosuch: serviceaccount "nosuch" not found': "ServiceAccount w/nosuch does not exist",
    'pods "nopc" is forbidden: no PriorityClass with name nosuch was found': "PriorityClass nosuch does not exist",
    'pods "norc" is forbidden: pod rejected: RuntimeClass "nosuch" not found': "RuntimeClass nosuch does not exist",
    'pods "pq" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=3, used: requests.nvidia.com/gpu=0, limited:'
    ' requests.nvidia.com/gpu=2': "exceed ResourceQuota gpus",
    'pods "ps" is forbidden: exceeded quota: prio, requested: pods=1, used: pods=0, limited: pods=0': "exceed ResourceQuota prio",
    'Error creating: pods "dc-6f65c64c48-shqv2" is forbidden: failed quota: cpuq: must specify requests.cpu for: main':
        "ResourceQuota cpuq of its namespace counts requests.cpu",
    'pods "pl" is forbidden: maximum nvidia.com/gpu usage per Container is 1, but limit is 2': "sets the maximum of nvidia.com/gpu per Container to 1",
    '(combined from similar events): Error creating: pods "dps-x" is forbidden: violates PodSecurity "restricted:latest":'
    ' allowPrivilegeEscalation != false (container "main" must set securityContext.allowPrivilegeEscalation=false)': "Pod Security level restricted",
    'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.gpus"': "fields that the API does not know",
    'namespaces "team-a" not found': "namespace team-a does not exist",
    'admission webhook "vpod.kb.io" denied the request: no': "webhook vpod.kb.io refuses",
    'pods is forbidden: User "ann" cannot create resource "pods" in API group "" in the namespace "w"': "User ann may not create pods",
    'Pod "Upper" is invalid: metadata.name: Invalid value: "Upper": a lowercase RFC 1123 subdomain must consist of lower case characters':
        "finds it invalid: metadata.name",
}
