"""The second source: a project's official release, checked against its published SHA-256.

ORCHLAB_MIRROR replaces the scheme and host of every address (a path before the original one is allowed). HTTPS_PROXY, HTTP_PROXY and
NO_PROXY are honoured; a loopback address never goes through a proxy. A host that cannot be reached within 5 s is not tried again
by this process.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import tarfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from orchlab.engines.events import Progress, Report
from orchlab.engines.spec import Engine, system
from orchlab.errors import BadInput

if TYPE_CHECKING:
    import urllib3

REACH_LIMIT = 5.0  # seconds to get a connection
READ_LIMIT = 20.0  # seconds without a byte
WHOLE_LIMIT = 900.0  # seconds for one file
CHUNK = 1 << 18

_unreachable: dict[str, str] = {}


class DownloadFailed(Exception):
    """Why the release could not be used, in words for the user. The caller goes on to the next source."""


def download(engine: Engine, work: Path, report: Report) -> tuple[Path, str]:
    """Fetches and checks the release; gives the binary (inside `work`) and the address it came from.

    Raises DownloadFailed (unreachable, refused, cut off, wrong checksum, no such member) or BadInput for a bad ORCHLAB_MIRROR.
    """
    spec = engine.download
    if spec is None:
        raise DownloadFailed(engine.no_download or "no release is named")
    names = dict(zip(("os", "arch"), system(), strict=True), version=engine.version)
    url, member = _address(spec.url.format(**names), pinned=bool(spec.sha256)), spec.member.format(**names)
    if spec.sha256:
        expected = spec.sha256.get(f"{names['os']}-{names['arch']}", "")
        if not expected:
            raise DownloadFailed(f"no checksum is pinned for {names['os']}-{names['arch']}")
    else:
        text = _fetch_text(_address(spec.checksum.format(**names)))
        expected = find_digest(text, url.rsplit("/", 1)[-1])
    archive = work / f"{engine.name}.download"
    actual = _fetch_file(url, archive, lambda fraction, text: report(Progress(engine.name, "downloading", fraction, text)))
    if actual != expected:
        archive.unlink()
        raise DownloadFailed(f"{url} has the wrong checksum: {actual} instead of {expected}")
    return (_unpack(archive, member, work / engine.name) if member else archive), url


def find_digest(text: str, file: str) -> str:
    """The SHA-256 of `file` in a published checksum file: a bare digest, or lines of "DIGEST  NAME". Raises DownloadFailed."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    for parts in lines:
        named = len(parts) == 2 and parts[1].lstrip("*").removeprefix("./") == file
        alone = len(parts) == 1 and len(lines) == 1
        if (named or alone) and re.fullmatch(r"[0-9a-fA-F]{64}", parts[0]):
            return parts[0].lower()
    raise DownloadFailed(f"the published checksums do not name {file}")


def _address(url: str, pinned: bool = False) -> str:
    mirror = os.environ.get("ORCHLAB_MIRROR", "").rstrip("/")
    if not mirror:
        return url
    parts = urlsplit(mirror)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput("ORCHLAB_MIRROR", mirror, "not an address", "give one such as https://mirror.example.org/releases")
    if parts.scheme == "http" and not pinned and not _loopback(parts.hostname):
        raise BadInput("ORCHLAB_MIRROR", mirror, "without TLS the checksum could be forged on the way", "use an https:// address")
    return mirror + urlsplit(url).path


def _loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _proxy(url: str) -> str:
    parts = urlsplit(url)
    if _loopback(parts.hostname or "") or urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    found = urllib.request.getproxies().get(parts.scheme, "")
    return found if not found or "://" in found else f"http://{found}"


def _reach(url: str) -> float:
    """Seconds it took to connect to the host of `url`, or to the proxy for it. Raises DownloadFailed after REACH_LIMIT."""
    host = urlsplit(url).netloc
    if host in _unreachable:
        raise DownloadFailed(_unreachable[host])
    target = urlsplit(_proxy(url) or url)
    port = target.port or {"http": 80, "https": 443}.get(target.scheme, 1080)
    outcome: list[BaseException | None] = []

    def connect() -> None:
        try:
            socket.create_connection((target.hostname, port), REACH_LIMIT).close()
            outcome.append(None)
        except (OSError, UnicodeError) as error:
            outcome.append(error)

    # In a thread, because looking up a name has no time limit of its own.
    start = time.monotonic()
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(REACH_LIMIT)
    if not outcome or outcome[0]:
        why = getattr(outcome[0], "strerror", None) or str(outcome[0]) if outcome else f"no answer within {REACH_LIMIT:.0f} s"
        _unreachable[host] = f"{host} cannot be reached ({why})"
        raise DownloadFailed(_unreachable[host])
    return time.monotonic() - start


def _open(url: str) -> urllib3.BaseHTTPResponse:
    import urllib3

    spent = _reach(url)
    proxy = _proxy(url)
    timeout = urllib3.Timeout(connect=max(1.0, REACH_LIMIT - spent), read=READ_LIMIT)
    retries = urllib3.Retry(total=5, connect=0, read=0, redirect=5, status=0, other=0)
    host = urlsplit(url).netloc
    try:
        pool = _through(proxy, timeout) if proxy else urllib3.PoolManager(timeout=timeout)
        response = pool.request("GET", url, preload_content=False, retries=retries, headers={"Accept-Encoding": "identity"})
    except urllib3.exceptions.HTTPError as error:
        reason = getattr(error, "reason", None) or error
        _unreachable[host] = f"{host} cannot be reached ({_short(reason)})"
        raise DownloadFailed(_unreachable[host]) from None
    if url.startswith("https:") and (response.geturl() or "").startswith("http:"):
        response.close()
        raise DownloadFailed(f"{url} leads to an address without TLS")
    if response.status != 200:
        response.close()
        raise DownloadFailed(f"{url} answered {response.status} {response.reason or ''}".rstrip())
    return response


def _through(proxy: str, timeout: urllib3.Timeout) -> urllib3.ProxyManager:
    import urllib3

    user = urlsplit(proxy)
    login = f"{unquote(user.username)}:{unquote(user.password or '')}" if user.username else None
    headers = urllib3.make_headers(proxy_basic_auth=login) if login else None
    return urllib3.ProxyManager(proxy, timeout=timeout, proxy_headers=headers)


def _short(error: object) -> str:
    text = str(error)
    return text.rsplit(">: ", 1)[-1][:160] or type(error).__name__


def _fetch_text(url: str) -> str:
    import urllib3

    response = _open(url)
    try:
        return response.read(1 << 20).decode(errors="replace")
    except urllib3.exceptions.HTTPError as error:
        raise DownloadFailed(f"{url} was cut off ({_short(error)})") from None
    finally:
        response.close()


def _fetch_file(url: str, target: Path, report: Callable[[float | None, str], None]) -> str:
    """Writes the file and gives its SHA-256. One that was cut off is asked for a second time."""
    try:
        return _fetch_once(url, target, report)
    except _CutOff:
        try:
            return _fetch_once(url, target, report)
        except _CutOff as error:
            raise DownloadFailed(f"{url} was cut off twice ({error})") from None


class _CutOff(Exception):
    pass


def _fetch_once(url: str, target: Path, report: Callable[[float | None, str], None]) -> str:
    import urllib3

    response, end, got = _open(url), time.monotonic() + WHOLE_LIMIT, 0
    total, digest = int(response.headers.get("Content-Length") or 0), hashlib.sha256()
    if total > shutil.disk_usage(target.parent).free:
        response.close()
        raise DownloadFailed(f"{url} has {total >> 20} MiB and the disk of {target.parent} is full")
    try:
        with target.open("wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                digest.update(chunk)
                got += len(chunk)
                report(got / total if total else None, f"{got >> 20} of {total >> 20} MiB" if total else f"{got >> 20} MiB")
                if time.monotonic() > end:
                    raise DownloadFailed(f"{url} took longer than {WHOLE_LIMIT / 60:.0f} minutes")
    except urllib3.exceptions.HTTPError as error:
        raise _CutOff(_short(error)) from None
    finally:
        response.close()
    return digest.hexdigest()


def _unpack(archive: Path, member: str, target: Path) -> Path:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            stream = tar.extractfile(tar.getmember(member))
            if stream is None:
                raise KeyError(member)
            with stream, target.open("wb") as file:
                shutil.copyfileobj(stream, file)
    except KeyError:
        raise DownloadFailed(f"the archive has no file {member}") from None
    except (tarfile.TarError, EOFError) as error:
        raise DownloadFailed(f"the archive cannot be read: {error}") from None
    finally:
        archive.unlink(missing_ok=True)
    return target
