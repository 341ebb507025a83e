"""Faults in Slurm's configuration and identity, beyond a daemon that is down and a node that is drained.

    gres-short NODE   the node's gres.conf names one GPU fewer than slurm.conf: slurmd reports fewer, slurmctld sets the node to INVAL
    gres-types        GresTypes is missing from slurm.conf: slurmctld knows no GPUs any more
    munge-key NODE    the node's munged has another key than the rest of the cluster: nobody there is believed, and it believes nobody

They change what is rendered and what runs; clearing one renders everything anew.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from orchlab.environment import Environment, base_variables
from orchlab.errors import BadInput
from orchlab.paths import private_folder, write_private
from orchlab.processes import ProcessSpec
from orchlab.slurm import daemons
from orchlab.slurm.layout import Layout, of

SECONDS = 30
SHORT, TYPES, KEY = "gres-short", "gres-types", "munge-key"
# Kind: (what is to be named, what a learner will see).
KINDS = {
    SHORT: ("slurm node", "gres.conf on the node names one GPU fewer than slurm.conf: INVAL and drained, "
                          "`gres/gpu count reported lower than configured`"),
    TYPES: ("", "GresTypes is missing and slurmctld was restarted: every request for a GPU is refused, "
                "`Invalid generic resource (gres) specification`"),
    KEY: ("slurm node", "the node's munged has another key: `Invalid credential` in its log, not responding, "
                        "then DOWN after SlurmdTimeout"),
}


def targets(env: Environment, kind: str) -> list[str]:
    """The nodes that a kind can be about: for gres-short those with GPUs."""
    return [node.name for node in env.fleet.nodes() if kind != SHORT or node.gpus]


def check(env: Environment, kind: str, target: str) -> None:
    """Raises BadInput if it cannot be caused here."""
    if env.record.slurm not in ("local", "docker") or "slurm" in env.record.left_out:
        raise BadInput("kind", kind, f"environment {env.name!r} runs no Slurm of its own", f"orchlab up --name {env.name} --slurm local")
    if target and target not in targets(env, kind):
        raise BadInput("target", target, "is no Slurm node of this environment that this can happen to",
                       f"one of: {', '.join(targets(env, kind))}")


def held(env: Environment, kind: str) -> list[str]:
    """The targets of a kind that are held now."""
    return [fault["target"] for fault in env.record.faults if fault["kind"] == kind]


def unfit(env: Environment) -> set[str]:
    """Nodes that are out of service while their fault is held."""
    return {*held(env, SHORT), *held(env, KEY)}


# -- what changes


def configuration(env: Environment, files: dict[str, str]) -> dict[str, str]:
    """Slurm's files with the faults in them. Where all nodes share a machine, one with a munged of its own gets a slurm.conf of its own."""
    changed = dict(files)
    if held(env, TYPES):
        changed["slurm.conf"] = re.sub(r"^GresTypes=.*\n", "", changed["slurm.conf"], flags=re.MULTILINE)
    for node in held(env, SHORT):
        changed["gres.conf"] = re.sub(rf"^(NodeName={re.escape(node)} Name=gpu .*File=\S*?)(\[(\d+)-(\d+)\]|\d+)$", _one_fewer,
                                      changed["gres.conf"], count=1, flags=re.MULTILINE)
    layout, strangers = Layout(env.folder), held(env, KEY)
    for node in [] if strangers and daemons.in_containers(env) else strangers:
        changed[f"{node}.conf"] = changed["slurm.conf"].replace(str(layout.munge_socket), str(_socket(layout, node)))
    return changed


def processes(env: Environment, specs: list[ProcessSpec]) -> list[ProcessSpec]:
    """The daemons with the faults in them: a munged of its own for a node whose key differs, and its slurmd told to use it."""
    layout, strangers = Layout(env.folder), held(env, KEY)
    if not strangers:
        return specs
    munged = next(spec for spec in specs if spec.name == "munged")
    answer = []
    for spec in specs:
        node = spec.name.removeprefix("slurmd.")
        if not spec.name.startswith("slurmd.") or node not in strangers:
            answer.append(spec)
            continue
        own = _daemon(node)
        words = {str(layout.munge_socket): str(_socket(layout, node)), str(layout.keys / "munge.key"): str(_key(layout, node)),
                 str(layout.run / "munged.pid"): str(layout.run / f"{own}.pid"),
                 str(layout.folder / "munged.log"): str(layout.folder / f"{own}.log"),
                 str(layout.keys / "munge.seed"): str(layout.keys / f"munge.{node}.seed")}
        probe = replace(munged.probe, target=f"unix:{_socket(layout, node)}",
                        command=tuple(_reworded(word, words) for word in munged.probe.command))
        answer.append(replace(munged, name=own, argv=tuple(_reworded(word, words) for word in munged.argv), probe=probe, files=()))
        conf = layout.etc / f"{node}.conf"
        answer.append(replace(spec, argv=(*spec.argv, "-f", str(conf)), env=spec.env | {"SLURM_CONF": str(conf)}, needs=(*spec.needs, own),
                              files=(*spec.files, conf)))
    return answer


def prepare(env: Environment) -> dict[str, Path]:
    """Makes the wrong keys, once for each fault: what the learner has put in their place stays. Returns them by node."""
    keys = {node: _key(of(env), node) for node in held(env, KEY)}
    for path in keys.values():
        if not path.exists():
            write_private(path, secrets.token_bytes(128))
    return keys


# -- causing and clearing


def _render(env: Environment) -> None:
    from orchlab.slurm import docker, local

    (docker if daemons.in_containers(env) else local).prepare(env)


def _reconfigure(env: Environment, target: str) -> None:
    from orchlab.slurm import notebook

    _render(env)
    notebook.slurm(env, "scontrol reconfigure", seconds=SECONDS)


def _restart_controller(env: Environment, target: str) -> None:
    _render(env)
    daemons.restart(env, "slurmctld", seconds=SECONDS)


def _exchange(env: Environment, target: str) -> None:
    from orchlab.slurm import docker, local

    layout = of(env)
    _render(env)
    if daemons.in_containers(env):
        # The key is mounted into the node's container, which is made anew for it: what ran there ends.
        docker.bring_up(env, lambda text: None)
        if target not in held(env, KEY):
            _key(layout, target).unlink(missing_ok=True)
        return
    env.supervisor.start(env.specs(), base_variables(env.folder), env.held())
    # Where another fault has changed a file since, others are started anew as well.
    env.supervisor.wait_ready([spec for spec in local.processes(env) if spec.name not in env.held()], SECONDS)
    if target not in held(env, KEY):
        for path in (layout.etc / f"{target}.conf", _key(layout, target), layout.keys / f"munge.{target}.seed"):
            path.unlink(missing_ok=True)


ACTIONS: dict[str, tuple[Callable[[Environment, str], None], Callable[[Environment, str], None]]] = {
    SHORT: (_reconfigure, _reconfigure),
    TYPES: (_restart_controller, _restart_controller),
    KEY: (_exchange, _exchange),
}


# -- pieces


def _one_fewer(found: re.Match) -> str:
    if found[4] is None:
        return f"# {found[0]}"
    low, high = int(found[3]), int(found[4]) - 1
    return f"{found[1]}{low}" if low == high else f"{found[1]}[{low}-{high}]"


def _daemon(node: str) -> str:
    return f"munged.{node}"


def _socket(layout: Layout, node: str) -> Path:
    return private_folder(layout.run) / f"munge.{node}.socket"


def _key(layout: Layout, node: str) -> Path:
    return layout.keys / f"munge.{node}.key"


def _reworded(text: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text
