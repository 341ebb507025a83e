"""Optional engines of an environment: added when a lab asks for one, kept over `down` and `up`, removed without a trace.

They run as processes on the `local` backend. What one needs in the cluster (CRDs, rights, webhooks) comes and goes with it. Adding one that is there already
heals it. An environment without any pays nothing: no import, no probe.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from pathlib import Path
from types import ModuleType

from orchlab.environment import Environment, Progress, base_variables
from orchlab.errors import ApiError, BadInput, EngineUnavailable, EnvironmentBroken, OrchlabError
from orchlab.kube import crds
from orchlab.kube.client import Client
from orchlab.paths import write_private
from orchlab.processes import ProcessSpec

MODULES = {"kueue": "orchlab.kube.kueue", "coscheduling": "orchlab.kube.coscheduling"}
LABEL = "orchlab/addon"
SECONDS = 120
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"


def add(env: Environment, name: str, say: Progress | None = None, seconds: float = SECONDS) -> Environment:
    """Adds the engine `name` and waits until it works; gets its binary first, which takes minutes if it has to be built. Heals it if it is there.

    `say` is told what happens (as of `orchlab.environment.up`; its attribute `engine`, if it has one, gets the reports of a build); `seconds` is for the
    engine's start. Returns the environment as it is then. Raises BadInput (unknown engine, not the `local` backend), EngineUnavailable, EnvironmentBroken
    (not running), TimeLimitReached. When it raises, an engine that was not there before is not there afterwards.
    """
    from orchlab import ports
    from orchlab.kube import local

    say = say or (lambda text: None)
    module = _module(name)
    client = _reachable(env, name)
    binary = _binary(module, getattr(say, "engine", None))
    with env.lock(progress=say):
        env = Environment.load(env.name)
        new = name not in env.record.addons
        try:
            if new:
                env.record.addons.append(name)
            env.record.engines[name] = str(binary)
            ports.assign(env, list(module.PORTS), False)
            env.save()
            say(f"installing {name} in the cluster")
            local.prepare(env)
            install(env, client, [name])
            say(f"starting {name}")
            env.supervisor.start(env.specs(), base_variables(env.folder), env.held())
            own = module.processes(env, _wait(env, name))
            if not env.held() & {spec.name for spec in own}:
                env.supervisor.wait_ready(own, seconds)
                module.wait(env, seconds)
        except BaseException:
            if new:
                say(f"removing what was begun of {name}")
                # What cannot be removed now is swept by the next reset; the first error is the one to be told.
                with contextlib.suppress(OrchlabError):
                    _take_out(env, name, seconds)
            raise
    say(f"{name} works")
    return env


def remove(env: Environment, name: str, say: Progress | None = None, seconds: float = SECONDS) -> Environment:
    """Removes the engine with its processes, webhooks, CRDs (with all their objects) and rights. Jobs and pods stay as they are: a Job that Kueue holds back
    stays suspended, a pod that waits for a scheduler which is gone stays Pending. Harmless when it isn't there.

    Raises BadInput (unknown engine), EnvironmentBroken (not running), TimeLimitReached with what is left."""
    say = say or (lambda text: None)
    _module(name)
    _reachable(env, name)
    with env.lock(progress=say):
        env = Environment.load(env.name)
        say(f"removing {name}")
        _take_out(env, name, seconds)
    return env


def present(env: Environment) -> list[str]:
    """The engines that were added to it, in their order."""
    return list(env.record.addons)


def forget(name: str) -> list[str]:
    """Takes all added engines out of an environment's record, so that the next `up` runs without them, however broken they are. `sweep` is to follow. Returns
    their names; none for an environment that is not there."""
    try:
        env = Environment.load(name)
        with env.lock():
            env = Environment.load(name)
            gone, env.record.addons = env.record.addons, []
            if gone:
                env.save()
            return gone
    except EnvironmentBroken:
        return []


def sweep(env: Environment, seconds: float = SECONDS) -> list[str]:
    """Removes from the cluster what engines left that are not (any more) in the environment's record. Returns their names. One request if there is nothing."""
    if env.record.kubernetes != "local":
        return []
    client = env.client()
    groups = {group["name"] for group in client.get("/apis")["groups"]}
    left = [name for name in MODULES if name not in env.record.addons and _module(name).GROUP in groups]
    for name in left:
        _purge(env, client, name, seconds)
    return left


def versions(env: Environment) -> dict[str, str]:
    """The version of each added engine, by name."""
    from orchlab import engines

    return {name: engines.load(name).version for name in env.record.addons}


# -- what the `local` backend asks for


def chosen(env: Environment) -> list[ModuleType]:
    return [_module(name) for name in env.record.addons]


def processes(env: Environment) -> list[ProcessSpec]:
    return [spec for module in chosen(env) for spec in module.processes(env, _wait(env, module.NAME))]


def install(env: Environment, client: Client, names: list[str] | None = None) -> None:
    """Puts into the cluster what the engines need there, then lets them start. Raises ApiError, TimeLimitReached."""
    for name in env.record.addons if names is None else names:
        module = _module(name)
        objects = module.objects(env)
        crds.install(client, [one for one in objects if one["kind"] == "CustomResourceDefinition"])
        for one in objects:
            if one["kind"] != "CustomResourceDefinition":
                client.apply(one | {"metadata": one["metadata"] | {"labels": {LABEL: name}}})
        write_private(_marker(env, name), "")


def settle(env: Environment, seconds: float) -> None:
    for module in chosen(env):
        module.wait(env, seconds)


# -- pieces


def _module(name: str) -> ModuleType:
    if name not in MODULES:
        raise BadInput("engine", name, "is no engine that can be added", f"one of: {', '.join(MODULES)}")
    return importlib.import_module(MODULES[name])


def _binary(module: ModuleType, report) -> Path:
    """The engine's program; where it has to be made, how long that takes is said first."""
    from orchlab import engines

    try:
        return engines.ensure([module.NAME], allow=("cache",))[module.NAME]
    except EngineUnavailable:
        if report:
            report(engines.Progress(module.NAME, "note", None, f"is made once, in about {module.BUILD_MINUTES} min on two idle cores"))
        return engines.ensure([module.NAME], progress=report)[module.NAME]


def _reachable(env: Environment, name: str) -> Client:
    """A client, if engines can be added there now. Raises BadInput or EnvironmentBroken."""
    if env.record.kubernetes != "local":
        raise BadInput("kubernetes", env.record.kubernetes, f"{name} runs on the backend local only; on kind there are the default scheduler and the native gang scheduling",
                       "orchlab up --name gangs --kubernetes local, then add it there")
    client = env.client()
    try:
        client.get("/readyz")
    except (ApiError, EnvironmentBroken):
        raise EnvironmentBroken(f"environment {env.name!r} is not running, so {name} can be neither added nor removed", f"orchlab up --name {env.name}") from None
    return client


def _take_out(env: Environment, name: str, seconds: float) -> None:
    """Out of the record, then its processes, then what it has in the cluster."""
    if name in env.record.addons:
        env.record.addons.remove(name)
    env.save()
    if env.supervisor.running():
        env.supervisor.start(env.specs(), base_variables(env.folder), env.held())
    _purge(env, env.client(), name, seconds)


def _purge(env: Environment, client: Client, name: str, seconds: float) -> None:
    module = _module(name)
    _marker(env, name).unlink(missing_ok=True)
    module.before_purge(env)
    deadline = time.monotonic() + seconds
    # Begun first: the namespace controller lets a deleted namespace wait for 5 s before it looks at it.
    spaces = _spaces(client, name)
    for space in spaces:
        if not space["metadata"].get("deletionTimestamp"):
            client.delete(f"/api/v1/namespaces/{space['metadata']['name']}")
    crds.remove(client, module.GROUP, seconds)
    for path in (f"{RIGHTS}/clusterrolebindings", f"{RIGHTS}/clusterroles"):
        client.delete(path, labelSelector=f"{LABEL}={name}")
    while spaces := _spaces(client, name):
        crds.check(deadline, seconds, [space["metadata"]["name"] for space in spaces])
        time.sleep(0.2)


def _spaces(client: Client, name: str) -> list[dict]:
    return client.list("/api/v1/namespaces", labelSelector=f"{LABEL}={name}")[0]


def _marker(env: Environment, name: str) -> Path:
    return env.folder / f"addon-{name}"


def _wait(env: Environment, name: str) -> str:
    return f"file:{_marker(env, name)}"
