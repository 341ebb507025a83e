"""The errors that orchlab raises on purpose.

Every one of them carries a remedy: the next thing the user can do. The command line prints both and exits with `code`.
"""

from __future__ import annotations


class OrchlabError(Exception):
    """Root of all deliberate errors. `remedy` is one sentence or one command; `code` is the exit status of the command line."""

    code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n→ {self.remedy}" if self.remedy else message

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: a notebook shows message and remedy, not where in our code it was raised."""
        return [f"{type(self).__name__}: {self}"]


class BadInput(OrchlabError):
    """A value that the user gave cannot be used: names the field (dotted path), the value and what to do."""

    code = 2

    def __init__(self, field: str, value: object, problem: str, remedy: str = "") -> None:
        super().__init__(f"{field}: {value!r}: {problem}", remedy)
        self.field, self.value, self.problem = field, value, problem


class EngineUnavailable(OrchlabError):
    """An engine could be neither found, downloaded nor built."""


class EnvironmentBroken(OrchlabError):
    """The lab environment is not running or not healthy."""

    code = 3


class TimeLimitReached(OrchlabError):
    """Something did not happen within its time limit; the message says what was last seen."""

    code = 4


class ApiError(OrchlabError):
    """The Kubernetes API refused a request. `status` is the HTTP status, `reason` the API's own word, `details` its Status object."""

    def __init__(self, status: int, reason: str, message: str, details: dict | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.details = status, reason, details or {}
