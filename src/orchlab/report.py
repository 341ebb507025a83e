"""`orchlab report`: what a maintainer needs to understand a problem, in one archive, without keys, tokens, addresses or the user's name."""

from __future__ import annotations

import getpass
import io
import json
import platform
import re
import socket
import tarfile
import time
from dataclasses import asdict
from pathlib import Path

from orchlab import __version__, doctor, engines
from orchlab.environment import Environment
from orchlab.errors import ApiError, OrchlabError

LOG_LINES = 400
# PEM blocks, bearer tokens, base64 certificate data, Jupyter tokens in addresses.
SECRETS = (
    (re.compile(r"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----", re.S), "[redacted: PEM block]"),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]+"), "[redacted: token]"),
    (re.compile(r"(?i)((?:token|password|secret|authorization)[\"']?\s*[=:]\s*[\"']?)(?:bearer\s+)?[^\s\"'&,}]+"), r"\1[redacted]"),
    (re.compile(r"((?:client-key|client-certificate|certificate-authority)-data:\s*)\S+"), r"\1[redacted]"),
)


def redact(text: str) -> str:
    """Without secrets, the user's name and home, and this machine's name."""
    for pattern, replacement in SECRETS:
        text = pattern.sub(replacement, text)
    home, user, host = str(Path.home()), getpass.getuser(), socket.gethostname()
    for known, replacement in ((home, "~"), (host, "[host]"), (user, "[user]")):
        if len(known) > 1:
            text = re.sub(rf"(?<![\w-]){re.escape(known)}(?![\w-])", replacement, text)
    return text


def write(name: str, target: Path | None = None) -> Path:
    """Writes orchlab-report-NAME-TIME.tar.gz (0600) in `target` (default: here) and returns its path. What cannot be read is said inside."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = (target or Path.cwd()) / f"orchlab-report-{name}-{stamp}.tar.gz"
    parts = {"about.json": _about(), "doctor.txt": _doctor(), "engines.json": _engines()}
    try:
        env = Environment.load(name)
        parts |= {"environment.json": json.dumps(asdict(env.record), indent=1), "status.json": _status(env)} | _cluster(env) | _logs(env)
    except OrchlabError as error:
        parts["environment.txt"] = str(error)
    path.touch(mode=0o600)
    with tarfile.open(path, "w:gz") as archive:
        for file, text in parts.items():
            data = redact(text).encode()
            entry = tarfile.TarInfo(f"orchlab-report/{file}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return path


def _about() -> str:
    return json.dumps({"orchlab": __version__, "python": platform.python_version(), "system": platform.platform()}, indent=1)


def _doctor() -> str:
    return "\n".join(f"{finding.what}: {finding.state}: {finding.found} {finding.remedy}".rstrip() for finding in doctor.examine())


def _engines() -> str:
    return json.dumps([{"name": state.name, "version": state.version, "state": state.state, "source": state.source, "sha256": state.sha256}
                       for state in engines.listing()], indent=1)


def _status(env: Environment) -> str:
    try:
        return json.dumps([vars(state) for state in env.health()], indent=1)
    except OrchlabError as error:
        return str(error)


def _cluster(env: Environment) -> dict[str, str]:
    """Nodes, pods and events; Secrets and ConfigMaps are never read."""
    parts = {}
    for file, path in (("nodes", "/api/v1/nodes"), ("pods", "/api/v1/pods"), ("events", "/api/v1/events")):
        try:
            items, _ = env.client().list(path, limit=500)
            parts[f"{file}.json"] = json.dumps(items, indent=1)
        except (ApiError, OrchlabError) as error:
            parts[f"{file}.txt"] = str(error)
    return parts


def _logs(env: Environment) -> dict[str, str]:
    return {f"logs/{path.name}": env.supervisor.log_tail(path.stem, LOG_LINES) for path in sorted(env.supervisor.logs.glob("*.log"))}
