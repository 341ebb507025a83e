"""The node-by-node table: the scheduler's rules, its counts and its sentences."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from why_sentences import COUNTED, OTHER, WHOLE
from why_support import GPU, HOST, PRODUCT, TAINT, ZONE, SPACE, facts, fleet, node, pod, required, running, selecting

from orchlab.kube import why_match as match
from orchlab.kube import why_nodes as nodes
from orchlab.kube import why_said as said


@pytest.mark.parametrize("sentence", COUNTED)
def test_sentences_are_read(sentence):
    found = said.read(sentence)
    assert dict(found.counts) == COUNTED[sentence] and not found.unread and not found.whole
    assert found.nodes == int(sentence[2])
    assert bool(found.preemption) == (" preemption: " in sentence)


@pytest.mark.parametrize("sentence", WHOLE)
def test_sentences_about_all_nodes_at_once(sentence):
    found = said.read(sentence)
    assert found.whole == WHOLE[sentence] and not found.counts


@pytest.mark.parametrize("sentence", OTHER)
def test_other_sentences_are_not_read(sentence):
    assert said.read(sentence) is None


def test_words_that_are_new_are_kept():
    found = said.read("0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had bad luck. preemption: x")
    assert dict(found.counts) == {"resource cpu": 1} and found.unread == ("node(s) had bad luck",)
    assert not nodes.agrees(nodes.table(facts(nodes=[node("a"), node("b")]), pod()), found)


def test_each_kind_has_words_for_people():
    assert {kind for kind in said.ORDER if not kind.startswith(("resource", "volume-once", "volume-count", "volume-space", "name", "claims"))} <= {
        *nodes.WORDS}


# -- requests


def test_requests_are_the_larger_of_init_containers_and_the_sum():
    def part(gpus: int, **more) -> dict:
        return {"name": f"c{gpus}", "resources": {"requests": {GPU: str(gpus)}}, **more}

    spec = {"containers": [part(1), part(2)], "initContainers": [part(4, restartPolicy="Always"), part(9)], "overhead": {"cpu": "250m"}}
    assert match.requests({"spec": spec}) == {GPU: 13000, "cpu": 250}
    assert match.init_that_asks({"spec": spec}, GPU) == "c9"
    spec["initContainers"].pop()
    assert match.requests({"spec": spec})[GPU] == 7000 and match.init_that_asks({"spec": spec}, GPU) == ""
    # A sidecar counts for the init containers behind it only.
    spec["initContainers"].insert(0, part(6))
    assert match.requests({"spec": spec})[GPU] == 7000
    assert match.requests({"spec": {"containers": [{"name": "x", "resources": {"limits": {"cpu": "1"}}}], "resources": {"requests": {"cpu": "3"}}}}) == {
        "cpu": 3000}


def test_a_resize_counts_until_it_is_done():
    made = pod(limits={"cpu": "1"}, on="a", status={"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]})
    assert match.requests(made) == {"cpu": 3000}


@pytest.mark.parametrize("resource, amount, text", [(GPU, 8000, "8"), ("cpu", 250, "250m"), ("memory", 2**31 * 1000, "2Gi"), ("memory", 5000, "5")])
def test_amounts_for_people(resource, amount, text):
    assert match.shown(resource, amount) == text


# -- selectors, tolerations


@pytest.mark.parametrize("operator, values, holds", [
    ("In", ("a", "b"), True), ("In", ("c",), False), ("NotIn", ("c",), True), ("NotIn", ("a",), False), ("Exists", (), True),
    ("DoesNotExist", (), False), ("Gt", ("3",), False), ("Lt", ("3",), False)])
def test_operators_of_node_affinity(operator, values, holds):
    there = {"metadata": {"name": "n", "labels": {"k": "a"}}}
    assert match.node_selected(pod(affinity=selecting("k", operator, *values)), there) == holds
    missing = {"metadata": {"name": "n", "labels": {}}}
    assert match.node_selected(pod(affinity=selecting("k", operator, *values)), missing) == (operator in ("NotIn", "DoesNotExist"))


@pytest.mark.parametrize("operator, limit, holds", [("Gt", "3", True), ("Gt", "4", False), ("Lt", "5", True), ("Lt", "x", False)])
def test_numbers_are_compared(operator, limit, holds):
    assert match.node_selected(pod(affinity=selecting("k", operator, limit)), {"metadata": {"name": "n", "labels": {"k": "4"}}}) == holds


def test_terms_are_alternatives_and_an_empty_one_selects_nothing():
    terms = selecting("k", "Exists")
    inner = terms["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    inner.insert(0, {})
    assert match.node_selected(pod(affinity=terms), {"metadata": {"name": "n", "labels": {"k": ""}}})
    inner.pop()
    assert not match.node_selected(pod(affinity=terms), {"metadata": {"name": "n", "labels": {"k": ""}}})
    assert match.selects({}, {"a": "b"}) and not match.selects(None, {"a": "b"})


@pytest.mark.parametrize("toleration, tolerated", [
    ({"operator": "Exists"}, True), ({"key": GPU, "operator": "Exists"}, True), ({"key": GPU, "value": "present"}, True),
    ({"key": GPU, "value": "present", "effect": "NoSchedule"}, True), ({"key": GPU, "value": "present", "effect": "NoExecute"}, False),
    ({"key": GPU}, False), ({"key": "other", "operator": "Exists"}, False), ({"value": "present"}, False)])
def test_tolerations(toleration, tolerated):
    assert match.tolerates(toleration, TAINT) == tolerated


def test_only_taints_that_keep_pods_from_starting_count():
    soft = node("n", taints=[{"key": "x", "effect": "PreferNoSchedule"}, {"key": "y", "effect": "NoExecute"}])
    assert [one["key"] for one in match.untolerated(pod(), soft)] == ["y"]


# -- the table


def kinds(found: nodes.Table) -> dict[str, str]:
    return {row.name: ",".join(one.kind for one in row.failures) for row in found.rows if row.failures}


def test_the_first_filter_counts_and_all_that_fail_are_kept():
    cordoned = [{**one, "spec": {**one["spec"], "unschedulable": one["metadata"]["name"] == "t4-0"}} for one in fleet()]
    mine = pod(limits={"gpu": 16, "cpu": 500, "memory": "9Ti"}, tolerated=False)
    found = nodes.table(facts(mine, nodes=cordoned), mine)
    assert dict(found.counts) == {"unschedulable": 1, "taint": 6, "resource cpu": 2, "resource memory": 2, f"resource {GPU}": 2}
    assert kinds(found)["t4-0"].startswith("unschedulable,taint,resource")
    assert nodes.agrees(found, said.read(next(sentence for sentence in COUNTED if "2 Insufficient cpu, 2 Insufficient memory" in sentence)))
    assert found.lines()[0].startswith("6 node(s): untolerated taint (nvidia.com/gpu=present:NoSchedule): a100-0")


def test_what_is_in_use_and_what_is_kept_for_others():
    mine = pod(limits={"gpu": 8})
    held = [running(f"r{n}", f"h100-{n}", {"gpu": 1}) for n in range(3)]
    over = running("over", "h100-3", {"gpu": 8})
    over["status"]["phase"] = "Succeeded"
    assert nodes.table(facts(mine, over, *held), mine).fits == ["h100-3"]
    nominated = pod("next", {"gpu": 4}, status={"nominatedNodeName": "h100-3"}, priority=5)
    assert nodes.table(facts(mine, nominated, *held), mine).fits == []
    assert nodes.table(facts(nominated, mine, *held), {**mine, "spec": {**mine["spec"], "priority": 6}}).fits == ["h100-3"]


def test_pods_per_node_and_host_ports():
    tight = [node("a", allocatable={"pods": "1"})]
    mine = pod()
    found = nodes.table(facts(running("r", "a"), mine, nodes=tight), mine)
    assert dict(found.counts) == {"resource pods": 1} and "as many pods as it takes (1)" in found.lines()[0]
    listening = {"containers": [{"name": "main", "ports": [{"hostPort": 80}]}]}
    mine = pod(**listening)
    found = nodes.table(facts(running("r", "a", **listening), mine, nodes=[node("a"), node("b")]), mine)
    assert kinds(found) == {"a": "ports"}
    elsewhere = {"containers": [{"name": "main", "ports": [{"hostPort": 80, "hostIP": "10.0.0.1"}]}]}
    mine, one = pod(**elsewhere), {"containers": [{"name": "main", "ports": [{"hostPort": 80, "hostIP": "10.0.0.2"}]}]}
    assert nodes.table(facts(running("r", "a", **one), mine, nodes=[node("a")]), mine).fits == ["a"]


def test_a_name_in_the_affinity_leaves_other_nodes_out():
    mine = pod(limits={"cpu": "400"}, affinity=selecting("metadata.name", "In", "cpu-0", fields=True))
    assert dict(nodes.table(facts(mine), mine).counts) == {"named": 8, "resource cpu": 1}


def spread(**more) -> list[dict]:
    return [{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "s"}}, **more}]


CPUS = [node("a1"), node("a2"), node("b1", zone="zone-b")]


@pytest.mark.parametrize("constraint, selector, failing", [
    (spread(), {}, {"a1", "a2"}), (spread(maxSkew=2), {}, set()), (spread(minDomains=3), {}, {"a1", "a2"}),
    (spread(), {ZONE: "zone-a"}, {"b1"}), (spread(nodeAffinityPolicy="Ignore"), {ZONE: "zone-a"}, {"a1", "a2", "b1"}),
    (spread(topologyKey="none"), {}, {"a1", "a2", "b1"}), (spread(matchLabelKeys=["version"]), {}, set()),
    (spread(whenUnsatisfiable="ScheduleAnyway"), {}, set())])
def test_topology_spread(constraint, selector, failing):
    there = running("r", "a1", labels={"app": "s", "version": "1"})
    mine = pod(labels={"app": "s", "version": "2"}, topologySpreadConstraints=constraint, nodeSelector=selector)
    found = nodes.table(facts(there, mine, nodes=CPUS), mine)
    assert set(kinds(found)) == failing


def test_spread_leaves_tainted_nodes_out_only_if_it_is_told_to():
    some = [node("a1"), node("a2", zone="zone-b", taints=[{"key": "x", "effect": "NoSchedule"}])]
    there = running("r", "a1", labels={"app": "s"})
    for policy, failing in (("Ignore", {"a1", "a2"}), ("Honor", {"a2"})):
        mine = pod(labels={"app": "s"}, topologySpreadConstraints=spread(nodeTaintsPolicy=policy))
        assert set(kinds(nodes.table(facts(there, mine, nodes=some), mine))) == failing


def test_pod_affinity_and_anti_affinity():
    there = running("r", "a1", labels={"app": "x"})
    near = pod(affinity=required("podAffinity", "x", ZONE))
    assert kinds(nodes.table(facts(there, near, nodes=CPUS), near)) == {"b1": "pod-affinity"}
    apart = pod(affinity=required("podAntiAffinity", "x", ZONE))
    assert kinds(nodes.table(facts(there, apart, nodes=CPUS), apart)) == dict.fromkeys(("a1", "a2"), "pod-anti-affinity")
    jealous = running("j", "b1", affinity=required("podAntiAffinity", "y", HOST))
    mine = pod(labels={"app": "y"})
    assert kinds(nodes.table(facts(jealous, mine, nodes=CPUS), mine)) == {"b1": "existing-anti-affinity"}


def test_the_first_of_a_group_may_start_alone():
    mine = pod(labels={"app": "x"}, affinity=required("podAffinity", "x"))
    assert nodes.table(facts(mine, nodes=CPUS), mine).fits == ["a1", "a2", "b1"]
    other = pod(labels={"app": "y"}, affinity=required("podAffinity", "x"))
    assert nodes.table(facts(other, nodes=CPUS), other).fits == []


@pytest.mark.parametrize("more, failing", [({}, set()), ({"namespaces": ["other"]}, {"a1"}), ({"namespaceSelector": {}}, {"a1"}),
                                           ({"namespaceSelector": {"matchLabels": {"team": "b"}}}, {"a1"}),
                                           ({"namespaceSelector": {"matchLabels": {"team": "c"}}}, set())])
def test_affinity_across_namespaces(more, failing):
    there = running("r", "a1", labels={"app": "x"}, metadata={"namespace": "other"})
    mine = pod(affinity=required("podAntiAffinity", "x", **more))
    space = {"metadata": {"name": "other", "labels": {"team": "b"}}}
    assert set(kinds(nodes.table(facts(there, mine, nodes=CPUS, namespaces=[space]), mine))) == failing


def volume(name: str, zone: str = "", labels: dict | None = None, storage: str = "") -> dict:
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec | ({"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}} if zone else {})}


def claim(name: str, volume_name: str = "", storage: str = "", size: str = "1Gi") -> dict:
    return {"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": SPACE}, "status": {"phase": "Bound" if volume_name else "Pending"},
            "spec": {"storageClassName": storage, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}},
                     **({"volumeName": volume_name} if volume_name else {})}}


def with_claim(name: str, **more) -> dict:
    return pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": name}}], **more)


def test_volumes_that_are_bound():
    lists = {"persistentvolumes": [volume("v1", "zone-a"), volume("v2", labels={ZONE: "zone-a__zone-c"})],
             "persistentvolumeclaims": [claim("one", "v1"), claim("two", "v2")]}
    for name, kind in (("one", "volume-affinity"), ("two", "volume-zone")):
        mine = with_claim(name)
        assert kinds(nodes.table(facts(mine, nodes=CPUS, **lists), mine)) == {"b1": kind}


def test_volumes_that_nobody_makes():
    local = {"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    lists = {"persistentvolumes": [volume("v1", "zone-b", storage="local")], "storageclasses": [local],
             "persistentvolumeclaims": [claim("fits", storage="local"), claim("large", storage="local", size="2Gi")]}
    for name, failing in (("fits", {"a1", "a2"}), ("large", {"a1", "a2", "b1"})):
        mine = with_claim(name)
        assert set(kinds(nodes.table(facts(mine, nodes=CPUS, **lists), mine))) == failing


# -- properties

LABEL = st.sampled_from(["a", "b", "c"])
NODES = st.lists(st.builds(lambda gpus, zone, cordoned, tainted, product: {
    "gpus": gpus, "zone": zone, "product": product, "taints": [TAINT] if tainted else [], **({"unschedulable": True} if cordoned else {})},
    st.integers(0, 4), LABEL, st.booleans(), st.booleans(), LABEL), max_size=8)
PODS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 4), LABEL, st.booleans()), max_size=8)


@settings(max_examples=150, deadline=None)
@given(NODES, PODS, st.integers(0, 5), st.booleans(), st.none() | LABEL, st.booleans(), st.booleans())
def test_every_node_is_counted_once_and_the_sentence_made_of_it_agrees(made, others, gpus, tolerated, product, spreads, apart):
    machines = [node(f"n{number}", **one) for number, one in enumerate(made)]
    there = [running(f"r{number}", f"n{where}", {"gpu": held}, labels={"app": app}, affinity=required("podAntiAffinity", app, ZONE) if jealous else {})
             for number, (where, held, app, jealous) in enumerate(others)]
    mine = pod(limits={"gpu": gpus}, tolerated=tolerated, labels={"app": "a"}, **({"nodeSelector": {PRODUCT: product}} if product else {}),
               **({"topologySpreadConstraints": spread(labelSelector={"matchLabels": {"app": "a"}})} if spreads else {}),
               affinity=required("podAntiAffinity", "b", HOST) if apart else {})
    found = nodes.table(facts(*there, mine, nodes=machines), mine)
    stages = [{one.stage for one in row.counted} for row in found.rows]
    assert all(len(one) <= 1 for one in stages)
    assert sum(len(names) for names, _ in found.groups()) == len(machines)
    assert len(found.fits) + sum(bool(one) for one in stages) == len(machines)
    assert nodes.agrees(found, said.Said(len(machines), found.counts))
    assert all([said.ORDER.index(one.kind.split()[0]) for one in row.failures] == sorted(said.ORDER.index(one.kind.split()[0]) for one in row.failures)
               for row in found.rows if not any(one.resource for one in row.failures))
