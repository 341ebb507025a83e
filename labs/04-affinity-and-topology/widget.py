"""The lab's two benches: pools by affinity and taints, workers over zones and racks."""

from __future__ import annotations

import ipywidgets

from orchlab.course import Lab

ANY = "any"
EFFECTS = {"none": "", "PreferNoSchedule": "PreferNoSchedule", "NoSchedule": "NoSchedule"}
OFF, HARD, SOFT = "off", "DoNotSchedule", "ScheduleAnyway"
# A replica's share of a node, so that the scores of free CPU and memory move as well.
REQUESTS = {"cpu": "24", "memory": "100Gi"}


def pools(lab: Lab):
    """Required and preferred affinity, tolerations, anti-affinity, a taint on the H100 nodes."""
    bench, parts = lab.load("bench"), lab.load("parts")
    nodes = [node.name for node in lab.env.fleet.nodes() if node.pool == "h100"]
    required = {ANY: [], "H100": [parts.H100], "A100": [parts.A100], "H100 or A100": [parts.H100, parts.A100]}
    controls = {"count": _slider("Pods", 8, 1, 16), "gpus": _slider("GPUs per pod", 4, 0, 8),
                "required": _choice("Required: gpu.product In", required, "H100 or A100"),
                "h100": _slider("Preferred: weight of H100", 100, 0, 100), "a100": _slider("Preferred: weight of A100", 0, 0, 100),
                "tolerates": ipywidgets.Checkbox(True, description="Tolerates nvidia.com/gpu:NoSchedule", style=bench.STYLE,
                                                 layout=bench.WIDE),
                "spread": _choice("Over nodes", [OFF, "spread, ScheduleAnyway", "anti-affinity, preferred 100", "anti-affinity, required"],
                                  OFF),
                "taint": _choice("Another taint on the H100 nodes", list(EFFECTS), "none")}

    def build(values: dict) -> list[dict]:
        affinity = {"nodeAffinity": {}, "podAntiAffinity": {}}
        if products := required[values["required"]]:
            affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = {
                "nodeSelectorTerms": [{"matchExpressions": [_in(parts.PRODUCT, products)]}]}
        if preferred := [(values[name], product) for name, product in (("h100", parts.H100), ("a100", parts.A100)) if values[name]]:
            affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": weight, "preference": {"matchExpressions": [_in(parts.PRODUCT, [product])]}} for weight, product in preferred]
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "pools-bench"}}}
        if values["spread"] == "anti-affinity, required":
            affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = [term]
        elif values["spread"].startswith("anti"):
            affinity["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": 100, "podAffinityTerm": term}]
        spec = {"affinity": {kind: given for kind, given in affinity.items() if given}}
        if values["spread"].startswith("spread"):
            spec["topologySpreadConstraints"] = [term | {"maxSkew": 1, "whenUnsatisfiable": SOFT}]
        tolerations = [bench.TOLERATION] if values["tolerates"] else []
        return [_pod(f"pools-{number}", values["gpus"], {"tolerations": tolerations} | spec) for number in range(values["count"])]

    return bench.Bench(lab, "pools", controls, build, lambda values: dict.fromkeys(nodes, EFFECTS[values["taint"]]))


def spread(lab: Lab):
    """Workers on H100 nodes over zones and racks; every field of a constraint, and a taint on one node."""
    bench, parts = lab.load("bench"), lab.load("parts")
    when = [OFF, HARD, SOFT]
    controls = {"count": _slider("Workers, 4 GPUs each", 8, 1, 14),
                "zone": _choice("Zones", when, HARD), "zone_skew": _slider("Zones: maxSkew", 1, 1, 5),
                "domains": _slider("Zones: minDomains (0: not set)", 0, 0, 4),
                "rack": _choice("Racks", when, HARD), "rack_skew": _slider("Racks: maxSkew", 1, 1, 5),
                "taints": _choice("nodeTaintsPolicy", ["Ignore", "Honor"], "Ignore"),
                "affinity": _choice("nodeAffinityPolicy", ["Honor", "Ignore"], "Honor"),
                "matches": ipywidgets.Checkbox(True, description="The selector matches the workers", style=bench.STYLE, layout=bench.WIDE),
                "taint": _choice("A taint on h100-2, alone in rack-a3", list(EFFECTS), "NoSchedule")}

    def build(values: dict) -> list[dict]:
        label = "spread-bench" if values["matches"] else "somebody-else"

        def constraint(kind: str, key: str) -> dict:
            given = {"maxSkew": values[f"{kind}_skew"], "topologyKey": key, "whenUnsatisfiable": values[kind],
                     "labelSelector": {"matchLabels": {"app": label}}, "nodeTaintsPolicy": values["taints"],
                     "nodeAffinityPolicy": values["affinity"]}
            # The API server refuses minDomains beside ScheduleAnyway.
            return given | ({"minDomains": values["domains"]} if kind == "zone" and values["domains"] and values[kind] == HARD else {})

        constraints = [constraint(kind, key) for kind, key in (("zone", parts.ZONE), ("rack", parts.RACK)) if values[kind] != OFF]
        spec = {"nodeSelector": {parts.PRODUCT: parts.H100}, "tolerations": [bench.TOLERATION], "topologySpreadConstraints": constraints}
        return [_pod(f"spread-{number}", 4, spec) for number in range(values["count"])]

    return bench.Bench(lab, "spread", controls, build, lambda values: {"h100-2": EFFECTS[values["taint"]]})


def _slider(words: str, value: int, low: int, high: int) -> ipywidgets.IntSlider:
    return ipywidgets.IntSlider(value, low, high, description=words, continuous_update=False, style={"description_width": "250px"},
                                layout=ipywidgets.Layout(width="620px"))


def _choice(words: str, options, value: str) -> ipywidgets.Dropdown:
    return ipywidgets.Dropdown(options=list(options), value=value, description=words, style={"description_width": "250px"},
                               layout=ipywidgets.Layout(width="620px"))


def _in(key: str, values: list[str]) -> dict:
    return {"key": key, "operator": "In", "values": values}


def _pod(name: str, gpus: int, spec: dict) -> dict:
    resources = {"requests": REQUESTS} | ({"limits": {"nvidia.com/gpu": gpus}} if gpus else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": spec | {"containers": [{"name": "main", "image": "registry.example/train:1", "resources": resources}]}}
