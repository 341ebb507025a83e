"""What the operator, its operands and Node Feature Discovery do to one node next. Pure: from what is known of the node to what is to be
written. Called again and again until nothing is left to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from orchlab.gpu_operator import devices, gates, migration, names, operands
from orchlab.gpu_operator.devices import Machine, State
from orchlab.gpu_operator.gates import OperandPod
from orchlab.gpu_operator.migration import Run
from orchlab.gpu_operator.policy import Policy
from orchlab.simulator.inventory import registered
from orchlab.simulator.plugins import INVENTORY
from orchlab.simulator.pods import CRASH, DEVICES, INIT, INIT_ERROR, LOG
from orchlab.simulator.stages import KUBELET_LABEL

# Node Feature Discovery and GPU Feature Discovery look again so often (simulated s).
RENEW = 60.0
# What the operator remembers may wait so long for a change that is written anyway (simulated s).
SOON = 30.0
DRIVER_LOG = ("========== NVIDIA Software Installer ==========\nFATAL: Module nvidia not found in directory /lib/modules/simulated\n"
              "Unable to load the NVIDIA kernel modules")


@dataclass(frozen=True)
class View:
    """What is known of a node. `pods` are the operands' by DaemonSet, `config_map` gives a ConfigMap's data of the operator's namespace
    or None, `busy` asks which devices pods hold, `broken` says that its driver cannot be loaded, `now` is in simulated seconds."""

    name: str
    labels: Mapping[str, str]
    notes: Mapping[str, str]
    allocatable: Mapping[str, str]
    policy: Policy | None
    pods: Mapping[str, OperandPod]
    config_map: Callable[[str], Mapping[str, str] | None]
    environment: str
    busy: Callable[[], frozenset[str]] = frozenset
    broken: bool = False
    now: float = 0.0


@dataclass
class Memory:
    """What is remembered of a node only while the operator runs, simulated seconds: when its pods were first seen, when a label that
    somebody changed is to be put back, when what it remembers is to be written, what the MIG manager is at."""

    seen: dict[str, float] = field(default_factory=dict)
    renew: float | None = None
    unsaved: float | None = None
    run: Run | None = None


@dataclass
class Decision:
    """Changes to a node's labels and annotations (None removes), to annotations of pods, pods to delete, the content of the node's
    generated MIG configuration, and in how many simulated seconds to look again."""

    labels: dict[str, str | None] = field(default_factory=dict)
    notes: dict[str, str | None] = field(default_factory=dict)
    pods: list[tuple[OperandPod, dict[str, str | None]]] = field(default_factory=list)
    delete: list[OperandPod] = field(default_factory=list)
    mig_config: str | None = None
    after: float | None = None
    state: State = field(default_factory=State)

    def look_again(self, seconds: float | None) -> None:
        if seconds is not None:
            self.after = seconds if self.after is None else min(self.after, seconds)


def decide(view: View, memory: Memory) -> Decision:
    """One look at a node."""
    made = Decision(state=State.of(view.notes.get(names.STATE, "")))
    found, state = Machine.of(view.environment, view.name, view.notes), made.state
    if found is None:
        _bare(view, made)
        return made
    if (state.model, state.count) != (found.model, found.count):
        made.state = state = State(found.model, found.count)
    wanted: dict[str, str | None] = {}
    renewed = _node_feature_discovery(view, state, wanted)
    _place(view, wanted)
    _health(view, made)
    renewed |= _plugin_and_discovery(view, found, made, wanted)
    _mig(view, memory, found, made, wanted)
    _open(view, memory, found, made)
    _labels(view, memory, made, wanted, renewed)
    _remember(view, memory, made, state)
    return made


def _remember(view: View, memory: Memory, made: Decision, state: State) -> None:
    """Writes what changed in the state with the next change of the node, or soon; what happened to the hardware at once."""
    known, text = view.notes.get(names.STATE), state.dump()
    if text == known:
        memory.unsaved = None
        return
    before = State.of(known or "")
    if made.labels or made.notes or (before.mig, before.ill, before.mig_done) != (state.mig, state.ill, state.mig_done):
        memory.unsaved = None
        made.notes[names.STATE] = text
    elif memory.unsaved is None:
        memory.unsaved = view.now + SOON
        made.look_again(SOON)
    elif view.now >= memory.unsaved:
        memory.unsaved = None
        made.notes[names.STATE] = text
    else:
        made.look_again(memory.unsaved - view.now)


def _bare(view: View, made: Decision) -> None:
    """A node without GPUs, or that lost them."""
    if view.labels.get(names.PRESENT) == "true":
        made.labels[names.PRESENT] = "false"
    made.labels |= {key: None for key in view.labels
                    if key in names.NFD or key.startswith(names.DEPLOY) or (names.STATE in view.notes and names.is_discovered(key))}
    made.notes |= {key: None for key in (names.STATE, INVENTORY) if key in view.notes}


def _node_feature_discovery(view: View, state: State, wanted: dict[str, str | None]) -> bool:
    worker = view.pods.get(names.NFD_WORKER)
    if worker is None or not worker.runs:
        return False
    wanted[names.NFD[0]] = "true"
    fresh, state.nfd = state.nfd != worker.instance, worker.instance
    return fresh


def _place(view: View, wanted: dict[str, str | None]) -> None:
    """The operator's own labels: a node with GPUs gets gpu.present and, unless it opted out, what makes the operands come. A value that
    somebody chose stays."""
    discovered = wanted.get(names.NFD[0]) == "true" or any(view.labels.get(label) == "true" for label in names.NFD)
    deployed = {label for label in view.labels if label.startswith(names.DEPLOY)}
    if view.policy is None or not discovered:
        wanted |= dict.fromkeys(deployed - {names.OPERANDS_OFF})
        if names.PRESENT in view.labels:
            # The real operator says so of a node that lost its GPU; without a policy nobody does.
            wanted[names.PRESENT] = None if view.policy is None else "false"
        if view.policy is None:
            wanted |= {label: None for label in view.labels if names.is_discovered(label) or label in (names.MIG_CONFIG, names.MIG_STATE)}
        return
    wanted[names.PRESENT] = "true"
    if view.labels.get(names.OPERANDS_OFF) == "false":
        wanted |= dict.fromkeys(deployed - {names.OPERANDS_OFF})
        return
    mig_capable = view.labels.get(names.MIG_CAPABLE) == "true"
    for part in (*operands.DEPLOYED, *(["mig-manager"] if mig_capable else [])):
        if names.DEPLOY + part not in view.labels:
            wanted[names.DEPLOY + part] = "true"
    if not mig_capable and names.DEPLOY + "mig-manager" in view.labels:
        wanted[names.DEPLOY + "mig-manager"] = None
    default = view.policy.mig_config[1]
    if mig_capable and default and view.policy.enabled("migManager") and names.MIG_CONFIG not in view.labels:
        wanted[names.MIG_CONFIG] = default


def _health(view: View, made: Decision) -> None:
    """XID errors reach the plugin that runs now; one that has just started takes every GPU for healthy."""
    plugin = view.pods.get(operands.PLUGIN_DS)
    if plugin is not None and plugin.instance != made.state.plugin.instance:
        made.state.ill = {}
    if names.XID in view.notes:
        made.notes[names.XID] = None
        try:
            found = {str(int(index)): int(xid) for index, xid in json.loads(view.notes[names.XID]).items()}
        except (ValueError, AttributeError, TypeError):
            found = {}
        if plugin is not None and plugin.runs:
            made.state.ill |= found


def _plugin_and_discovery(view: View, found: Machine, made: Decision, wanted: dict[str, str | None]) -> bool:
    """What the plugin registers and GPU Feature Discovery labels now. Returns whether its labels are new."""
    state = made.state
    plugin, gfd = view.pods.get(operands.PLUGIN_DS), view.pods.get(operands.GFD_DS)
    text = devices.NOTHING
    if plugin is not None and _has_read(view, plugin, state.plugin):
        result = devices.registration(found, state, _strategy(plugin), state.plugin.text)
        notes = {LOG: result.error or "\n".join(result.lines), CRASH: "true" if result.error else None}
        _note(made, plugin, notes)
        if plugin.runs and not result.error and _mps_serves(view, state.plugin.text):
            text = result.text
    if view.notes.get(INVENTORY, devices.NOTHING) != text:
        made.notes[INVENTORY] = text
        if view.labels.get(KUBELET_LABEL[0]) == "real":
            # What the simulated kubelets write on their nodes; a real one tells nobody which devices it has.
            slots = {resource: one.ids for resource, one in sorted(registered(text).items())}
            made.notes[DEVICES] = json.dumps(slots) if slots else None
    if gfd is None or view.policy is None:
        return False
    before = (state.gfd.instance, state.gfd.name, state.gfd.text)
    if not _has_read(view, gfd, state.gfd):
        return False
    said = devices.discovery(found, state, _strategy(gfd), state.gfd.text)
    _note(made, gfd, {LOG: said.error or None, CRASH: "true" if said.error else None})
    if said.error or not gfd.runs:
        # It has not labelled yet: this run of it is still news.
        state.gfd.instance = state.gfd.instance if said.error or gfd.runs else ""
        return False
    wanted |= {label: None for label in view.labels if names.is_discovered(label)}
    wanted |= dict(said.labels)
    return before != (state.gfd.instance, state.gfd.name, state.gfd.text)


def _has_read(view: View, pod: OperandPod, loaded: devices.Loaded) -> bool:
    """Keeps `loaded` in step with what the pod's program has read: at its start, and when the config-manager switches to another name.
    False when there is nothing that it could read."""
    chosen = selected(view.labels, pod)
    files = view.config_map(pod.config_map) if pod.config_map else None
    if pod.config_map and chosen and chosen not in (files or {}):
        # The init container fails; a program that runs already keeps what it has.
        return loaded.instance == pod.instance
    if pod.instance != loaded.instance or chosen != loaded.name or not pod.open:
        loaded.instance, loaded.name, loaded.text = pod.instance, chosen, (files or {}).get(chosen, "") if chosen else ""
    return True


def selected(labels: Mapping[str, str], pod: OperandPod) -> str:
    """The configuration that the pod's config-manager chooses: the node's label, else the policy's default; "" for none."""
    return labels.get(names.PLUGIN_CONFIG) or dict(pod.env).get("DEFAULT_CONFIG", "") if pod.config_map else ""


def _strategy(pod: OperandPod) -> str:
    return dict(pod.env).get("MIG_STRATEGY", "none")


def _mps_serves(view: View, text: str) -> bool:
    """A plugin that shares by MPS registers once the control daemon of its node is ready."""
    daemon = view.pods.get(operands.MPS_DS)
    return not devices.needs_mps(text) or (daemon is not None and daemon.runs)


def _mig(view: View, memory: Memory, found: Machine, made: Decision, wanted: dict[str, str | None]) -> None:
    manager = view.pods.get(operands.MIG_DS)
    if view.policy is None or manager is None or not manager.runs:
        memory.run = None
        return
    own = view.policy.mig_config[0]
    if not own:
        # The operator's own: whoever edits it finds it as it was.
        made.mig_config = migration.generated(found.model, found.count)
    files = view.config_map(own) if own else {migration.KEY: made.mig_config}
    next_step = migration.step(view.labels, view.pods, made.state, found, files, memory.run, view.busy, view.now)
    memory.run = next_step.run
    wanted |= next_step.labels
    made.look_again(next_step.after)
    if next_step.log is not None:
        _note(made, manager, {LOG: next_step.log})
    if names.MIG_CONFIG not in view.labels:
        # The next value is news, whatever it is.
        made.state.mig_done = ""
    if next_step.done:
        made.state.mig_done = f"{manager.instance} {view.labels[names.MIG_CONFIG]}"
    if next_step.restart_validator and operands.VALIDATOR_DS in view.pods:
        made.delete.append(view.pods[operands.VALIDATOR_DS])


def _open(view: View, memory: Memory, found: Machine, made: Decision) -> None:
    """Lets the init containers of the node's operands go on."""
    advertised = any(key.startswith(names.PREFIX) and value != "0" for key, value in view.allocatable.items())
    pods = {name: pod for name, pod in view.pods.items() if name in operands.BY_NAME}
    now = gates.validations(pods, advertised)
    made.state.driver = now.driver
    memory.seen = {pod.uid: memory.seen.get(pod.uid, view.now) for pod in pods.values()}
    for pod in pods.values():
        if pod.operand == operands.DRIVER_DS:
            _note(made, pod, {CRASH: "true" if view.broken else None, LOG: DRIVER_LOG if view.broken else None})
        if pod.open or pod.deleting:
            continue
        done, again = gates.progress(pod, now, view.now - memory.seen[pod.uid])
        made.look_again(again)
        if operands.CONFIG_INIT in pod.inits[:done] and (name := selected(view.labels, pod)) and \
                name not in (view.config_map(pod.config_map) or {}):
            done = pod.inits.index(operands.CONFIG_INIT)
            _note(made, pod, {INIT: str(done), INIT_ERROR: f"specified config {name} does not exist"})
            continue
        _note(made, pod, {INIT: gates.ALL if done == len(pod.inits) else str(done), INIT_ERROR: None})


def _labels(view: View, memory: Memory, made: Decision, wanted: dict[str, str | None], renewed: bool) -> None:
    """Writes labels that differ: at once when something new was found out, else when discovery looks again."""
    change = {key: value for key, value in wanted.items() if view.labels.get(key) != value}
    lazy = {key for key in change if (key in names.NFD or names.is_discovered(key)) and view.policy is not None}
    if lazy and not renewed:
        memory.renew = view.now + RENEW if memory.renew is None else memory.renew
        if view.now < memory.renew:
            made.look_again(memory.renew - view.now)
            change = {key: value for key, value in change.items() if key not in lazy}
    if not lazy or renewed or (memory.renew is not None and view.now >= memory.renew):
        memory.renew = None
    made.labels |= change


def _note(made: Decision, pod: OperandPod, notes: dict[str, str | None]) -> None:
    """Adds to what is to be written on a pod, leaving out what it says already."""
    for known, change in made.pods:
        if known is pod:
            break
    else:
        change = {}
        made.pods.append((pod, change))
    change |= {key: value for key, value in notes.items() if pod.note(key) != value}
    if not change:
        made.pods = [entry for entry in made.pods if entry[0] is not pod]
