"""What an engine is: `engines/NAME/engine.toml`, read and checked.

Plain dataclasses and checks by hand: every `orchlab up` reads these files, and a validation library would cost more than the reading.
"""

from __future__ import annotations

import dataclasses
import platform
import string
import sys
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from orchlab.errors import BadInput
from orchlab.paths import repository

ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def system() -> tuple[str, str]:
    """This machine's operating system and architecture in Go's words, e.g. ("linux", "amd64")."""
    machine = platform.machine().lower()
    return sys.platform, ARCHITECTURES.get(machine, machine)


@dataclasses.dataclass(frozen=True)
class Download:
    """The project's official release. Exactly one of `checksum` (address of a published SHA-256) and `sha256` (pinned here) is set.

    Addresses may hold {version}, {os} and {arch}. `member` is the binary's name inside a .tar.gz; empty when the file is the binary.
    `sha256` maps "os-arch" to the digest of the downloaded file.
    """

    url: str
    checksum: str
    sha256: dict[str, str]
    member: str


@dataclasses.dataclass(frozen=True)
class Build:
    """How to build it. Engines with the same `module` and `ldflags` are built by one `go build`.

    `module` is a folder under engines/ with go.mod and go.sum; `output` the file name that Go gives the binary; `disk_mib` the free
    space (MiB) that a build needs when Go's caches are empty.
    """

    module: str
    package: str
    output: str
    ldflags: str
    disk_mib: int


@dataclasses.dataclass(frozen=True)
class Manifests:
    """What the engine wants in the cluster, taken from its own Go module: `files` are paths or glob patterns inside `module`."""

    module: str
    files: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Probe:
    """How to see that the daemon is ready. `port` names a port; `certificate` a client key pair in the pki folder (empty: none)."""

    kind: str  # https | http | tcp
    port: str
    path: str
    certificate: str


@dataclasses.dataclass(frozen=True)
class Engine:
    """One engine.toml. `source` is the file it was read from. An `optional` one is fetched only when something asks for it by name. A program
    that is not a daemon has no arguments and no probe. `version_module` is for a program without a version option: the Go module whose
    version is in its build information."""

    name: str
    version: str
    summary: str
    license: str
    homepage: str
    version_command: tuple[str, ...]
    version_module: str
    templates: tuple[str, ...]
    probe: Probe | None
    optional: bool
    download: Download | None
    build: Build | None
    manifests: Manifests | None
    no_download: str  # why there is nothing to download, when there isn't
    source: Path

    @property
    def folder(self) -> Path:
        """The folder that holds every engine's folder."""
        return self.source.parent.parent

    def arguments(self, **values: object) -> list[str]:
        """The daemon's arguments with every {placeholder} filled in. Raises BadInput for a placeholder that has no value."""
        filled = []
        for template in self.templates:
            for name in _placeholders(template):
                if name not in values:
                    raise BadInput(_field(self.source, "run.arguments"), template, f"no value for {{{name}}}", "pass it to arguments()")
            filled.append(template.format(**values))
        return filled


def engines_folder() -> Path:
    """The clone's engines/ folder."""
    return repository() / "engines"


def group(engine: Engine) -> str:
    """Engines with the same group are made under one lock and built by one `go build`."""
    return engine.build.module if engine.build else engine.name


def names(folder: Path | None = None) -> list[str]:
    """Names of all engines: the folders under `folder` (default: the clone's) that hold an engine.toml."""
    return sorted(file.parent.name for file in (folder or engines_folder()).glob("*/engine.toml"))


def standard(folder: Path | None = None) -> list[str]:
    """Names of the engines that are not optional."""
    return [name for name in names(folder) if not load(name, folder).optional]


def load(name: str, folder: Path | None = None) -> Engine:
    """Reads engines/NAME/engine.toml. Raises BadInput naming the file and the field."""
    folder = folder or engines_folder()
    file = folder / name / "engine.toml"
    if not file.is_file():
        raise BadInput("engine", name, "there is no such engine", f"known are: {', '.join(names(folder))}")
    try:
        data = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(_field(file, ""), name, f"not TOML: {error}") from None
    return _engine(_Table(file, "", data), name, file)


def _engine(top: _Table, name: str, file: Path) -> Engine:
    run = top.table("run")
    probe = run.table("probe", required=False)
    download, build = top.table("download", required=False), top.table("build", required=False)
    manifests = top.table("manifests", required=False)
    given = top.text("name")
    if given != name:
        top.refuse("name", given, f"must be the folder's name, {name!r}")
    engine = Engine(
        name=given,
        version=top.text("version"),
        summary=top.text("summary"),
        license=top.text("license"),
        homepage=top.text("homepage"),
        version_command=tuple(run.texts("version")),
        version_module=run.text("version_module", default=""),
        templates=tuple(run.texts("arguments")),
        probe=_probe(probe) if probe else None,
        optional=top.flag("optional"),
        download=_download(download) if download else None,
        build=_build(build, name, file) if build else None,
        manifests=_manifests(manifests) if manifests else None,
        no_download=top.text("no_download", default=""),
        source=file,
    )
    if engine.templates and not engine.probe:
        run.refuse("probe", None, "missing; a daemon has one")
    if engine.version_module and engine.version_command:
        run.refuse("version_module", engine.version_module, "is for a program without a version command")
    run.done()
    top.done()
    if engine.manifests and not engine.build:
        top.refuse("manifests", engine.manifests.module, "come from the module that [build] names, and there is none")
    for template in engine.templates:
        try:
            _placeholders(template)
        except ValueError as error:
            run.refuse("arguments", template, str(error))
    if not (engine.download or engine.build):
        top.refuse("build", None, "neither a [download] nor a [build] section")
    return engine


def _download(table: _Table) -> Download:
    result = Download(
        url=table.text("url"),
        checksum=table.text("checksum", default=""),
        sha256=table.digests("sha256"),
        member=table.text("member", default=""),
    )
    if bool(result.checksum) == bool(result.sha256):
        table.refuse("checksum", result.checksum, "give either checksum (a published one's address) or sha256 (pinned digests)")
    for field in ("url", "checksum", "member"):
        template = getattr(result, field)
        try:
            unknown = set(_placeholders(template)) - {"version", "os", "arch"}
        except ValueError as error:
            table.refuse(field, template, str(error))
        if unknown:
            table.refuse(field, template, f"unknown placeholder {{{sorted(unknown)[0]}}}; known are {{version}}, {{os}}, {{arch}}")
        if field != "member" and template and not template.startswith("https://"):
            table.refuse(field, template, "must begin with https://")
    table.done()
    return result


def _build(table: _Table, name: str, file: Path) -> Build:
    result = Build(
        module=table.text("module"),
        package=table.text("package"),
        output=table.text("output", default=name),
        ldflags=table.text("ldflags"),
        disk_mib=table.number("disk_mib"),
    )
    if "/" in result.module or not (file.parent.parent / result.module / "go.mod").is_file():
        table.refuse("module", result.module, "must be a folder beside this one, with a go.mod")
    table.done()
    return result


def _manifests(table: _Table) -> Manifests:
    result = Manifests(module=table.text("module"), files=tuple(table.texts("files")))
    for pattern in result.files:
        if pattern.startswith("/") or ".." in pattern.split("/"):
            table.refuse("files", pattern, "must be a path inside the module")
    table.done()
    return result


def _probe(table: _Table) -> Probe:
    result = Probe(
        kind=table.text("kind"),
        port=table.text("port"),
        path=table.text("path", default=""),
        certificate=table.text("certificate", default=""),
    )
    if result.kind not in ("https", "http", "tcp"):
        table.refuse("kind", result.kind, "must be https, http or tcp")
    if (result.kind != "tcp") != result.path.startswith("/"):
        table.refuse("path", result.path, "an http or https probe has a path that begins with /, a tcp probe has none")
    table.done()
    return result


def _placeholders(template: str) -> list[str]:
    found = []
    for _, name, form, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if not name.isidentifier() or form or conversion:
            raise ValueError("a placeholder is a plain name in braces, such as {pki}; a literal brace is written twice")
        found.append(name)
    return found


def _field(file: Path, field: str) -> str:
    where = f"engines/{file.parent.name}/{file.name}"
    return f"{where}: {field}" if field else where


class _Table:
    """One table of the file. Takes fields out by type and refuses what is left over, so a misspelt key is never ignored."""

    def __init__(self, file: Path, path: str, data: dict[str, Any]) -> None:
        self.file, self.path, self.data = file, path, dict(data)

    def refuse(self, key: str, value: object, problem: str) -> NoReturn:
        raise BadInput(_field(self.file, f"{self.path}{key}"), value, problem)

    def _take(self, key: str, kind: type, wanted: str, default: Any) -> Any:
        value = self.data.pop(key, default)
        if value is None:
            self.refuse(key, None, f"missing; must be {wanted}")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.refuse(key, value, f"must be {wanted}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._take(key, str, "a text", default)
        if default is None and not value.strip():
            self.refuse(key, value, "must not be empty")
        return value

    def number(self, key: str) -> int:
        value = self._take(key, int, "a whole number", None)
        if value < 1:
            self.refuse(key, value, "must be at least 1")
        return value

    def flag(self, key: str) -> bool:
        return self._take(key, bool, "true or false", False)

    def texts(self, key: str) -> list[str]:
        value = self._take(key, list, "a list of texts", None)
        for item in value:
            if not isinstance(item, str):
                self.refuse(key, item, "must be a text")
        return value

    def digests(self, key: str) -> dict[str, str]:
        value = self._take(key, dict, "a table of digests", {})
        for system_name, digest in value.items():
            if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
                self.refuse(f"{key}.{system_name}", digest, "must be 64 lower-case hexadecimal digits")
        return value

    def table(self, key: str, required: bool = True) -> Any:
        value = self._take(key, dict, "a table", None if required else {})
        return _Table(self.file, f"{self.path}{key}.", value) if value or required else None

    def done(self) -> None:
        for key, value in self.data.items():
            self.refuse(key, value, "unknown field")
