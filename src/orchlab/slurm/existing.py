"""The `existing` backend: a Slurm cluster that is somebody else's, by the commands of a login node or by a slurmrestd.

Nothing of it is started, stopped or changed. orchlab reads, submits as the user, and cancels only what was submitted through this
environment: the job ids are noted down, by a wrapper around sbatch or by the client.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import pwd
import re
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from orchlab.environment import Environment, Progress
from orchlab.errors import BadInput, EngineUnavailable, EnvironmentBroken, OrchlabError
from orchlab.paths import private_folder, write_private
from orchlab.processes import ProcessSpec
from orchlab.slurm import scripts
from orchlab.slurm.errors import SlurmError
from orchlab.slurm.layout import Layout
from orchlab.slurm.packages import MORE_COMMANDS, NEEDED_COMMANDS
from orchlab.slurm.transport import Transport
from orchlab.supervisor import ProcessState

log = logging.getLogger(__name__)
ENGINES = ()
PORTS = ()
FOLDER = "slurm-existing"
SECONDS = 10
NOBODYS = "the Slurm of this environment is an existing cluster, which orchlab never changes"
# What scontrol and sacctmgr may do in a notebook: look, and what a user may do to jobs.
LOOKING = {"scontrol": {"show", "ping", "hold", "uhold", "release", "requeue", "requeuehold", "listpids", "version"},
           "sacctmgr": {"show", "list", "version"}}
_NOTED = re.compile(r"(?:Submitted batch job )?(\d+)")
_TOKEN = re.compile(r"[\w.~+/=-]+")

WRAPPER = """\
#!/bin/sh
# {command} of the cluster that environment {name} uses.
{conf}
exec {program} "$@"
"""
# sbatch's words go through tee, its exit status through descriptor 3.
NOTING = """\
#!/bin/sh
# sbatch of the cluster that environment {name} uses; what it submits is noted, so that a reset knows the lab's own jobs.
{conf}
exec 4>&1
status=$( {{ {{ {program} "$@" 3>&- 4>&-; echo $? >&3; }} | tee -a {noted} >&4; }} 3>&1 )
exit "$status"
"""


@dataclass(frozen=True)
class Choice:
    """What the last `up` chose, kept in chosen.json. A slurmrestd: `url`, and `user` as the token names him. Commands: their paths, and the
    `conf` (SLURM_CONF) that they had, "" for Slurm's own default. The token is in a file of its own."""

    version: str = ""
    url: str = ""
    user: str = ""
    conf: str = ""
    commands: dict[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """What tells one cluster from another."""
        return self.url or f"{self.conf}|{self.commands.get('sinfo', '')}"


# -- what environment.py calls


def acquire(env: Environment, say: Progress) -> None:
    """Chooses the way to the cluster and asks it once. `env.slurm_access` is what `up` was given: an address ("" for the commands on PATH,
    None for what was chosen before) and a token. Raises BadInput, EngineUnavailable, EnvironmentBroken, TimeLimitReached."""
    url, given = env.slurm_access
    before, folder = _read(env.folder), private_folder(env.folder / FOLDER)
    if url is None and before:
        url = before.url
    say("asking the existing Slurm")
    if url:
        text = _checked(given) or _stored(env.folder)
        choice = Choice(url=_address(url), user=claims(text).get("sun") or pwd.getpwuid(os.geteuid()).pw_name)
        if not text:
            raise EnvironmentBroken(f"slurmrestd at {url} wants a token",
                                    "export $(scontrol token lifespan=86400) where scontrol works, or --slurm-token-file FILE")
    else:
        text = ""
        choice = before if before and not before.url and env.slurm_access[0] is None and _there(before) else _on_path()
    from orchlab.slurm.client import Client

    programs = Path(choice.commands.get("sinfo", "")).parent
    with Client(_transports(choice, programs, lambda: _unexpired(text, env.name), SECONDS)[:1]) as client:
        try:
            choice = Choice(**asdict(choice) | {"version": client.version()})
            client.nodes()
        except SlurmError as error:
            raise EnvironmentBroken(f"{url or f'the commands in {programs}'} reach no Slurm: {error.text}",
                                    "give it a token that it takes: export $(scontrol token lifespan=86400)" if url
                                    else "see whether sinfo works in this shell: SLURM_CONF may be missing") from None
    if before and before.target != choice.target:
        # Numbers of another cluster's jobs: nothing of them is to be cancelled here.
        _noted(env.folder).unlink(missing_ok=True)
    if text:
        write_private(folder / "token", text)
    else:
        (folder / "token").unlink(missing_ok=True)
    write_private(folder / "chosen.json", json.dumps(asdict(choice), indent=1) + "\n")
    env.record.engines["slurm"] = choice.version


def prepare(env: Environment) -> None:
    """Writes one small program for each command, which calls the cluster's own with the SLURM_CONF that was chosen."""
    choice, folder = chosen(env), private_folder(env.folder / FOLDER / "bin")
    for stale in [path for path in folder.iterdir() if path.name not in choice.commands]:
        stale.unlink()
    conf = f"export SLURM_CONF={shlex.quote(choice.conf)}" if choice.conf else "unset SLURM_CONF"
    for command, program in choice.commands.items():
        text = NOTING if command == "sbatch" else WRAPPER
        write_private(folder / command, text.format(command=command, name=env.name, conf=conf, program=shlex.quote(program),
                                                    noted=shlex.quote(str(_noted(env.folder))))).chmod(0o700)
    if choice.commands:
        write_private(folder / "orchlab-sleep", scripts.SLEEP.format(factor=f"{env.record.clock:g}")).chmod(0o700)


def processes(env: Environment) -> list[ProcessSpec]:
    """None: the cluster's daemons are its own."""
    return []


def bring_up(env: Environment, say: Progress) -> None:
    """Nothing: it is up, or it is not ours to bring up."""


def settle(env: Environment, say: Progress) -> None:
    """Nothing: `acquire` has asked it."""


def clean(env: Environment) -> None:
    """Nothing: `down` leaves the cluster, and the lab's jobs in it, as they are."""


def leave(env: Environment, progress: Progress | None = None) -> None:
    """Before the record of the lab's jobs is removed: cancels those that wait or run. A cluster that does not answer is no hindrance."""
    try:
        if (count := cancel(env)) and progress:
            progress(f"{count} jobs of the lab cancelled")
    except OrchlabError as error:
        # Said on stderr: afterwards nobody knows their numbers.
        left = ", ".join(map(str, sorted(submitted(env.folder))))
        log.warning("jobs of environment %s that may still be in Slurm: %s (%s)", env.name, left, str(error).splitlines()[0])


def variables(env: Environment) -> dict[str, str]:
    """For a shell that is to use this cluster."""
    return {"PATH": str(env.folder / FOLDER / "bin")} if chosen(env).commands else {}


def health(env: Environment, probe: bool = True) -> list[ProcessState]:
    """One line for the cluster as a whole."""
    detail = ""
    if probe:
        from orchlab.slurm.client import Client

        try:
            with Client.of(env, seconds=SECONDS) as client:
                client.partitions()
        except OrchlabError as error:
            detail = str(error).splitlines()[0]
    return [ProcessState("slurm (existing)", "UNREACHABLE" if detail else "RUNNING", 0, 0, 0, {}, not detail, detail)]


# -- what the client, the notebook and the course call


def chosen(env: Environment) -> Choice:
    """Raises EnvironmentBroken before the first `up` with this backend."""
    found = _read(env.folder)
    if found is None:
        raise EnvironmentBroken(f"environment {env.name!r} has chosen no existing Slurm yet",
                                f"orchlab up --slurm existing --name {env.name}")
    return found


def ways(env: Environment, seconds: float) -> dict[str, Callable[[], Transport]]:
    """The transports that this cluster offers, best first."""
    choice = chosen(env)
    made = _transports(choice, env.folder / FOLDER / "bin", lambda: _unexpired(_stored(env.folder), env.name), seconds)
    return {transport.name: lambda transport=transport: transport for transport in made}


def note(env: Environment) -> Callable[[int], None]:
    """Notes a job that the client has submitted to slurmrestd; the wrapper around sbatch does so for the commands."""

    def write(job: int) -> None:
        with open(os.open(_noted(env.folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
            file.write(f"{job}\n")

    return write


def submitted(folder: Path) -> set[int]:
    """The jobs that were submitted through the environment in `folder`. Those sent to another cluster (sbatch -M) are not among them."""
    try:
        lines = _noted(folder).read_text().splitlines()
    except OSError:
        return set()
    return {int(match[1]) for line in lines if (match := _NOTED.fullmatch(line.strip()))}


def cancel(env: Environment) -> int:
    """Cancels the jobs that were submitted through this environment and that wait or run; returns how many there were."""
    from orchlab.slurm.client import Client

    mine = submitted(env.folder)
    if not mine:
        return 0
    with Client.of(env) as client:
        active = {job.array_id or job.het_id or job.id for job in client.queue() if job.user in ("", user(env))} & mine
        for job in sorted(active):
            with contextlib.suppress(SlurmError):  # it has ended meanwhile
                client.cancel(job)
    return len(active)


def user(env: Environment) -> str:
    """Whose jobs are submitted: the token's user, or the one who runs orchlab."""
    return chosen(env).user or pwd.getpwuid(os.geteuid()).pw_name


def require_commands(env: Environment) -> None:
    """Raises EnvironmentBroken where the cluster is reached by slurmrestd."""
    if not chosen(env).commands:
        raise EnvironmentBroken(f"environment {env.name!r} reaches its Slurm by slurmrestd: there are no commands",
                                "orchlab why and, in a notebook, lab.slurm have what slurmrestd offers")


def refuse_change(env: Environment, words: list[str]) -> None:
    """Raises BadInput for a command in a notebook that would change the cluster; EnvironmentBroken where there are no commands."""
    require_commands(env)
    if words[0] not in LOOKING:
        return
    allowed = LOOKING[words[0]]
    verbs = [word for word in words[1:] if not word.startswith("-")]
    job = verbs[:1] == ["update"] and len(verbs) > 1 and re.match(r"job(id)?=", verbs[1], re.IGNORECASE)
    # Without a verb they would read what to do from their input.
    if (not verbs or verbs[0].lower() not in allowed) and not job:
        raise BadInput("%slurm", " ".join(words), NOBODYS, f"{words[0]} may {', '.join(sorted(allowed))} here")


def banner(env: Environment, version: str) -> list[str]:
    """Lab.describe's lines about this Slurm."""
    way = chosen(env).url or "the commands on PATH"
    return [f"environment  {env.name}: Slurm {version}, an existing cluster by {way}: {describe(env)}",
            "real         all of it; orchlab reads, submits as you and changes nothing else",
            "simulated    nothing, except what orchlab-sleep stands for"]


def describe(env: Environment) -> str:
    """For example "12 nodes with 48 GPUs"."""
    from orchlab.slurm.client import Client

    with Client.of(env) as client:
        nodes = client.nodes()
    gpus = sum(count for node in nodes for kind, count in node.gres.items() if kind.partition(":")[0] == "gpu")
    return f"{len(nodes)} nodes with {gpus} GPUs"


def claims(token: str) -> dict:
    """What a JSON web token says of itself (`sun` the user, `exp` its end in seconds since 1970), unverified; {} if it cannot be read."""
    try:
        body = token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (IndexError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# -- pieces


def _transports(choice: Choice, programs: Path, token: Callable[[], str], seconds: float) -> list[Transport]:
    from orchlab.slurm.client import PySlurmIfThere
    from orchlab.slurm.commands import Commands
    from orchlab.slurm.rest import Rest

    if choice.url:
        return [Rest(choice.url, token, user=choice.user, seconds=seconds)]
    conf = {"SLURM_CONF": choice.conf} if choice.conf else {}
    # Without a SLURM_CONF of ours pyslurm would take the caller's.
    commands = Commands(conf | {"PATH": f"{programs}:{os.environ.get('PATH', '/usr/bin:/bin')}"}, seconds)
    return [commands, *([PySlurmIfThere(conf, seconds)] if conf else [])]


def _on_path() -> Choice:
    """The commands on PATH, but for wrappers of ours."""
    folders = [folder for folder in os.environ.get("PATH", "").split(":") if folder and Path(folder).parent.name != FOLDER]
    found = {name: shutil.which(name, path=":".join(folders)) for name in (*NEEDED_COMMANDS, *MORE_COMMANDS)}
    missing = [name for name in ("sbatch", "squeue", "sinfo", "scontrol", "scancel", "sacct") if not found.get(name)]
    if missing:
        raise EngineUnavailable(f"there is no {', '.join(missing)} on PATH",
                                "run orchlab on a login node, or give --slurm-url; --slurm local brings a cluster of its own")
    return Choice(conf=os.environ.get("SLURM_CONF", ""), commands={name: path for name, path in found.items() if path})


def _there(choice: Choice) -> bool:
    return os.access(choice.commands.get("sinfo", ""), os.X_OK)


def _address(url: str) -> str:
    if "@" in urlsplit(url).netloc:
        raise BadInput("--slurm-url", urlsplit(url)._replace(netloc="…").geturl(), "has a name or a password in it",
                       "give the token by $SLURM_JWT or --slurm-token-file")
    return url


def _checked(token: str) -> str:
    if token and not _TOKEN.fullmatch(token):
        raise BadInput("token", "(not shown)", "is no JSON web token", "scontrol token prints one")
    return token


def _unexpired(token: str, name: str) -> str:
    end = claims(token).get("exp")
    if isinstance(end, (int, float)) and end < time.time():
        raise EnvironmentBroken(f"the token for slurmrestd expired at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(end))}",
                                f"export $(scontrol token lifespan=86400), then orchlab up --name {name}")
    return token


def _stored(folder: Path) -> str:
    try:
        return (folder / FOLDER / "token").read_text()
    except OSError:
        return ""


def _noted(folder: Path) -> Path:
    return Layout(folder, FOLDER).folder / "submitted"


def _read(folder: Path) -> Choice | None:
    try:
        return Choice(**json.loads((folder / FOLDER / "chosen.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
