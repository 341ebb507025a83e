"""The `local` backend: a whole Slurm cluster as processes on loopback, run by whoever runs orchlab.

munged, MariaDB, slurmdbd, slurmctld, slurmrestd and one slurmd per node are the real ones; the nodes' CPUs, memory and GPUs are made up.
Jobs are real processes of the same OS user, on this machine.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchlab.environment import Environment, Progress
from orchlab.errors import EngineUnavailable, EnvironmentBroken, TimeLimitReached
from orchlab.paths import private_folder, write_private
from orchlab.processes import NotReady, Probe, ProcessSpec
from orchlab.slurm import accounts, faults, packages, render, scripts, steps
from orchlab.slurm.commands import Commands
from orchlab.slurm.errors import SlurmError
from orchlab.slurm.layout import CLUSTER, Layout
from orchlab.slurm.packages import Programs
from orchlab.slurm.probes import CommandProbe, GreetingProbe, RestProbe
from orchlab.slurm.render import Address, Site

ENGINES = ()  # Slurm comes as packages: `acquire`
CHAIN = ("munged", "mariadbd", "slurmdbd", "slurmctld")  # each needs those before it, and the nodes need them all
MOST_NODES = 256  # one slurmd each
MOST_GPUS = 128  # device files: MIG instances of a node of 16 GPUs


def ports(env: Environment) -> list[str]:
    """The names of the ports that this backend needs."""
    return ["slurmctld", "slurmdbd", *(_slurmd(node.name) for node in env.fleet.nodes())]


def acquire(env: Environment, say: Progress) -> None:
    """Finds or gets the programs, before anything starts. Raises EngineUnavailable: then the environment comes up without Slurm."""
    nodes = env.fleet.nodes()
    if len(nodes) > MOST_NODES:
        raise EngineUnavailable(
            f"the fleet has {len(nodes)} nodes; the local Slurm runs one slurmd for each, at most {MOST_NODES}",
            "use a smaller --fleet, or --slurm none",
        )
    user()
    layout = Layout(env.folder)
    programs = packages.ensure(say)
    private_folder(layout.folder)
    write_private(layout.programs_file, layout.keep_programs(programs))
    env.record.engines["slurm"] = programs.release.version


def user() -> str:
    """The OS user that everything runs as. Raises EngineUnavailable for a user without a name: Slurm knows users by their passwd
    entries."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise EngineUnavailable(
            f"user id {os.geteuid()} has no entry in /etc/passwd, which Slurm needs", "add one, or use another user"
        ) from None


def prepare(env: Environment) -> None:
    """Writes keys, configuration, scripts and the fake devices. Keys are made once; everything else follows the fleet and the clock."""
    layout = Layout(env.folder)
    programs = layout.programs()
    fresh = not env.supervisor.running()
    if fresh:
        steps.end_all(layout.spool)
    for folder in (layout.folder, layout.etc, layout.run, layout.bin, layout.lib, layout.state, layout.spool, layout.dev, layout.keys):
        private_folder(folder)
    _key(layout.keys / "munge.key", 128)
    _key(layout.keys / "jwt.key", 32)
    _devices(layout)
    _loopback(layout, programs)
    if fresh:
        write_private(layout.run / "rebooted", "")
    faults.prepare(env)
    for name, text in faults.configuration(env, render.files(site(env), env.fleet.nodes())).items():
        write_private(layout.etc / name, text)
    scripts.write(layout, programs, env.record.clock, user())


def site(env: Environment) -> Site:
    """This backend's part of the configuration."""
    layout, programs = Layout(env.folder), Layout(env.folder).programs()
    me = user()
    plugins = (f"PluginDir={':'.join(map(str, programs.plugins))}",) if programs.root else ()
    extra = (*plugins, f"TaskProlog={layout.bin / 'task-prolog'}")
    addresses = {node.name: Address("localhost", "127.0.0.1", env.port(_slurmd(node.name))) for node in env.fleet.nodes()}
    return Site(
        release=programs.release,
        cluster=CLUSTER,
        user=me,
        slurmd_user=me,
        controller="localhost(127.0.0.1)",
        controller_port=env.port("slurmctld"),
        slurmd_port=min(env.port(name) for name in ports(env)[2:]),
        dbd_hostname="localhost",
        dbd_host="127.0.0.1",
        dbd_port=env.port("slurmdbd"),
        munge_socket=str(layout.munge_socket),
        jwt_key=str(layout.keys / "jwt.key"),
        state=str(layout.state),
        spool=str(layout.spool / "%n"),
        run=str(layout.run),
        devices=str(layout.dev),
        database_host="localhost",
        database_user=me,
        database_extra=plugins,
        extra=extra,
        addresses=addresses,
    )


def processes(env: Environment) -> list[ProcessSpec]:
    """All daemons. Needs the files of `prepare`."""
    layout = Layout(env.folder)
    programs = layout.programs()
    slurm_env = _client(layout)
    daemon_env = slurm_env | ({"LD_PRELOAD": str(layout.preload)} if layout.preload.exists() else {})
    config = tuple(layout.etc / name for name in ("slurm.conf", "gres.conf", "cgroup.conf", "topology.conf"))
    keys = (layout.keys / "munge.key", layout.keys / "jwt.key")

    def daemon(name: str, argv: tuple[object, ...], probe: Probe, *needs: str, **more) -> ProcessSpec:
        return ProcessSpec(name, tuple(map(str, argv)), probe, needs, folder=layout.folder, **({"env": daemon_env} | more))

    def listening(port: str, *command: str) -> Probe:
        target = f"listens:{env.port(port)}"
        return CommandProbe(target, command=(str(layout.bin / command[0]), *command[1:]), env=slurm_env) if command else Probe(target)

    munge_check = CommandProbe(
        f"unix:{layout.munge_socket}",
        command=(str(layout.bin / "munge"), "-n", f"--socket={layout.munge_socket}", "-o", "/dev/null"),
        env=programs.environment,
    )
    return faults.processes(
        env,
        [
            daemon("munged", scripts.munged(layout, programs), munge_check, files=keys[:1], env=programs.environment),
            daemon(
                "mariadbd",
                (layout.bin / "start-mariadbd",),
                GreetingProbe(f"unix:{layout.mysql_socket}"),
                env=programs.environment,
                stop_seconds=15,
                files=(layout.bin / "start-mariadbd",),
            ),
            daemon(
                "slurmdbd",
                (programs.paths["slurmdbd"], "-D"),
                listening("slurmdbd", "sacctmgr", "-n", "show", "stats"),
                "munged",
                "mariadbd",
                ports=("slurmdbd",),
                env=daemon_env | {"MYSQL_UNIX_PORT": str(layout.mysql_socket)},
                files=(layout.etc / "slurmdbd.conf", *keys),
                stop_seconds=10,
            ),
            daemon(
                "slurmctld",
                (layout.bin / "slurmctld", "-D"),
                listening("slurmctld", "scontrol", "show", "partition"),
                "munged",
                "slurmdbd",
                waits=(f"file:{layout.registered}",),
                ports=("slurmctld",),
                files=(*config, *keys),
                stop_seconds=10,
            ),
            daemon(
                "slurmrestd",
                (layout.bin / "start-slurmrestd",),
                RestProbe(f"unix:{layout.rest_socket}"),
                "munged",
                "slurmctld",
                env=daemon_env | scripts.REST_ENVIRONMENT,
                files=(layout.bin / "start-slurmrestd", *config, *keys),
            ),
            *(
                daemon(
                    _slurmd(node.name),
                    (layout.bin / "slurmd", "-D", "-b", "-N", node.name, "-d", layout.bin / "slurmstepd"),
                    listening(_slurmd(node.name)),
                    "munged",
                    "slurmctld",
                    ports=(_slurmd(node.name),),
                    files=(*config, *keys[:1]),
                )
                for node in env.fleet.nodes()
            ),
        ],
    )


def bring_up(env: Environment, say: Progress, seconds: float = 90) -> None:
    """Once the database answers at the first start: the cluster's entry, then the marker that lets slurmctld start."""
    layout = Layout(env.folder)
    if layout.registered.exists() or env.held() & set(CHAIN):
        return
    chain = [spec for spec in processes(env) if spec.name in CHAIN[:3]]
    deadline = time.monotonic() + seconds
    while late := _first_not_ready(chain):
        env.supervisor.raise_if_given_up([spec.name for spec in chain])
        if time.monotonic() > deadline:
            name, seen = late
            raise TimeLimitReached(
                f"{name} is not ready after {seconds:.0f} s ({seen}). Its last lines:\n{env.supervisor.log_tail(name)}",
                f"orchlab logs {name} --name {env.name}",
            )
        time.sleep(0.05)
    accounts.add_cluster(layout, _client(layout))
    write_private(layout.registered, "")


def settle(env: Environment, say: Progress, seconds: float = 60) -> None:
    """Makes the accounts, once, and waits until every node can take jobs, except those that somebody has drained or a fault keeps down."""
    layout, held = Layout(env.folder), env.held()
    if held & set(CHAIN):
        return
    if layout.registered.read_text() != accounts.digest(user()):
        say("making accounts")
        accounts.add_accounts(layout, user(), _client(layout))
        write_private(layout.registered, accounts.digest(user()))
    deadline = time.monotonic() + seconds
    wanted = {node.name for node in env.fleet.nodes() if _slurmd(node.name) not in held} - faults.unfit(env)
    while True:
        states = _node_states(layout)
        unfit = {name: states.get(name, "unknown to slurmctld") for name in wanted if not _usable(states.get(name, ""))}
        if not unfit:
            _requeue_lost(layout)
            say(f"{len(wanted)} nodes are in Slurm")
            return
        if time.monotonic() > deadline:
            few = ", ".join(f"{name} {state}" for name, state in sorted(unfit.items())[:5])
            raise TimeLimitReached(
                f"{len(unfit)} of {len(wanted)} Slurm nodes are not usable after {seconds:.0f} s: {few}",
                f"orchlab logs {_slurmd(min(unfit))} --name {env.name}; sinfo -R gives slurmctld's reasons",
            )
        time.sleep(0.05)


def before_stop(env: Environment) -> None:
    """Ends jobs as a power cut would: slurmctld and the slurmds first, then what they run. At the next start slurmctld finds the nodes
    rebooted (slurmd -b) and requeues the jobs. In another order slurmctld would hear of every job that its script was terminated."""
    supervisor = env.supervisor
    if supervisor.running():
        with ThreadPoolExecutor(max_workers=16) as pool:
            list(pool.map(supervisor.stop_process, ["slurmctld", *(_slurmd(node.name) for node in env.fleet.nodes())]))
    steps.end_all(Layout(env.folder).spool)


def clean(env: Environment) -> None:
    """After everything has stopped: sockets, pid files and what jobs left in the spool."""
    layout = Layout(env.folder)
    for path in [*layout.run.glob("*")] if layout.run.is_dir() else []:
        path.unlink(missing_ok=True)


def variables(env: Environment) -> dict[str, str]:
    """For a shell that is to use this cluster."""
    return Layout(env.folder).variables()


# -- pieces


def _client(layout: Layout) -> dict[str, str]:
    """The environment of a command that asks this cluster."""
    return {"SLURM_CONF": str(layout.conf)} | layout.programs().environment


def _slurmd(node: str) -> str:
    return f"slurmd.{node}"


def _requeue_lost(layout: Layout) -> None:
    """Jobs that ran when everything stopped. slurmctld requeues those that it misses on a node that was rebooted, but one that had started
    less than 20 s before (BatchStartTimeout and MessageTimeout) only at the node's next registration, minutes later."""
    marker = layout.run / "rebooted"
    if not marker.exists():
        return
    commands = Commands(layout.variables())
    for job in commands.jobs():
        if job.state == "RUNNING" and (job.started or 0) < marker.stat().st_mtime:
            # Refused for what is no batch job, or not to be requeued: slurmctld will end it as NODE_FAIL.
            with contextlib.suppress(SlurmError):
                commands.requeue(str(job.id))
    marker.unlink()


def _key(path: Path, size: int) -> None:
    if not path.exists():
        write_private(path, secrets.token_bytes(size))


def _devices(layout: Layout) -> None:
    """Slurm wants character devices, and ordinary users cannot make those: links to /dev/null pass."""
    for kind in ("nvidia", "mig"):
        for number in range(MOST_GPUS):
            link = layout.dev / f"{kind}{number}"
            if not link.is_symlink():
                link.symlink_to("/dev/null")


def _loopback(layout: Layout, programs: Programs) -> None:
    source = Path(__file__).with_name("loopback.c")
    if layout.preload.exists() and layout.preload.stat().st_mtime > source.stat().st_mtime:
        return
    if programs.compiler is None:
        raise EnvironmentBroken(
            "without a C compiler Slurm's daemons would listen on all interfaces", "install one: apt install tcc (or gcc)"
        )
    unfinished = layout.lib / "loopback.new"
    done = subprocess.run(
        [programs.compiler, "-shared", "-fPIC", "-nostdlib", "-o", unfinished, source],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | programs.environment,
    )
    if done.returncode:
        raise EnvironmentBroken(f"{programs.compiler} cannot compile {source.name}: {done.stderr.strip()}", "orchlab doctor")
    unfinished.replace(layout.preload)


def _first_not_ready(specs: list[ProcessSpec]) -> tuple[str, str] | None:
    """The first whose probe fails, and what it saw. Each needs those before it."""
    for spec in specs:
        try:
            spec.probe.check()
        except NotReady as error:
            return spec.name, str(error)
    return None


def _node_states(layout: Layout) -> dict[str, str]:
    """State by node in sinfo's words (idle, mixed, down*, drained …); empty while slurmctld does not answer."""
    try:
        done = subprocess.run(
            [layout.bin / "sinfo", "-h", "-N", "-o", "%N %T"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
            env=os.environ | _client(layout),
        )
    except subprocess.TimeoutExpired:
        return {}
    return dict(line.split(None, 1) for line in done.stdout.splitlines() if " " in line)


def _usable(state: str) -> bool:
    # * not responding, # powering up, ~ powered down: none of these has a slurmd that was heard of.
    return state.rstrip("$@+") in ("idle", "mixed", "allocated", "completing", "reserved", "planned", "draining", "drained", "maint")
