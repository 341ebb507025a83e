"""The `kind` backend: a cluster with real kubelets in containers, and KWOK's nodes beside them.

The control plane is kind's. KWOK and the simulator run in the cluster, for the nodes without a kubelet; the GPU Operator's process runs here
under supervisord, as on `local`. `down` deletes the cluster and its network; nothing else of Docker's is touched.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import replace
from pathlib import Path

from orchlab import engines, pki
from orchlab.environment import Environment, Progress
from orchlab.errors import ApiError, BadInput, EnvironmentBroken, OrchlabError, TimeLimitReached
from orchlab.fleet_nodes import FleetNode, with_real_kubelet
from orchlab.kube import kind_cluster, kind_config, kind_machines, kind_parts, local, standin_image
from orchlab.kube.client import Client
from orchlab.kube.kind_cluster import Kind
from orchlab.paths import interpreter, private_folder, write_private
from orchlab.pki import Pair
from orchlab.processes import Probe, ProcessSpec
from orchlab.simulator import pods
from orchlab.simulator.nodes import HARDWARE, NODES, TAINTS, taints_after, taints_of
from orchlab.supervisor import ProcessState

ENGINES = ("kind", "kwok")
PORTS = ("kube_apiserver", "kwok", "simulator", "gpu_operator")
MEMORY = 3 * 2**30
SERVERS = [Pair(name, name, names=local.LOOPBACK) for name in ("kwok", "simulator")]
USERS = [pair for pair in local.USERS if pair.file in ("admin", "simulator-client", "kwok-client", "gpu-operator-client")]
KUBELET_CALLER = Pair("apiserver-kubelet", "kube-apiserver-kubelet-client")
SETTLE_SECONDS = 180


def acquire(env: Environment, say: Progress) -> None:
    """Finds the engine, builds the image of the stand-ins if it is not there. Raises EngineUnavailable with what is missing."""
    docker = kind_cluster.find()
    there, wanted = kind_cluster.made_with(_folder(env)), _real(env)
    if there is None:
        kind_cluster.check_disk(docker)
    elif there and there != wanted:  # empty: made by an older orchlab
        raise BadInput("--fleet", ", ".join(wanted), f"are its nodes with a kubelet, and this cluster was made with {', '.join(there)}",
                       f"orchlab down --name {env.name}, then `up` with that fleet")
    image = standin_image.ensure(docker, Path(env.record.engines["kwok"]), say)
    node_image = kind_cluster.node_image(docker)
    folder = private_folder(_folder(env))
    env.record.engines["standin"] = image
    write_private(folder / "chosen.json", json.dumps({"program": docker.program, "settings": dict(docker.settings), "kind": env.record.engines["kind"],
                                                      "cluster": kind_cluster.name(env), "node_image": node_image}, indent=1) + "\n")


def prepare(env: Environment) -> None:
    """Writes kind's configuration and what the scheduler and KWOK read. Certificates come once there is a cluster."""
    from orchlab.simulator import stages

    nodes = env.fleet.nodes()
    write_private(env.folder / kind_config.SCHEDULER_CONFIG, local.SCHEDULER_CONFIG.format(kubeconfig="/etc/kubernetes/scheduler.conf"))
    write_private(env.folder / "kwok.yaml", stages.render(len(nodes)))
    chosen = kind_cluster.of(_folder(env))
    kind_machines.write(_folder(env), nodes, kind_cluster.cpus(chosen.docker))
    config = kind_config.cluster(nodes, chosen.cluster, env.port("kube_apiserver"), str(env.folder), chosen.node_image, kind_cluster.cgroup_v1(chosen.docker))
    write_private(_folder(env) / "kind.yaml", kind_config.render(config))
    if not env.supervisor.running():
        _marker(env).unlink(missing_ok=True)


def processes(env: Environment) -> list[ProcessSpec]:
    """The GPU Operator; all else runs in the cluster."""
    files = tuple(env.folder / "pki" / f"{name}.crt" for name in ("ca", "gpu-operator-client"))
    return [ProcessSpec("gpu-operator", (interpreter(), "-m", "orchlab.gpu_operator", "--folder", str(env.folder)), Probe(f"tcp:127.0.0.1:{env.port('gpu_operator')}"),
                        (), (f"file:{_marker(env)}",), folder=env.folder, ports=("gpu_operator",), files=files, wait_seconds=600)]


def bring_up(env: Environment, say: Progress) -> None:
    """Makes the cluster or starts what of it has stopped; then brings in what orchlab adds. Each step finds what an earlier `up` has done."""
    from orchlab.gpu_operator import install
    from orchlab.simulator import rbac

    chosen = kind_cluster.of(_folder(env))
    fresh = chosen.bring_up(_folder(env) / "kind.yaml", _real(env), say)
    chosen.load(env.record.engines["standin"], say)
    _credentials(env, chosen)
    client = env.client()
    _await_api(env, 120)
    for manifest in [*rbac.manifests(), *kind_parts.policies(env.record.engines["standin"], env.record.clock)]:
        client.apply(manifest)
    client.apply(kind_parts.simulator(env.record.engines["standin"], _kwok_arguments(env), _digest(env)))
    _mark_nodes(env)
    say("the cluster is there" if fresh else "the cluster runs")
    install.before_start(client, env.record.engines["standin"])
    install.create_policy(client)
    write_private(_marker(env), "")


def settle(env: Environment, say: Progress) -> None:
    """As on `local`: every node Ready, GPUs advertised, operands up."""
    local.settle(env, say, SETTLE_SECONDS)


def nodes(env: Environment) -> list[FleetNode]:
    """The fleet's nodes with the labels that they have here."""
    real = _real(env)
    return [replace(node, labels=kind_config.labels(node)) if node.name in real else node for node in local.nodes(env)]


def clean(env: Environment) -> None:
    """After the operator has stopped; the cluster itself goes by `stop`."""
    local.clean(env)


def running(env: Environment) -> bool:
    try:
        return any(container.state == "running" for container in kind_cluster.of(_folder(env)).containers())
    except OrchlabError:
        return False


def health(env: Environment, probe: bool = True) -> list[ProcessState]:
    """One state per node's container, and one for KWOK and the simulator in the cluster."""
    try:
        chosen = kind_cluster.of(_folder(env))
        found = chosen.containers()
    except OrchlabError as error:
        return [ProcessState("kind", "STOPPED", 0, 0, 0, {}, False, str(error).splitlines()[0])]
    memory = chosen.memory([one.id for one in found if one.state == "running"])
    states = [ProcessState(one.service, one.state.upper(), one.since, one.pid, memory.get(one.id, 0),
                           {"kube_apiserver": env.port("kube_apiserver")} if one.service.endswith("control-plane") else {}, one.state == "running",
                           "" if one.state == "running" else "its container has stopped") for one in found]
    if not states:
        return [ProcessState("kind", "STOPPED", 0, 0, 0, {}, False, "there is no cluster")]
    return [*states, _simulator_state(env)] if probe else states


def log_tail(env: Environment, name: str, lines: int = 50) -> str | None:
    """The last lines of a node's container, or of KWOK or the simulator; None for anything else."""
    if name in ("kwok", "simulator"):
        pods, _ = env.client().list(f"/api/v1/namespaces/{kind_parts.NAMESPACE}/pods", labelSelector=f"app={kind_parts.SIMULATOR}")
        if not pods:
            return "(it does not run)"
        return env.client().request("GET", f"/api/v1/namespaces/{kind_parts.NAMESPACE}/pods/{pods[-1]['metadata']['name']}/log", container=name, tailLines=lines).get("text", "")
    chosen = kind_cluster.of(_folder(env))
    found = [one for one in chosen.containers() if one.service == name]
    return chosen.log_tail(found[0].id, lines) if found else None


def stop(name: str, folder: Path, purge: bool = False, progress: Progress | None = None) -> None:
    """Deletes the environment's cluster and network; needs no readable record. Does nothing where there is none."""
    try:
        chosen = kind_cluster.of(folder / kind_cluster.FOLDER)
    except EnvironmentBroken:
        return
    if progress:
        progress("deleting the kind cluster")
    chosen.delete()
    (folder / "kubernetes-bootstrapped").unlink(missing_ok=True)


# -- pieces


def _folder(env: Environment) -> Path:
    return env.folder / kind_cluster.FOLDER


def _real(env: Environment) -> list[str]:
    """The names of the nodes with a kubelet."""
    return [node.name for node in with_real_kubelet(env.fleet.nodes())]


def _marker(env: Environment) -> Path:
    return local._marker(env)


def _credentials(env: Environment, chosen: Kind) -> None:
    """Certificates of the cluster's own authority, whose key is in the control plane's container; a kubeconfig each."""
    folder = private_folder(env.folder / "pki")
    for file in ("ca.crt", "ca.key"):
        text = chosen.read(f"/etc/kubernetes/pki/{file}")
        if not (folder / file).exists() or (folder / file).read_text() != text:
            write_private(folder / file, text)
    pki.ensure(folder, [*SERVERS, *USERS, KUBELET_CALLER])
    here, inside = private_folder(env.folder / "kubeconfigs"), private_folder(env.folder / kind_config.IN_CLUSTER)
    for pair in USERS:
        user = pair.file.removesuffix("-client")
        text = local._kubeconfig(env, user, pair.file)
        write_private(here / f"{user}.kubeconfig", text)
        if user in ("simulator", "kwok"):
            text = text.replace(f"127.0.0.1:{env.port('kube_apiserver')}", "127.0.0.1:6443").replace(str(env.folder), kind_config.FOLDER)
            write_private(inside / f"{user}.kubeconfig", text)


def _kwok_arguments(env: Environment) -> list[str]:
    inside = kind_config.FOLDER
    values = {"folder": inside, "pki": f"{inside}/pki", "kubeconfigs": f"{inside}/kubeconfigs", **env.record.ports}
    return list(engines.load("kwok").arguments(**values))


def _digest(env: Environment) -> str:
    total = hashlib.sha256()
    for path in ("kwok.yaml", "pki/ca.crt", "pki/simulator.crt", "pki/kwok.crt", "pki/simulator-client.crt", "pki/kwok-client.crt"):
        total.update((env.folder / path).read_bytes())
    return total.hexdigest()[:16]


def _await_api(env: Environment, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            env.client().get("/readyz")
            return
        except (ApiError, EnvironmentBroken) as error:
            if time.monotonic() > deadline:
                raise TimeLimitReached(f"the API server of the cluster does not answer after {seconds:.0f} s: {error}", f"orchlab logs {kind_cluster.name(env)}-control-plane") from None
        time.sleep(0.3)


def _mark_nodes(env: Environment) -> None:
    """What a kubelet may not say of its own node, what is built into it (the operator's way to know its GPUs), and what another fleet wants:
    its machine and its taints."""
    client, chosen = env.client(), kind_cluster.of(_folder(env))
    for number, node in enumerate(with_real_kubelet(env.fleet.nodes())):
        path = f"{NODES}/{node.name}"
        found = client.find(path)
        if found is None or not _same_machine(found, node):
            # Somebody deleted it, or the machine is another one: a kubelet registers, and looks at its machine, when it starts.
            chosen.restart_kubelet(number)
            found = _await_node(client, path, env, node)
        taints = taints_after(found, taints_of(node))
        notes = {HARDWARE: json.dumps({"model": node.gpu_model, "count": node.gpus}), TAINTS: json.dumps(taints_of(node))}
        client.patch(path, {"metadata": {"labels": kind_config.labels(node), "annotations": notes}, **({} if taints is None else {"spec": {"taints": taints}})})


def _same_machine(found: dict, node: FleetNode) -> bool:
    capacity = (found.get("status") or {}).get("capacity") or {}
    return bool(capacity) and pods.milli(capacity["cpu"]) == 1000 * node.cpu and pods.milli(capacity["memory"]) // 1000 // 1024 == node.memory_bytes // 1024


def _await_node(client: Client, path: str, env: Environment, node: FleetNode, seconds: float = 60) -> dict:
    deadline = time.monotonic() + seconds
    while (found := client.find(path)) is None or not _same_machine(found, node):
        if time.monotonic() > deadline:
            how = "did not join the cluster" if found is None else "does not have the fleet's CPUs and memory"
            raise TimeLimitReached(f"node {node.name} {how} within {seconds:.0f} s", f"orchlab down --name {env.name}, then orchlab up --name {env.name}")
        time.sleep(0.5)
    return found


def _simulator_state(env: Environment) -> ProcessState:
    detail = ""
    try:
        found = env.client().find(f"/apis/apps/v1/namespaces/{kind_parts.NAMESPACE}/deployments/{kind_parts.SIMULATOR}")
        if not (found or {}).get("status", {}).get("readyReplicas"):
            detail = "its pod is not ready"
    except OrchlabError as error:
        detail = str(error).splitlines()[0]
    return ProcessState("simulator", "RUNNING" if not detail else "STOPPED", 0, 0, 0, {}, not detail, detail)
