"""Builds a node image for kind where kind's own cannot be pulled, from Debian's packages and Go modules only.

The image's tag holds a digest of all that it is made from; one that is there is not built again. The Kubernetes programs are the engines of
engines/, so what is in their cache is not built a second time.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchlab import engines
from orchlab.engines import build, running
from orchlab.engines.progress import Renderer
from orchlab.errors import EngineUnavailable, EnvironmentBroken, OrchlabError, TimeLimitReached
from orchlab.paths import cache_home, private_folder, repository
from orchlab.slurm import containers, image
from orchlab.slurm.containers import Docker

NAME = "orchlab/kind-node"
SUITE = "bookworm"  # from trixie on, systemd refuses machines with cgroup v1
BASE = f"orchlab/kind-node-base:{SUITE}"
ON_NODE = ("kubelet", "kubeadm", "kubectl", "crictl")
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
IN_IMAGES = (*CONTROL_PLANE, "kube-proxy", "coredns")
OWN_IMAGE = "docker.io/orchlab/cni:v1"  # files/kind/manifests/default-cni.yaml names it
NOT_INSIDE = ("docker-without-sys-resource",)
BUILD_SECONDS = 1800
LOAD_SECONDS = 300
KEPT_FREE = 2 * 2**30
TAIL = 15
UNCHECKED = "-o Acquire::AllowInsecureRepositories=true -o APT::Get::AllowUnauthenticated=true"


def tag(base: str, root: Path) -> str:
    """The image's name: the version of Kubernetes and a digest of the base's name, the architecture and every file it is made from."""
    total = hashlib.sha256(f"{base}\0{platform.machine()}\0".encode())
    for path in inputs(root):
        total.update(f"{path.relative_to(root)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    return f"{NAME}:v{engines.load('kube-apiserver', root / 'engines').version}-{total.hexdigest()[:12]}"


def inputs(root: Path) -> list[Path]:
    """Every file that decides what is in the image."""
    own = {path for path in (root / "node-image").rglob("*") if path.is_file() and path.name not in NOT_INSIDE and "__pycache__" not in path.parts}
    for name in (*ON_NODE, *IN_IMAGES, "kind"):
        module = root / "engines" / engines.load(name, root / "engines").build.module
        own |= {root / "engines" / name / "engine.toml", module / "go.mod", module / "go.sum"}
    return sorted(own)


def main(words: list[str]) -> int:
    wanted = _options(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return _main(wanted)
    except OrchlabError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("stopped; what was compiled is kept, nothing else is left", file=sys.stderr)
        return 130


def _options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/build-node-image", allow_abbrev=False, description=f"Makes {NAME}:VERSION-DIGEST for kind.",
                                     epilog=f"Only the base needs root. It is made once, by scripts/build-slurm-base: {BASE}")
    parser.add_argument("--base", default=BASE, metavar="IMAGE", help=f"a Debian to build on; default: {BASE}, made if it is not there")
    parser.add_argument("--mirror", metavar="URL", help="for the base: where packages come from; default: what apt uses here")
    parser.add_argument("--keyring", metavar="FILE", help="for the base: default: the keyring of the package debian-archive-keyring")
    parser.add_argument("--unchecked", action="store_true", help="take packages whose signatures cannot be verified")
    parser.add_argument("--tag", action="store_true", help="only print the image's name")
    return parser.parse_args(words)


def _main(wanted: argparse.Namespace) -> int:
    root = repository()
    name = tag(wanted.base, root)
    if wanted.tag:
        print(name)
        return 0
    docker = containers.find()
    if image.there(docker, name):
        print(f"{name} is there")
        return 0
    kept = archive(name)
    if kept.exists():
        print(f"loading {name} from {kept}", flush=True)
        docker.run("load", "--quiet", "--input", str(kept), seconds=LOAD_SECONDS, check=False)
        if image.there(docker, name):
            return 0
        print("it could not be loaded: it is made anew")
    start, work = time.monotonic(), Path(tempfile.mkdtemp())
    try:
        _make(name, wanted, docker, root, work)
    except BaseException:
        time.sleep(1)  # the engine ends a build a moment after its client
        raise
    finally:
        # A base whose making was broken off may still have something mounted.
        subprocess.run(["rm", "-rf", "--one-file-system", str(work)], check=False)
        docker.run("image", "prune", "--force", "--filter", "label=orchlab=kind-node", seconds=120, check=False)
    size = int(docker.run("image", "inspect", "--format", "{{.Size}}", name).stdout)
    print(f"made {name}: {size / 2**20:.0f} MiB in {time.monotonic() - start:.0f} s", flush=True)
    _keep(docker, name, kept, size)
    return 0


def archive(name: str) -> Path:
    """Where an image is kept for engines that do not have it (another engine, another machine: docker load --input FILE)."""
    return cache_home() / "images" / (name.replace("/", "-").replace(":", "-") + ".tar")


def _keep(docker: Docker, name: str, kept: Path, size: int) -> None:
    """Saves the image; archives of other contents go. A disk that is nearly full keeps none."""
    private_folder(kept.parent)
    for old in kept.parent.glob(f"{NAME.replace('/', '-')}-*"):
        old.unlink()
    if shutil.disk_usage(kept.parent).free < size + KEPT_FREE:
        print(f"not kept in {kept.parent}: the disk has too little space")
        return
    partial = kept.with_suffix(".partial")
    try:
        docker.run("save", "--output", str(partial), name, seconds=LOAD_SECONDS)
        partial.replace(kept)
    finally:
        partial.unlink(missing_ok=True)
    print(f"kept as {kept}")


def _make(name: str, wanted: argparse.Namespace, docker: Docker, root: Path, work: Path) -> None:
    context = work / "context"
    with _step(1, f"the base {wanted.base}"):
        if wanted.base == BASE and not image.there(docker, BASE):
            _base(wanted, root, work)
    with _step(2, "the Kubernetes programs"), Renderer() as progress:
        programs = engines.ensure([*ON_NODE, *IN_IMAGES], progress)
    with _step(3, "what is put into the image"):
        pause = _gather(context, programs, root, work)
    with _step(4, f"the image {name}"):
        options = ["--build-arg", f"BASE_IMAGE={wanted.base}", "--build-arg", f"PAUSE_IMAGE={pause}"]
        options += ["--build-arg", f"APT_OPTIONS={UNCHECKED}"] if wanted.unchecked else []
        options += [word for each in image.PROXIES if each in os.environ for word in ("--build-arg", each)]
        _run([docker.program, "build", "--force-rm", "--tag", name, *options, str(context)], context, os.environ | dict(docker.settings), "docker build")


@contextmanager
def _step(number: int, what: str) -> Iterator[None]:
    print(f"step {number} of 4: {what}", flush=True)
    start = time.monotonic()
    yield
    print(f"step {number} of 4: {time.monotonic() - start:.0f} s", flush=True)


def _base(wanted: argparse.Namespace, root: Path, work: Path) -> None:
    command = [str(root / "scripts" / "build-slurm-base"), "--suite", SUITE, "--image", BASE]
    if os.geteuid():
        raise EngineUnavailable(f"{BASE} is not there, and only root can make it", f"sudo {' '.join(command)}; or name another Debian: --base IMAGE")
    command += [word for option in ("mirror", "keyring") if getattr(wanted, option) for word in (f"--{option}", getattr(wanted, option))]
    _run([*command, *(["--unchecked"] if wanted.unchecked else [])], root, os.environ | {"TMPDIR": str(work)}, "the base")


def _gather(context: Path, programs: dict[str, Path], root: Path, work: Path) -> str:
    """Fills the folder that Docker builds from; returns the name of the pause image."""
    source = root / "node-image"
    shutil.copytree(source, context, ignore=shutil.ignore_patterns("programs", "build.py", "__pycache__", *NOT_INSIDE))
    go = build.find_go((1, 26))
    env = build.environment(go, work)
    _node_files(_kind_module(go, root / "engines" / "kind", env), context / "kind")
    made = work / "programs"
    made.mkdir()
    _run([str(go.program), "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", f"{made}/", "./cni", "./pause"], source / "programs", env, "go build")

    (context / "node-bin").mkdir()
    for name in ON_NODE:
        shutil.copy(programs[name], context / "node-bin" / name)
    version = f"v{engines.load('kubeadm').version}"
    (context / "version").write_text(version)
    binaries = {name: programs[name] for name in IN_IMAGES} | {"pause": made / "pause", "cni": made / "cni"}
    lines = []
    for reference in [*_kubeadm_images(programs["kubeadm"], version), OWN_IMAGE]:
        name, _, wanted = reference.rpartition("/")[2].partition(":")
        if name not in binaries:
            raise EnvironmentBroken(f"kubeadm {version} asks for {reference}, which is not made here", "report it with this line")
        if name in IN_IMAGES and engines.load(name).version not in wanted:
            print(f"  {name} is {engines.load(name).version}; kubeadm asks for it as {wanted}")
        path = Path("usr/local/bin") / name
        target = context / "images" / name / path
        target.parent.mkdir(parents=True)
        shutil.copy(binaries[name], target)
        lines.append(f"{reference} {name} /{path}\n")
    (context / "images" / "list").write_text("".join(lines))
    return next(line.split()[0] for line in lines if line.split()[1] == "pause")


def _kubeadm_images(kubeadm: Path, version: str) -> list[str]:
    done = subprocess.run([kubeadm, "config", "images", "list", "--kubernetes-version", version], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise EnvironmentBroken(f"kubeadm does not say which images it needs: {done.stderr.strip()}", "orchlab engines shows whether it is sound")
    return done.stdout.split()


def _kind_module(go: build.Go, module: Path, env: dict[str, str]) -> Path:
    """Where Go has unpacked the sources of kind, fetched and checked against go.sum."""
    command = [str(go.program), "mod", "download", "-json", "sigs.k8s.io/kind"]
    done = subprocess.run(command, cwd=module, env=env, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise EngineUnavailable(f"Go cannot fetch the module of kind: {done.stderr.strip() or done.stdout.strip()}",
                                "check the network, or set GOPROXY to a proxy you can reach")
    return Path(json.loads(done.stdout)["Dir"])


def _node_files(module: Path, target: Path) -> None:
    """kind's node files with the modes that its own Dockerfile gives them: Go's module cache keeps none."""
    shutil.copytree(module / "images" / "base" / "files", target, copy_function=shutil.copyfile)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)


def _run(command: list[str], folder: Path, env: dict[str, str], what: str) -> None:
    """Ends the command, and what it has started, when this is interrupted."""
    tail: collections.deque[str] = collections.deque(maxlen=TAIL)
    status, _ = running.run(command, folder, env, BUILD_SECONDS, lambda line: tail.append(line) if line.strip() else None)
    if status is None:
        raise TimeLimitReached(f"{what} did not end within {BUILD_SECONDS / 60:.0f} minutes", "run it again: what is finished is kept")
    if status:
        raise EngineUnavailable(f"{what} failed (status {status}); it said last:\n" + "\n".join(tail), "mend what the lines above name, then run it again")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
