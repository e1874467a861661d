"""Errors about reaching and running the service: server, store, and the caller's own side."""

from flowfabric.errors.base import LocalError, ServiceError, TransportError


class Unavailable(ServiceError):
    """The server is shutting down, or does not offer this operation."""

    code = "unavailable"


class ResourceExhausted(ServiceError):
    """A shared resource is used up: wait, as long as `retry_after_ms` says if it is given."""

    code = "resource_exhausted"
    category = "retryable"
    status = 429


class TimedOut(ServiceError):
    """The operation took too long and may or may not have been applied: look before repeating."""

    code = "timeout"
    status = 504


class StoreTimeout(TransportError):
    """The store did not answer in time: try again."""

    code = "timeout"
    category = "retryable"
    status = 503


class TransportFault(TransportError):
    """The connection to the store failed or broke: try again."""

    code = "transport"
    category = "retryable"
    status = 503


class ClusterFault(TransportError):
    """The store's cluster is rearranging itself: try again."""

    code = "cluster"
    category = "retryable"
    status = 503


class BusyLoading(TransportError):
    """The store is still loading its data: try again."""

    code = "busy_loading"
    category = "retryable"
    status = 503


class AuthFault(TransportError):
    """The store refused our credentials: correct the configured ones."""

    code = "auth"


class ScriptNotLoaded(TransportError):
    """The store lacks our function library, even after loading it once more."""

    code = "script_not_loaded"


class ProtocolFault(TransportError):
    """The store answered with something a healthy one would not say."""

    code = "protocol"


class OtherFault(TransportError):
    """The store failed in a way we do not know."""

    code = "other"


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
