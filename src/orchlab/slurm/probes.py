"""How to see that Slurm's daemons do their work, not only that they listen."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
from dataclasses import dataclass, field

from orchlab.processes import NotReady, Probe


@dataclass(frozen=True)
class CommandProbe(Probe):
    """`target` has to listen, and then `command` has to succeed. `env` comes on top of the caller's environment."""

    command: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict, hash=False)

    def check(self, seconds: float = 3) -> None:
        super().check(seconds)
        try:
            done = subprocess.run(
                self.command,
                capture_output=True,
                text=True,
                timeout=seconds,
                env=os.environ | self.env,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotReady(f"{os.path.basename(self.command[0])} got no answer within {seconds:g} s") from None
        except OSError as error:
            raise NotReady(f"{self.command[0]}: {error.strerror}") from error
        if done.returncode:
            raise NotReady(
                (done.stderr or done.stdout).strip().splitlines()[-1:][0]
                if (done.stderr or done.stdout).strip()
                else f"{os.path.basename(self.command[0])} ended with status {done.returncode}"
            )


@dataclass(frozen=True)
class GreetingProbe(Probe):
    """A unix socket whose server speaks first (MariaDB sends its version when it accepts connections)."""

    def check(self, seconds: float = 2) -> None:
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(seconds)
                client.connect(self.target.removeprefix("unix:"))
                if len(client.recv(5)) < 5:
                    raise NotReady(f"{self.target} sends no greeting")
        except OSError as error:
            raise NotReady(f"{self.target}: {error}") from error


@dataclass(frozen=True)
class RestProbe(Probe):
    """slurmrestd on a unix socket: any HTTP answer shows that it reads requests (without a token that is a 401 or the API's
    description)."""

    def check(self, seconds: float = 3) -> None:
        connection = http.client.HTTPConnection("localhost", timeout=seconds)
        try:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(seconds)
            connection.sock.connect(self.target.removeprefix("unix:"))
            connection.request("GET", "/openapi/v3")
            connection.getresponse().read(1)
        except (OSError, http.client.HTTPException) as error:
            raise NotReady(f"{self.target}: {error}") from error
        finally:
            connection.close()
