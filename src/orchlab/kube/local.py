"""The `local` backend: a Kubernetes control plane as processes on loopback, with simulated nodes.

etcd, kube-apiserver, kube-scheduler and kube-controller-manager are the real ones. KWOK and the simulator stand in for the kubelets,
gpu-operator for NVIDIA's GPU Operator.
"""

from __future__ import annotations

import base64
import time
from dataclasses import replace
from pathlib import Path

from orchlab import engines, pki
from orchlab.environment import Environment, Progress
from orchlab.errors import ApiError, EnvironmentBroken, TimeLimitReached
from orchlab.fleet_nodes import FleetNode
from orchlab.kube.objects import is_ready
from orchlab.paths import interpreter, private_folder, write_private
from orchlab.pki import Pair
from orchlab.processes import NotReady, Probe, ProcessSpec
from orchlab.simulator.stages import KUBELET_LABEL

ENGINES = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kwok")
PORTS = ("etcd", "etcd_peer", "kube_apiserver", "kube_scheduler", "kube_controller_manager", "kwok", "simulator", "gpu_operator")
LOOPBACK = ("127.0.0.1", "localhost")
# How long the GPU Operator's operands may take to come up (simulated s, and s for each node), and how long a later `up` waits for nodes
# that are new to it (s).
OPERATOR_SECONDS, NODE_SECONDS, LATER_SECONDS = 120, 0.5, 15
SERVICE_IP = "10.96.0.1"  # the first address of the Services' range

SERVERS = [
    Pair("etcd", "etcd", names=LOOPBACK, authority="etcd-ca"),
    Pair("kube-apiserver", "kube-apiserver", names=(*LOOPBACK, SERVICE_IP, "kubernetes", "kubernetes.default", "kubernetes.default.svc",
                                                    "kubernetes.default.svc.cluster.local")),
    *(Pair(name, name, names=LOOPBACK) for name in ("kube-scheduler", "kube-controller-manager", "kwok", "simulator")),
]
CLIENTS = [
    # etcd trusts an authority of its own: no certificate that the API server accepts opens the store behind it.
    Pair("apiserver-etcd", "kube-apiserver-etcd-client", authority="etcd-ca"),
    Pair("apiserver-kubelet", "kube-apiserver-kubelet-client"),
]
# A kubeconfig each, by file name.
USERS = [
    Pair("admin", "orchlab-admin", ("system:masters",)),
    Pair("kube-scheduler-client", "system:kube-scheduler"),
    Pair("kube-controller-manager-client", "system:kube-controller-manager"),
    Pair("simulator-client", "orchlab:simulator"),
    Pair("kwok-client", "orchlab:kwok"),
    Pair("gpu-operator-client", "orchlab:gpu-operator"),
]

# Short back-offs, so that a pod which could not be placed is tried again within seconds; the defaults are 1 and 10.
SCHEDULER_CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {{kubeconfig: "{kubeconfig}", qps: 500, burst: 1000}}
leaderElection: {{leaderElect: false}}
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 2
"""


def prepare(env: Environment) -> None:
    """Writes certificates, kubeconfigs and configuration files; renews what is about to expire."""
    from orchlab.simulator import stages

    added = _added(env)
    users = [*USERS, *(pair for module in added for pair in module.USERS)]
    pairs = [*SERVERS, *CLIENTS, *users, *(pair for module in added for pair in module.SERVERS)]
    pki.ensure(env.folder / "pki", pairs, rotated=tuple(name for module in added for name in module.AUTHORITIES))
    pki.ensure_service_account_key(env.folder / "pki")
    configs = private_folder(env.folder / "kubeconfigs")
    for pair in users:
        user = pair.file.removesuffix("-client")
        write_private(configs / f"{user}.kubeconfig", _kubeconfig(env, user, pair.file))
    write_private(env.folder / "kube-scheduler.yaml", SCHEDULER_CONFIG.format(kubeconfig=configs / "kube-scheduler.kubeconfig"))
    write_private(env.folder / "kwok.yaml", stages.render(len(env.fleet.nodes())))
    for module in added:
        module.write(env)
    if not env.supervisor.running():
        _forget_markers(env)


def added_engines(env: Environment) -> list[str]:
    """The optional engines that were added, by name."""
    return list(env.record.addons)


def added_ports(env: Environment) -> list[str]:
    """Their ports."""
    return [port for module in _added(env) for port in module.PORTS]


def _added(env: Environment) -> list:
    """The modules of the added engines; nothing is imported where there are none."""
    if not env.record.addons:
        return []
    from orchlab.kube import addons

    return addons.chosen(env)


def processes(env: Environment) -> list[ProcessSpec]:
    """The control plane, KWOK, the simulator, the GPU Operator and the engines that were added. Needs `env.record.engines` and the files of `prepare`."""
    folder, marker = env.folder, f"file:{_marker(env)}"
    values = {"folder": folder, "pki": folder / "pki", "kubeconfigs": folder / "kubeconfigs", **env.record.ports}
    python = (interpreter(), "-m")

    def spec(name: str, *needs: str, ports: tuple[str, ...], before: tuple[str, ...] = (), waits: tuple[str, ...] = ()) -> ProcessSpec:
        engine = engines.load(name)
        argv = (*before, env.record.engines[name], *engine.arguments(**values))
        authority = folder / "pki" / ("etcd-ca.crt" if name == "etcd" else "ca.crt")
        pair = _pair(env, engine.probe.certificate) if engine.probe.certificate else None
        probe = Probe(f"https://127.0.0.1:{env.port(engine.probe.port)}{engine.probe.path}", authority, pair)
        return ProcessSpec(name, argv, probe, needs, waits, folder=folder, ports=ports, files=_named_in(argv, folder))

    simulator = (*python, "orchlab.simulator", "--folder", str(folder))
    before_kwok = (*python, "orchlab.simulator.start_kwok", "--kubeconfig", str(folder / "kubeconfigs" / "kwok.kubeconfig"), "--")
    simulator_files = tuple(folder / "pki" / f"{name}.crt" for name in ("ca", "simulator", "simulator-client"))
    operator = (*python, "orchlab.gpu_operator", "--folder", str(folder))
    operator_files = tuple(folder / "pki" / f"{name}.crt" for name in ("ca", "gpu-operator-client"))
    pauses = [ProcessSpec("pause-etcd", (*python, "orchlab.kube.pauses", str(folder)), Probe("file:/"), ("etcd",), folder=folder)]
    return [
        *(pauses if any(fault["kind"] == "api-slow" for fault in env.record.faults) else []),
        spec("etcd", ports=("etcd", "etcd_peer")),
        spec("kube-apiserver", "etcd", ports=("kube_apiserver",)),
        spec("kube-scheduler", "kube-apiserver", ports=("kube_scheduler",), waits=(marker,)),
        spec("kube-controller-manager", "kube-apiserver", ports=("kube_controller_manager",), waits=(marker,)),
        spec("kwok", "kube-apiserver", ports=("kwok",), before=before_kwok, waits=(marker,)),
        ProcessSpec("simulator", simulator, Probe(f"https://127.0.0.1:{env.port('simulator')}/healthz", folder / "pki" / "ca.crt", _pair(env, "apiserver-kubelet")),
                    ("kube-apiserver",), (marker,), folder=folder, ports=("simulator",), files=simulator_files),
        ProcessSpec("gpu-operator", operator, Probe(f"tcp:127.0.0.1:{env.port('gpu_operator')}"), ("kube-apiserver",), (marker,), folder=folder,
                    ports=("gpu_operator",), files=operator_files),
        *_added_processes(env),
    ]


def _added_processes(env: Environment) -> list[ProcessSpec]:
    if not env.record.addons:
        return []
    from orchlab.kube import addons

    return addons.processes(env)


def bring_up(env: Environment, say: Progress) -> None:
    """As soon as the API server answers: the rights of KWOK and the simulator, then the marker that lets them start; then the GPU Operator
    is installed, whose ClusterPolicy is created once."""
    from orchlab.gpu_operator import install
    from orchlab.simulator import rbac

    if env.held() & {"etcd", "kube-apiserver"}:
        return
    api = next(spec for spec in processes(env) if spec.name == "kube-apiserver")
    _await_api(env, api, 60)
    client = env.client()
    for manifest in rbac.manifests():
        client.apply(manifest)
    write_private(_marker(env), "")
    say("kube-apiserver is ready")
    install.before_start(client)
    install.create_policy(client)
    if env.record.addons:
        from orchlab.kube import addons

        addons.install(env, client)


def settle(env: Environment, say: Progress, seconds: float = 60) -> None:
    """Waits until a pod can be created and placed: the default service account exists, every node of the fleet is Ready, and what the GPU
    Operator brings up is up."""
    from orchlab.gpu_operator import install

    if env.held():
        return
    if env.record.addons:
        from orchlab.kube import addons

        addons.settle(env, seconds)
    client = env.client()
    faulty = {fault["target"] for fault in env.record.faults if fault["kind"] in ("node-down", "driver-broken")}
    down = {fault["target"] for fault in env.record.faults if fault["kind"] == "node-down"}
    fleet = env.fleet.nodes()
    wanted, gpus = {node.name for node in fleet} - down, {node.name for node in fleet if node.gpus} - faulty
    seconds += env.clock.real_seconds(OPERATOR_SECONDS) + NODE_SECONDS * len(gpus)
    begun = time.monotonic()
    deadline, seen = begun + seconds, "nothing yet"
    while (look := time.monotonic()) < deadline:
        try:
            client.get("/api/v1/namespaces/default/serviceaccounts/default")
            nodes, _ = client.list("/api/v1/nodes")
            ready = {node["metadata"]["name"] for node in nodes if _is_ready(node)}
            if wanted <= ready:
                coming, first = install.unsettled(client, nodes, gpus)
                if not coming or (not first and time.monotonic() > begun + LATER_SECONDS):
                    say(f"{len(wanted)} nodes are Ready")
                    return
                seen = coming
            else:
                seen = f"{len(wanted & ready)} of {len(wanted)} nodes are Ready; missing: {', '.join(sorted(wanted - ready)[:5])}"
        except (ApiError, EnvironmentBroken) as error:
            seen = str(error)
        # Looking at a thousand nodes takes long itself.
        time.sleep(max(0.03, 2 * (time.monotonic() - look)))
    raise TimeLimitReached(f"the cluster did not settle within {seconds:.0f} s: {seen}", f"orchlab logs simulator --name {env.name}")


def nodes(env: Environment) -> list[FleetNode]:
    """The fleet's nodes with the labels that they have here."""
    return [replace(node, labels=node.labels | dict([KUBELET_LABEL])) for node in env.fleet.nodes()]


def clean(env: Environment) -> None:
    """After everything has stopped: what only running processes need."""
    _forget_markers(env)
    for path in (env.folder / "tmp").glob("*"):
        if path.is_file() or path.is_socket():
            path.unlink(missing_ok=True)


def _forget_markers(env: Environment) -> None:
    for path in (_marker(env), *env.folder.glob("addon-*")):
        path.unlink(missing_ok=True)


def _marker(env: Environment) -> Path:
    return env.folder / "kubernetes-bootstrapped"


def _pair(env: Environment, name: str) -> tuple[Path, Path]:
    return env.folder / "pki" / f"{name}.crt", env.folder / "pki" / f"{name}.key"


def _named_in(argv: tuple[str, ...], folder: Path) -> tuple[Path, ...]:
    """The certificates and settings that a command line names: `prepare` has written them, and a change of one means a restart."""
    named = (Path(argument.partition("=")[2]) for argument in argv if str(folder) in argument)
    return tuple(path for path in named if path.is_file())


def _await_api(env: Environment, api: ProcessSpec, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    next_look = time.monotonic() + 0.5
    while True:
        try:
            return api.probe.check()
        except NotReady as error:
            if time.monotonic() > deadline:
                log = env.supervisor.log_tail("kube-apiserver")
                raise TimeLimitReached(f"kube-apiserver is not ready after {seconds:.0f} s ({error}). Its last lines:\n{log}", "orchlab doctor") from None
        if time.monotonic() > next_look:
            env.supervisor.raise_if_given_up(("etcd", "kube-apiserver"))
            next_look = time.monotonic() + 0.5
        time.sleep(0.03)


def _is_ready(node: dict) -> bool:
    """Ready, and the taint that a new node carries until the node controller has seen that."""
    return is_ready(node) and not any(taint["key"] == "node.kubernetes.io/not-ready" for taint in node["spec"].get("taints", []))


def _kubeconfig(env: Environment, user: str, pair: str) -> str:
    """The administrator's carries its certificates in itself, so that it can be copied; the daemons' name files, which they read anew when renewed."""
    folder = env.folder / "pki"
    if user == "admin":
        def given(key: str, path: Path) -> str:
            return f"{key}-data: {base64.b64encode(path.read_bytes()).decode()}"
    else:
        def given(key: str, path: Path) -> str:
            return f'{key}: "{path}"'
    context = f"orchlab-{env.name}"
    return f"""\
apiVersion: v1
kind: Config
clusters:
- name: {context}
  cluster:
    server: https://127.0.0.1:{env.port("kube_apiserver")}
    {given("certificate-authority", folder / "ca.crt")}
users:
- name: {user}
  user:
    {given("client-certificate", folder / f"{pair}.crt")}
    {given("client-key", folder / f"{pair}.key")}
contexts:
- name: {context}
  context: {{cluster: {context}, user: {user}}}
current-context: {context}
"""
