"""The files that an engine brings for the cluster (CRDs, rights, webhooks): copied from its Go module, which go.sum verifies, beside its binary."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from orchlab.engines import build, cache
from orchlab.engines.inventory import SOURCES
from orchlab.engines.spec import load
from orchlab.errors import BadInput, EngineUnavailable

LIMIT = 300.0  # seconds to fetch a module, mostly there already
FOLDER = "manifests"


def manifests(name: str, folder: Path | None = None) -> list[Path]:
    """The files that engine.toml lists under [manifests], in that order, out of the cache. The engine itself has to be there (`ensure`).

    Raises BadInput for an engine that has none, EngineUnavailable when the module cannot be fetched or lacks one of them.
    """
    engine = load(name, folder)
    if engine.manifests is None:
        raise BadInput("engine", name, "brings no manifests")
    slots = [cache.slot(engine, source) for source in SOURCES if cache.find(engine, (source,))]
    if not slots:
        raise EngineUnavailable(f"{name} is not there", f"orchlab engines add {name}")
    place = slots[0] / FOLDER
    if not place.is_dir():
        _copy(engine, slots[0], place)
    return [place / line for line in (place / "list").read_text().splitlines()]


def _copy(engine, slot: Path, place: Path) -> None:
    source = _module_folder(engine)
    with tempfile.TemporaryDirectory(dir=slot, prefix=".manifests") as temporary:
        fresh, names = Path(temporary) / FOLDER, []
        fresh.mkdir(mode=0o755)
        for pattern in engine.manifests.files:
            found = sorted(source.glob(pattern))
            if not found:
                raise EngineUnavailable(f"{engine.name}: module {engine.manifests.module} has no {pattern}", f"compare engines/{engine.name}/engine.toml with the module")
            for file in found:
                name = str(file.relative_to(source)).replace("/", "_")
                shutil.copyfile(file, fresh / name)
                names.append(name)
        (fresh / "list").write_text("".join(f"{name}\n" for name in names))
        try:
            os.rename(fresh, place)
        except OSError:  # another process was first
            if not place.is_dir():
                raise


def _module_folder(engine) -> Path:
    """Where Go keeps the module, fetched if it is not there."""
    module = engine.folder / engine.build.module
    go = build.find_go(build.needed_go(module / "go.mod"))
    with tempfile.TemporaryDirectory() as work:
        try:
            answer = subprocess.run([str(go.program), "mod", "download", "-json", engine.manifests.module], cwd=module, env=build.environment(go, Path(work)),
                                    stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False)
            said = json.loads(answer.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise EngineUnavailable(f"{engine.name}: the module {engine.manifests.module} cannot be fetched: {error}", "check the network, or GOPROXY") from None
    if answer.returncode or "Dir" not in said:
        raise EngineUnavailable(f"{engine.name}: the module {engine.manifests.module} cannot be fetched: {said.get('Error') or answer.stderr.decode(errors='replace')[-300:]}",
                                "check the network, or GOPROXY")
    return Path(said["Dir"])
