"""What callers of the SDK meet on their own side: how awaited work ended, their own mistakes."""

from flowfabric.errors.base import LocalError


class ConfigError(LocalError):
    """A mistake in how something was declared or called, found before anything was sent."""

    code = "config"


class UnsupportedStore(LocalError):
    """The store that was named is one this installation cannot open."""

    code = "unsupported_store"


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
