"""Errors found on the caller's side: no usable answer, a mistake in the program, failed work."""

from flowfabric.errors.base import LocalError


class WorkerAtCapacity(LocalError):
    """All permits of this worker are taken; the grant is untouched, use it later."""

    code = "worker_at_capacity"
    category = "retryable"


class MalformedResponse(LocalError):
    """The server's answer cannot be understood; are both sides of the same release?"""

    code = "malformed_response"


class HttpError(LocalError):
    """No answer of the server, or the question could not be put; the detail says which."""

    code = "http"


class Unreachable(HttpError):
    """The server could not be reached or did not answer in time: try again."""

    category = "retryable"


class ApiError(LocalError):
    """The server refused with a code this release does not know: see `details`."""

    code = "api"


class TryLater(ApiError):
    """As ApiError, and the server says that trying again may help."""

    category = "retryable"


# ---- mistakes of the program


class ConfigError(LocalError):
    """A mistake in how something was declared or called, found before anything was sent."""

    code = "config"


class UnsupportedStore(LocalError):
    """The store that was named is one this installation cannot open."""

    code = "unsupported_store"


# ---- the end of awaited work


class ExecutionFailed(LocalError):
    """The awaited execution failed: `reason`, `category` and, where stored, `traceback` say why."""

    code = "execution_failed"
    # Of the failure itself; what the class says is about the error code.
    category: str  # type: ignore[misc,assignment]

    def __init__(self, detail: str = "", /, **details: object) -> None:
        super().__init__(detail, **details)
        self.category = str(details.get("category", ""))

    @property
    def reason(self) -> str:
        return self.detail

    @property
    def traceback(self) -> str:
        return str(self.details.get("traceback", ""))


class ExecutionCancelled(LocalError):
    """The awaited execution was cancelled."""

    code = "execution_cancelled"


class ExecutionExpired(LocalError):
    """The awaited execution ran out of time."""

    code = "execution_expired"


class ExecutionSkipped(LocalError):
    """The awaited execution will never run: what it depends on did not succeed."""

    code = "execution_skipped"


class ResultTimeout(LocalError):
    """The result was not there in time; the execution goes on."""

    code = "result_timeout"
    category = "retryable"
