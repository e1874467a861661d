"""Errors about the service: the server, and its connection to the store."""

from flowfabric.errors.base import ServiceError, TransportError


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
