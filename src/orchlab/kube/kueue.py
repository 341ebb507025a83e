"""Kueue as a process of a `local` environment: its controller outside the cluster, its webhooks on loopback.

What its project's manifests say of a Service in the cluster is said here of a port on 127.0.0.1. Kueue puts its own certificates in place and insists on a
Secret and a folder for them, so both are filled beforehand from an authority that is Kueue's alone: its key lies in the Secret, as it does everywhere.
"""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING

from orchlab.errors import TimeLimitReached
from orchlab.kube import crds, kueue_webhooks
from orchlab.paths import interpreter, private_folder, write_private
from orchlab.pki import Pair
from orchlab.processes import Probe, ProcessSpec
from orchlab.simulator.rbac import cluster_object, cluster_wide, in_namespace, rule

if TYPE_CHECKING:
    from orchlab.environment import Environment

NAME = "kueue"
BUILD_MINUTES = 4
GUARD = "kueue-webhooks"
GROUP = "kueue.x-k8s.io"
NAMESPACE = "kueue-system"
PORTS = ("kueue_webhook", "kueue_health")
USER, GUARD_USER = "orchlab:kueue", "orchlab:kueue-webhooks"
AUTHORITY = "kueue-ca"
AUTHORITIES = (AUTHORITY,)  # Kueue holds a CA good only if it has an RSA key and bears this as a DNS name
SERVERS = [Pair("kueue", "kueue", names=("kueue-webhook-service.kueue-system.svc", "127.0.0.1"), authority=AUTHORITY)]
USERS = [Pair("kueue-client", USER), Pair("kueue-webhooks-client", GUARD_USER)]
CONVERTED = {f"{plural}.{GROUP}" for plural in ("localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters")}
# Webhooks for kinds that this cluster doesn't have, or that Kueue isn't told to look after, are left out.
HOOKED = {GROUP, "batch"}

# Only GPUs count against a quota here: a queue that names no cpu would else answer `resource cpu unavailable in ClusterQueue`. No metrics listener: it wants
# a certificate of its own.
CONFIG = """\
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: {namespace}
health: {{healthProbeBindAddress: "127.0.0.1:{health}"}}
metrics: {{bindAddress: "0"}}
webhook: {{host: 127.0.0.1, port: {webhook}, certDir: "{folder}"}}
leaderElection: {{leaderElect: false}}
clientConnection: {{qps: 500, burst: 1000}}
controller:
  groupKindConcurrency: {{Job.batch: 5, Workload.kueue.x-k8s.io: 5, LocalQueue.kueue.x-k8s.io: 1, ClusterQueue.kueue.x-k8s.io: 1, ResourceFlavor.kueue.x-k8s.io: 1}}
internalCertManagement: {{enable: true, webhookServiceName: kueue-webhook-service, webhookSecretName: kueue-webhook-server-cert}}
integrations: {{frameworks: [batch/job]}}
resources: {{excludeResourcePrefixes: [cpu, memory, ephemeral-storage]}}
featureGates: {{VisibilityOnDemand: false}}
"""


def write(env: Environment) -> None:
    """Writes configuration, certificates and webhooks as its processes read them."""
    folder, pki = private_folder(env.folder / "kueue"), env.folder / "pki"
    write_private(folder / "config.yaml", CONFIG.format(namespace=NAMESPACE, folder=folder, health=env.port("kueue_health"), webhook=env.port("kueue_webhook")))
    for file in ("crt", "key"):
        write_private(folder / f"tls.{file}", (pki / f"kueue.{file}").read_bytes())
    write_private(folder / "webhooks.json", json.dumps(_webhooks(env)))


def objects(env: Environment) -> list[dict]:
    """Its CRDs and rights as its module has them, its namespace and the Secret with its certificates."""
    from orchlab.engines.manifests import manifests

    found = crds.read(manifests(NAME))
    definitions = [_converted(env, one) for one in found if one["kind"] == "CustomResourceDefinition"]
    rights = next(one for one in found if one["kind"] == "ClusterRole")["rules"]
    secrets = next(one for one in found if one["kind"] == "Role")["rules"]
    guard = [{"apiGroups": ["admissionregistration.k8s.io"], "resources": sorted(kueue_webhooks.KINDS.values()), "verbs": ["get", "patch", "delete"],
              "resourceNames": sorted(one["metadata"]["name"] for one in _webhooks(env))},
             rule(sorted(kueue_webhooks.KINDS.values()), ["create"], "admissionregistration.k8s.io")]
    pki = env.folder / "pki"
    content = {"ca.crt": pki / f"{AUTHORITY}.crt", "ca.key": pki / f"{AUTHORITY}.key", "tls.crt": pki / "kueue.crt", "tls.key": pki / "kueue.key"}
    return [
        *definitions,
        cluster_object("Namespace", NAMESPACE) | {"apiVersion": "v1"},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kueue-webhook-server-cert", "namespace": NAMESPACE},
         "data": {name: base64.b64encode(path.read_bytes()).decode() for name, path in content.items()}},
        *cluster_wide(USER, rights), *in_namespace(USER, NAMESPACE, secrets), *cluster_wide(GUARD_USER, guard),
    ]


def processes(env: Environment, marker: str) -> list[ProcessSpec]:
    """Kueue, and what keeps its webhooks in the cluster while it answers."""
    from orchlab import engines

    folder, port = env.folder, env.port("kueue_webhook")
    argv = (env.record.engines[NAME], *engines.load(NAME).arguments(folder=folder, pki=folder / "pki", kubeconfigs=folder / "kubeconfigs", **env.record.ports))
    own = folder / "kueue"
    # Not by a connection: its server complains of each that makes no request.
    probe = Probe(f"listens:{port}")
    guard = (interpreter(), "-m", "orchlab.kube.kueue_webhooks", "--folder", str(folder), "--port", str(port))
    return [
        ProcessSpec(NAME, argv, probe, ("kube-apiserver",), (marker,), folder=folder, ports=PORTS,
                    files=(own / "config.yaml", own / "tls.crt", folder / "pki" / "kueue-client.crt")),
        # It needs the API server alone, so that it is at work as well where Kueue doesn't come up.
        ProcessSpec(GUARD, guard, Probe(f"file:{own / kueue_webhooks.STATE}"), ("kube-apiserver",), (marker,), folder=folder,
                    files=(own / "webhooks.json", folder / "pki" / "kueue-webhooks-client.crt")),
    ]


def wait(env: Environment, seconds: float) -> None:
    """Until its webhooks are in place: a Job that is created earlier passes it by. Raises TimeLimitReached."""
    deadline, state = time.monotonic() + seconds, env.folder / "kueue" / kueue_webhooks.STATE
    while not state.exists() or state.read_text() != "placed":
        if time.monotonic() > deadline:
            raise TimeLimitReached(f"Kueue's webhooks are not in place after {seconds:.0f} s. Last lines of kueue:\n{env.supervisor.log_tail(NAME)}", f"orchlab logs {GUARD}")
        time.sleep(0.05)


def before_purge(env: Environment) -> None:
    """Removes its webhooks, whoever left them: the removal of its objects must not ask them."""
    kueue_webhooks.remove(env.client(), [{"kind": kind, "metadata": {"name": name}} for kind, name in _NAMES.items()])


_NAMES = {"MutatingWebhookConfiguration": "kueue-mutating-webhook-configuration", "ValidatingWebhookConfiguration": "kueue-validating-webhook-configuration"}


def _client_config(env: Environment, path: str) -> dict:
    authority = (env.folder / "pki" / f"{AUTHORITY}.crt").read_bytes()
    return {"url": f"https://127.0.0.1:{env.port('kueue_webhook')}{path}", "caBundle": base64.b64encode(authority).decode()}


def _webhooks(env: Environment) -> list[dict]:
    """Both webhook configurations of its module, their Service replaced by the port on loopback."""
    from orchlab.engines.manifests import manifests

    found = [one for one in crds.read(file for file in manifests(NAME) if "webhook" in file.name) if one["kind"] in _NAMES]
    return [{"apiVersion": one["apiVersion"], "kind": one["kind"], "metadata": {"name": _NAMES[one["kind"]], "labels": {"orchlab/addon": NAME}},
             "webhooks": [hook | {"clientConfig": _client_config(env, hook["clientConfig"]["service"]["path"])} for hook in one["webhooks"]
                          if {group for rule in hook["rules"] for group in rule["apiGroups"]} <= HOOKED]} for one in found]


def _converted(env: Environment, definition: dict) -> dict:
    """The CRD with its conversion webhook at the port on loopback, where it has one."""
    if definition["metadata"]["name"] not in CONVERTED:
        return definition
    conversion = {"strategy": "Webhook", "webhook": {"clientConfig": _client_config(env, "/convert"), "conversionReviewVersions": ["v1"]}}
    return definition | {"spec": definition["spec"] | {"conversion": conversion}}
