"""Where Slurm's programs come from: the system's packages, else packages that are downloaded and unpacked into the cache.

Unpacking needs no root, starts no service and leaves the system as it is. It needs apt (Debian, Ubuntu); elsewhere Slurm has to be
installed.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orchlab.errors import EngineUnavailable
from orchlab.paths import cache_home, private_folder
from orchlab.slurm import versions
from orchlab.slurm.versions import Release

# Never slurm-wlm-emulator: it hijacks the daemons' names by alternatives. tcc is for loopback.c where no other C compiler is.
PACKAGES = (
    "slurm-client",
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "slurmrestd",
    "slurm-wlm-mysql-plugin",
    "slurm-wlm-jwt-plugin",
    "munge",
    "mariadb-server-core",
    "tcc",
)
DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "slurmstepd", "slurmrestd")
NEEDED_COMMANDS = ("sacctmgr", "scontrol", "sinfo", "squeue", "sbatch", "srun", "scancel", "sacct")
MORE_COMMANDS = ("salloc", "sattach", "sbcast", "sdiag", "sprio", "sreport", "sshare", "sstat", "strigger", "scrontab", "munge", "unmunge")
PLUGINS = ("auth_munge", "auth_jwt", "accounting_storage_mysql", "gres_gpu", "gres_shard", "rest_auth_jwt", "serializer_json")
FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/slurm/sbin", "/opt/slurm/bin")


@dataclass(frozen=True)
class Programs:
    """Paths by program; `root` is the folder of unpacked packages, None when all are the system's; `plugins` the folders of Slurm's
    plugins."""

    paths: dict[str, Path]
    release: Release
    root: Path | None = None
    plugins: tuple[Path, ...] = ()
    compiler: Path | None = None

    @property
    def library_path(self) -> str:
        """LD_LIBRARY_PATH for unpacked programs; "" for the system's, which find their libraries themselves."""
        if not self.root:
            return ""
        folders = [path for path in (self.root / "usr" / "lib").glob("*-linux-gnu*") if path.is_dir()]
        return ":".join(map(str, [*self.plugins, *folders, *(self.root / "lib").glob("*-linux-gnu*"), self.root / "usr" / "lib"]))

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": self.library_path} if self.root else {}


@dataclass(frozen=True)
class Missing:
    """What is not on this machine."""

    programs: list[str] = field(default_factory=list)
    plugins: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.programs or self.plugins)

    def __str__(self) -> str:
        return ", ".join([*self.programs, *(f"plugin {name}" for name in self.plugins)])


def ensure(say: Callable[[str], None] = lambda text: None) -> Programs:
    """Slurm's programs, from wherever they can be had. Raises EngineUnavailable with the reason and what to do."""
    _refuse_here()
    missing = missing_in(None)
    if not missing:
        return _programs(None)
    root = _unpacked_folder()
    if not (root / "complete").exists():
        _unpack(root, str(missing), say)
    still = missing_in(root)
    if still:
        shutil.rmtree(root, ignore_errors=True)
        raise EngineUnavailable(f"Slurm's packages lack {still}", "orchlab doctor says what to install")
    return _programs(root)


def missing_in(root: Path | None) -> Missing:
    """What neither the system nor `root` has."""
    folders = plugin_folders(root)
    # A Slurm that was installed by other means keeps its plugins where only it knows; then its own start tells.
    absent = [name for name in PLUGINS if not any((folder / f"{name}.so").exists() for folder in folders)] if folders else []
    programs = [name for name in (*DAEMONS, *NEEDED_COMMANDS) if find(name, root) is None]
    return Missing([*programs, *([] if mariadb_tables(root) else ["MariaDB's system tables"])], absent)


def mariadb_tables(root: Path | None) -> list[Path]:
    """The SQL that makes the tables which MariaDB itself needs, in order; [] where there is none. Called mysql_… up to MariaDB 10,
    mariadb_…
    after it."""
    for base in ("/", *([root] if root else [])):
        for share in ("usr/share/mysql", "usr/share/mariadb"):
            for prefix in ("mariadb", "mysql"):
                files = [
                    Path(base) / share / f"{prefix}_{name}.sql" for name in ("system_tables", "performance_tables", "system_tables_data")
                ]
                if all(path.is_file() for path in files):
                    return files
    return []


def find(name: str, root: Path | None = None) -> Path | None:
    """A program. Debian installs the three daemons as NAME-wlm behind an alternative, which the emulator's package takes over: ask for
    the real ones first."""
    folders = [*os.environ.get("PATH", "").split(":"), *FOLDERS]
    for folder in [*folders, *(str(root / place.lstrip("/")) for place in FOLDERS if root)]:
        for candidate in (f"{name}-wlm", name):
            path = Path(folder) / candidate
            if folder.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK) and not _is_ours(path):
                return path
    return None


def _is_ours(path: Path) -> bool:
    """An environment's own wrapper, which is on PATH after `orchlab env`."""
    return (path.parent / "orchlab-sleep").exists()


def plugin_folders(root: Path | None) -> tuple[Path, ...]:
    places = [Path(prefix) / "usr" for prefix in ("/", *([root] if root else []))]
    patterns = ("lib/*-linux-gnu*/slurm-wlm", "lib/*-linux-gnu*/slurm", "lib64/slurm", "lib/slurm", "local/lib/slurm")
    found = [path for place in places for pattern in patterns for path in place.glob(pattern) if list(path.glob("auth_*.so"))]
    return tuple(dict.fromkeys([*found, *(path for path in [Path("/opt/slurm/lib/slurm")] if path.is_dir())]))


def installed_release() -> Release | None:
    """The release of the Slurm that the system has; None if it has none."""
    try:
        return _release(find("slurmctld"), {}) if find("slurmctld") else None
    except EngineUnavailable:
        return None


def apt_can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(say: Callable[[str], None]) -> list[str]:
    """Installs the packages with apt as root; returns which are new. No service is started, and none of the new ones is left enabled:
    what runs already stays as it is. Raises EngineUnavailable."""
    before = _installed()
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    try:
        if ours:  # the way in which packages are told not to start their services
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        say("apt-get update")
        _apt(["update", "-qq"], 300)
        say("apt-get install " + " ".join(PACKAGES))
        _apt(["install", "-y", "-qq", "--no-install-recommends", *PACKAGES], 900)
    finally:
        if ours:
            policy.unlink(missing_ok=True)
    new = sorted(_installed() - before)
    if shutil.which("systemctl"):
        for service in ("slurmctld", "slurmd", "slurmdbd", "slurmrestd", "munge"):
            if service in new:
                subprocess.run(["systemctl", "disable", "--quiet", service], timeout=60, capture_output=True, check=False)
    return new


def _refuse_here() -> None:
    if platform.system() != "Linux":
        raise EngineUnavailable(f"Slurm's daemons do not run on {platform.system()}", "use a Linux virtual machine, or the docker backend")


def _programs(root: Path | None) -> Programs:
    paths = {name: path for name in (*DAEMONS, *NEEDED_COMMANDS, *MORE_COMMANDS) if (path := find(name, root))}
    compiler = next((Path(found) for name in ("cc", "gcc", "clang", "tcc") if (found := shutil.which(name))), None) or find("tcc", root)
    draft = Programs(paths, Release(0, 0), root, plugin_folders(root), compiler)
    return Programs(paths, _release(paths["slurmctld"], draft.environment), root, draft.plugins, compiler)


def _release(slurmctld: Path, environment: dict[str, str]) -> Release:
    with tempfile.TemporaryDirectory() as folder:
        # Under its proper name: as slurmctld-wlm it crashes.
        link = Path(folder) / "slurmctld"
        link.symlink_to(slurmctld)
        try:
            done = subprocess.run([link, "-V"], capture_output=True, text=True, timeout=20, env=os.environ | environment, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineUnavailable(f"{slurmctld} does not run: {error}", "orchlab doctor --fix installs Slurm anew") from error
    if done.returncode:
        raise EngineUnavailable(
            f"{slurmctld} does not run: {done.stderr.strip() or f'exit status {done.returncode}'}",
            "orchlab doctor --fix installs Slurm anew",
        )
    return versions.parse(done.stdout)


# -- packages, unpacked


def _unpacked_folder() -> Path:
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    return cache_home() / "slurm" / f"{system.get('ID', 'linux')}-{system.get('VERSION_ID', '0')}-{platform.machine()}"


def _unpack(root: Path, missing: str, say: Callable[[str], None]) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise EngineUnavailable(
            f"this machine has no {missing}, and no apt to get them with",
            "install Slurm (slurmctld, slurmd, slurmdbd, slurmrestd), munge and MariaDB with the system's package manager",
        )
    private_folder(cache_home())
    private_folder(root.parent)
    with (root.parent / f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (root / "complete").exists():
            return
        shutil.rmtree(root, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f"{root.name}.", dir=root.parent) as place:
            work = Path(place)
            wanted, options = _wanted(work, say)
            say(f"downloading {len(wanted)} packages of Slurm, munge and MariaDB")
            downloads = work / "downloads"
            downloads.mkdir()
            _apt(["download", "-qq", *options, *wanted], 600, downloads)
            say("unpacking them")
            tree = work / "tree"
            for archive in sorted(downloads.glob("*.deb")):
                subprocess.run(["dpkg-deb", "-x", archive, tree], check=True, capture_output=True, timeout=120)
            (tree / "complete").touch()
            tree.chmod(0o755)
            tree.rename(root)


def _wanted(work: Path, say: Callable[[str], None]) -> tuple[list[str], list[str]]:
    """NAME=VERSION of all packages that the system lacks, and the options with which apt knows them. The system's package lists are used
    if they are there; an ordinary user cannot refresh those, so otherwise lists are fetched into `work`."""
    try:
        return _simulate([]), []
    except EngineUnavailable:
        (work / "lists" / "partial").mkdir(parents=True)
        (work / "archives" / "partial").mkdir(parents=True)
        options = [
            "-o",
            f"Dir::State::Lists={work / 'lists'}",
            "-o",
            f"Dir::Cache={work}",
            "-o",
            f"Dir::Cache::archives={work / 'archives'}",
        ]
        say("fetching the package lists")
        _apt(["update", "-qq", *options], 300)
        return _simulate(options), options


def _simulate(options: list[str]) -> list[str]:
    text = _apt(["install", "-s", "-qq", "--no-install-recommends", *options, *PACKAGES], 120)
    return [f"{name}={version}" for name, version in re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", text, re.M)]


def _apt(arguments: list[str], seconds: int, folder: Path | None = None) -> str:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["apt-get", *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment,
            cwd=folder,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise EngineUnavailable(
            f"apt-get {arguments[0]} did not end within {seconds} s", "see whether the package mirror can be reached"
        ) from None
    if done.returncode:
        why = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()[-3:]
        raise EngineUnavailable(
            f"apt-get {arguments[0]} failed: {' '.join(why)}", "see whether the package mirror can be reached and apt-get update works"
        )
    return done.stdout


def _installed() -> set[str]:
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package}\n"], capture_output=True, text=True, timeout=60, check=False
    )
    return {line[3:] for line in done.stdout.splitlines() if line.startswith("ii")}
