"""Slurm by slurmrestd: HTTP over its unix socket or an address, with a JSON web token.

The newest API version that both sides know is used. Tried: v0.0.38 with Slurm 22.05.8 and v0.0.42 with 24.11.5.
"""

from __future__ import annotations

import http.client
import json
import os
import pwd
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote, urlsplit

from orchlab.errors import BadInput, EnvironmentBroken, TimeLimitReached
from orchlab.slurm import errors, shapes, versions
from orchlab.slurm.model import Job, Node, Partition, PastJob, Qos, Reservation
from orchlab.slurm.request import JobRequest, minutes
from orchlab.slurm.transport import DAY, Transport

_JOB_HELD = 2042  # ESLURM_JOB_HELD comes with the id of a job that was submitted on hold: no refusal


def _code(error: dict) -> int | None:
    return error.get("error_code", error.get("error_number"))


TOKEN_SECONDS = 3600


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Rest(Transport):
    """`address` is unix:PATH, http://HOST:PORT or https://HOST:PORT; `token` gives a JSON web token, and is asked again when one is
    refused;
    `environment` is what jobs get besides PATH: over HTTP there is no environment to take along.

    Raises BadInput for another address, and for http to a host that is not this machine: the token would be readable on the way.
    """

    name = "rest"

    def __init__(
        self,
        address: str,
        token: Callable[[], str],
        user: str | None = None,
        seconds: float = 20,
        context: ssl.SSLContext | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(seconds)
        url = urlsplit(address)
        if url.scheme not in ("unix", "http", "https") or (url.scheme != "unix" and not url.hostname):
            raise BadInput("address", address, "is not an address of slurmrestd", "write unix:/path, or https://host:port")
        if url.scheme == "http" and url.hostname not in ("127.0.0.1", "localhost", "::1"):
            raise BadInput("address", address, "would send the token unprotected", "use https, or an SSH tunnel to 127.0.0.1")
        self._url, self._context, self._token = url, context, token
        self._environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")} | dict(environment or {})
        self._user = user or pwd.getpwuid(os.geteuid()).pw_name
        self._current, self._since = "", 0.0
        self._version = ""

    # -- HTTP

    def _connection(self) -> http.client.HTTPConnection:
        if self._url.scheme == "unix":
            return _UnixConnection(self._url.path, self.seconds)
        if self._url.scheme == "https":
            return http.client.HTTPSConnection(
                self._url.hostname, self._url.port, timeout=self.seconds, context=self._context or ssl.create_default_context()
            )
        return http.client.HTTPConnection(self._url.hostname, self._url.port, timeout=self.seconds)

    def _ask(self, method: str, path: str, body: Mapping | None = None, allow: Sequence[int] = ()) -> dict:
        for attempt in (1, 2):
            if not self._current or time.monotonic() - self._since > TOKEN_SECONDS / 2:
                self._current, self._since = self._token(), time.monotonic()
            status, text = self._exchange(method, path, json.dumps(body) if body is not None else None)
            # 22.05 knows a bad token only when slurmctld refuses it, and says no more than this. Nothing that changes anything is sent
            # twice.
            # 24.11 answers 511, Protocol authentication error.
            refused = status in (401, 511) or (status >= 500 and method == "GET" and '"Unspecified error"' in text)
            if not refused or attempt == 2:
                break
            self._current = ""
        if status == 401:
            raise errors.from_words("Authentication failure", text)
        try:
            answer = json.loads(text)
        except ValueError:
            raise errors.from_words(f"slurmrestd answers {status} to {method} {path}", text[:500]) from None
        if not any(_code(item) in allow for item in answer.get("errors") or []):
            self._raise_refusal(answer, status, f"{method} {path}")
        return answer

    def _exchange(self, method: str, path: str, body: str | None) -> tuple[int, str]:
        connection = self._connection()
        headers = {"X-SLURM-USER-NAME": self._user, "X-SLURM-USER-TOKEN": self._current, "Accept": "application/json"}
        try:
            connection.request(method, path, body, headers | ({"Content-Type": "application/json"} if body else {}))
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except TimeoutError:
            raise TimeLimitReached(
                f"slurmrestd gave no answer to {method} {path} within {self.seconds:g} s", "orchlab logs slurmrestd"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise EnvironmentBroken(
                f"slurmrestd cannot be reached at {self._url.geturl()}: {error}", "see whether it runs: orchlab status"
            ) from error
        finally:
            connection.close()

    @staticmethod
    def _raise_refusal(answer: dict, status: int, what: str) -> None:
        found = answer.get("errors") or []
        if not found:
            return
        # The last one has Slurm's error text, those before it tell where it came from; some have a description only.
        main = next((item for item in reversed(found) if item.get("error")), found[0])
        details = "; ".join(item["description"] for item in found if item.get("description"))
        raise errors.from_words(main.get("error") or main.get("description") or f"{what} was refused with {status}", details)

    @property
    def api(self) -> str:
        """The version in use, e.g. v0.0.38. Raises EnvironmentBroken if no version is known to both sides."""
        if not self._version:
            paths = self._ask("GET", "/openapi/v3").get("paths") or {}
            offered = {match[1] for path in paths if (match := re.match(r"/slurm/(v\d+\.\d+\.\d+)/", path))}
            known = [version for version in versions.REST_VERSIONS if version in offered]
            if not known:
                raise EnvironmentBroken(
                    f"slurmrestd offers {', '.join(sorted(offered)) or 'no version'}; orchlab knows {versions.REST_VERSIONS[0]} to"
                    f" {versions.REST_VERSIONS[-1]}",
                    "use the commands instead (transport='commands')",
                )
            self._version = known[-1]
        return self._version

    @property
    def _typed(self) -> bool:
        return versions.REST_VERSIONS.index(self.api) >= versions.REST_VERSIONS.index(versions.REST_TYPED)

    def _get(self, path: str, database: bool = False) -> dict:
        return self._ask("GET", f"/{'slurmdb' if database else 'slurm'}/{self.api}/{path}")

    # -- what can be asked

    def version(self) -> str:
        about = self._get("ping").get("meta") or {}
        return (about.get("Slurm") or about.get("slurm") or {}).get("release", "")

    def submit(self, request: JobRequest) -> int:
        request = request.with_directives()
        body = {"script": request.script, "job": self._job(request)}
        return self._ask("POST", f"/slurm/{self.api}/job/submit", body, allow=(_JOB_HELD,))["job_id"]

    def _job(self, request: JobRequest) -> dict:
        """The request in this API version's keys; slurmrestd refuses keys that it doesn't know."""
        environment = self._environment | dict(request.environment)
        texts = {
            "name": request.job_name or "sbatch",
            "account": request.account,
            "partition": request.partition,
            "qos": request.qos,
            "array": request.array,
            "dependency": request.dependency,
            "reservation": request.reservation,
            "constraints": request.constraint,
            "comment": request.comment,
            "current_working_directory": request.chdir or os.getcwd(),
            "standard_output": request.output,
            "standard_error": request.error,
        }
        job: dict = {key: value for key, value in texts.items() if value}
        job |= {
            key: value
            for key, value in {"tasks": request.ntasks, "cpus_per_task": request.cpus_per_task, "requeue": request.requeue}.items()
            if value is not None
        }
        job |= {"hold": True} if request.hold else {}
        if self._typed:
            typed = {"memory_per_node": request.mem, "time_limit": minutes(request.time) if request.time else None}
            job |= {key: {"set": True, "infinite": False, "number": value} for key, value in typed.items() if value is not None}
            job |= {"minimum_nodes": request.nodes, "maximum_nodes": request.nodes} if request.nodes else {}
            tres = {
                "tres_per_node": request.gres,
                "tres_per_job": request.gpus and f"gpu:{request.gpus}",
                "tres_per_task": request.gpus_per_task and f"gpu:{request.gpus_per_task}",
            }
            job |= {key: ",".join(f"gres/{item}" for item in value.split(",")) for key, value in tres.items() if value}
            job["environment"] = [f"{key}={value}" for key, value in environment.items()]
            self._refuse(request, "signal")
        else:
            job |= {
                key: value
                for key, value in {
                    "gres": request.gres,
                    "gpus": request.gpus,
                    "gpus_per_task": request.gpus_per_task,
                    "signal": request.signal,
                }.items()
                if value
            }
            job |= {"nodes": [request.nodes, request.nodes]} if request.nodes else {}
            job |= {"memory_per_node": request.mem} if request.mem else {}
            job |= {"time_limit": minutes(request.time)} if request.time else {}
            job["environment"] = environment
        return job

    def _refuse(self, request: JobRequest, name: str) -> None:
        if getattr(request, name):
            raise BadInput(
                name,
                getattr(request, name),
                f"cannot be said to slurmrestd's {self.api}",
                "submit with the commands (transport='commands')",
            )

    def cancel(self, job: str, signal: str = "") -> None:
        self._ask("DELETE", f"/slurm/{self.api}/job/{quote(str(job))}" + (f"?signal={quote(signal)}" if signal else ""))

    def jobs(self) -> list[Job]:
        return sorted((shapes.job(item) for item in self._get("jobs")["jobs"]), key=lambda job: job.id)

    def nodes(self) -> list[Node]:
        return [shapes.node(item) for item in self._get("nodes")["nodes"]]

    def partitions(self) -> list[Partition]:
        return [shapes.partition(item) for item in self._get("partitions")["partitions"]]

    def reservations(self) -> list[Reservation]:
        return [shapes.reservation(item) for item in self._get("reservations")["reservations"]]

    def accounting(self, jobs: Sequence[str] = (), since: float | None = None) -> list[PastJob]:
        if jobs:
            found = [item for job in jobs for item in self._get(f"job/{quote(str(job))}", database=True)["jobs"]]
        else:
            # slurmdbd reads this in its own local time.
            begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since if since is not None else time.time() - DAY))
            found = self._get(f"jobs?start_time={quote(begin)}", database=True)["jobs"]
        past = [shapes.past_job(item) for item in found]
        if self._typed:
            return past
        # These versions give every exit code as 0, whatever it was (seen with v0.0.38 of Slurm 22.05.8).
        return [replace(job, exit_code=None, steps=tuple(replace(step, exit_code=None) for step in job.steps)) for job in past]

    def qos(self) -> list[Qos]:
        answer = self._get("qos", database=True)
        return [shapes.qos(item) for item in answer.get("qos") or answer.get("QOS") or []]
