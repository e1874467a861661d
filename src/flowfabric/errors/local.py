"""Errors found on the caller's side: no usable answer, a mistake in the program, failed work."""

from flowfabric.errors.base import LocalError


class WorkerAtCapacity(LocalError, code="worker_at_capacity", category="retryable"):
    """All permits of this worker are taken; the grant is untouched, use it later."""


class MalformedResponse(LocalError, code="malformed_response"):
    """The server's answer cannot be understood; are both sides of the same release?"""


class HttpError(LocalError, code="http"):
    """No answer of the server, or the question could not be put; the detail says which."""


class Unreachable(HttpError, category="retryable"):
    """The server could not be reached or did not answer in time: try again."""


class ApiError(LocalError, code="api"):
    """The server refused with a code this release does not know: see `details`."""


class TryLater(ApiError, category="retryable"):
    """As ApiError, and the server says that trying again may help."""


# ---- mistakes of the program


class ConfigError(LocalError, code="config"):
    """A mistake in how something was declared or called, found before anything was sent."""


class UnsupportedStore(LocalError, code="unsupported_store"):
    """The store that was named is one this installation cannot open."""


# ---- failed steps


class StepFailed(LocalError, code="step_failed"):
    """A step failed with an exception that cannot be made again: `type` and `message` are its own.
    It is caught as the nearest base class of that exception too."""

    # Of the failure itself; what the class says is about the error code.
    category: str  # type: ignore[misc,assignment]
    retryable: bool  # type: ignore[misc]

    def __init__(self, detail: str = "", /, **details: object) -> None:
        super().__init__(detail, **details)
        self.category = str(details.get("category", ""))
        self.retryable = details.get("retryable") is True

    @property
    def type(self) -> str:
        return str(self.details.get("type", ""))

    @property
    def message(self) -> str:
        return str(self.details.get("message", ""))


class StepTimeout(LocalError, TimeoutError, code="step_timeout"):
    """A try of a step took longer than its `timeout`."""


class CallTimeout(LocalError, TimeoutError, code="call_timeout"):
    """A child had not ended at the `timeout` of its call, and was ended."""


class NonRetryable(LocalError, code="non_retryable"):
    """Raise it, or derive from it, where another try cannot help: it ends the retries of a step
    and of its task."""


# ---- the end of awaited work


class ExecutionFailed(LocalError, code="execution_failed"):
    """The awaited execution failed: `reason`, `category` and, where stored, `traceback` say why."""

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


class ExecutionCancelled(LocalError, code="execution_cancelled"):
    """The awaited execution was cancelled."""


class ExecutionExpired(LocalError, code="execution_expired"):
    """The awaited execution ran out of time."""


class ExecutionSkipped(LocalError, code="execution_skipped"):
    """The awaited execution will never run: what it depends on did not succeed."""


class ResultTimeout(LocalError, code="result_timeout", category="retryable"):
    """The result was not there in time; the execution goes on."""
