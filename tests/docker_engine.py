"""A Docker Engine for the tests that need one. Where none runs and root may, Debian's is installed and started, with a data folder and a
socket of its own; afterwards it is stopped and what it changed in the kernel's settings is put back."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from orchlab.errors import EngineUnavailable
from orchlab.paths import repository
from orchlab.slurm import containers, image

FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
PACKAGES = ("docker.io", "docker-compose", "iptables", "debootstrap", "debian-archive-keyring")


def _run(*words: str, seconds: float = 30, **more) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=seconds, **more).stdout


def _install() -> str:
    """Installs Debian's engine; returns why that cannot be, or nothing."""
    if os.geteuid():
        return "no engine answers, and only root can install and start one"
    if not shutil.which("apt-get"):
        return "no engine answers, and there is no apt to install one"
    missing = [name for name in PACKAGES if subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}", name], capture_output=True, text=True, check=False).stdout[:2] != "ii"]
    if not missing:
        return ""
    # What starts when it is installed would be the machine's engine, not ours.
    policy = Path("/usr/sbin/policy-rc.d")
    kept = policy.exists()
    if not kept:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
            done = subprocess.run(["apt-get", *words], capture_output=True, text=True, timeout=600, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, check=False)
        return "" if done.returncode == 0 else f"apt cannot install {', '.join(missing)}: {(done.stderr.strip().splitlines() or ['it did not say why'])[-1]}"
    finally:
        if not kept:
            policy.unlink()


def _start(folder: Path) -> subprocess.Popen | str:
    """dockerd with everything of its own; why not, if it does not come up."""
    with (folder / "log").open("wb") as log:
        engine = subprocess.Popen(
            ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid"), "--host", f"unix://{folder / 'socket'}"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and engine.poll() is None:
        if subprocess.run(["docker", "--host", f"unix://{folder / 'socket'}", "version"], capture_output=True, timeout=30, check=False).returncode == 0:
            return engine
        time.sleep(0.3)
    _stop(engine)
    return f"dockerd does not start: {((folder / 'log').read_text().strip().splitlines() or ['it said nothing'])[-1][-300:]}"


def _stop(engine: subprocess.Popen) -> None:
    engine.terminate()
    try:
        engine.wait(60)
    except subprocess.TimeoutExpired:
        engine.kill()
        engine.wait(10)


def _rules() -> str:
    """The firewall as iptables-restore takes it. A table that nobody has used yet is not printed: it is empty and lets everything pass."""
    said = _run("iptables-save")
    unused = {"filter": ("INPUT", "FORWARD", "OUTPUT"), "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING")}
    return said + "".join(f"*{table}\n" + "".join(f":{chain} ACCEPT\n" for chain in chains) + "COMMIT\n" for table, chains in unused.items() if f"*{table}\n" not in said)


@pytest.fixture(scope="session")
def engine():
    """A Docker Engine: the one that answers, else one that these tests start. Skips, with the reason, only where none can run."""
    try:
        yield containers.find()
        return
    except EngineUnavailable:
        pass
    if why := _install():
        pytest.skip(f"no Docker Engine can run here: {why}")
    folder = Path(tempfile.mkdtemp(prefix="olengine", dir="/tmp"))
    forwarding, rules, bridge = FORWARDING.read_text(), _rules(), Path("/sys/class/net/docker0").exists()
    started = _start(folder)
    if isinstance(started, str):
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"no Docker Engine can run here: {started}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{folder / 'socket'}")
        try:
            yield containers.find()
        finally:
            _stop(started)
            if not bridge:
                subprocess.run(["ip", "link", "delete", "docker0"], capture_output=True, timeout=30, check=False)
            _run("iptables-restore", input=rules)
            FORWARDING.write_text(forwarding)
            shutil.rmtree(folder)


@pytest.fixture(scope="session")
def base(engine) -> str:
    """The base image: pulled where that works, else made from Debian's packages."""
    if not image.there(engine, image.OWN_BASE) and engine.run("pull", image.DEFAULT_BASE, seconds=300, check=False).returncode:
        if os.geteuid():
            pytest.skip(f"{image.DEFAULT_BASE} cannot be pulled, and only root can make it from packages")
        _run(str(repository() / "scripts" / "build-slurm-base"), seconds=600)
    return image.base(engine)
