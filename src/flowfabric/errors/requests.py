"""Errors about requests as such, about stored data that cannot be right, and about the service: the
server and its connection to the store."""

from flowfabric.errors.base import (
    BugError,
    ConflictError,
    NotFoundError,
    ServiceError,
    TransportError,
    ValidationError,
)


class InvalidInput(ValidationError, code="invalid_input"):
    """An argument is unusable; the detail names it and says why."""


class InvalidJson(ValidationError, code="invalid_json"):
    """The request body is not JSON; the detail gives the place and the reason."""

    def text(self) -> str:
        """The place and the reason, in words."""
        return f"invalid JSON: {self.detail}"


class InvalidContentType(InvalidJson, status=415):
    """The request body is not declared as JSON: send `application/json`."""


class InvalidBody(InvalidJson, status=422):
    """A member of the request body is wrong, missing or unknown; the detail gives its path."""


class InvalidParameter(InvalidInput):
    """A parameter of the path or the query is unusable; the detail names it and says why."""

    def text(self) -> str:
        """The name and the reason."""
        return self.detail


class InvalidTagKey(ValidationError, code="invalid_tag_key"):
    """Tag keys look like `app.name`: lower case, and a prefix of your own before the dot."""


class PayloadTooLarge(ValidationError, code="payload_too_large", status=413):
    """The payload or request body is over its limit: send less, or a reference to it."""

    def body(self) -> dict[str, object]:
        """The error as a REST answer, with the limit and the route as further members."""
        body = super().body()
        body.pop("details", None)
        return {**self.details, **body}


class NotFound(NotFoundError, code="not_found"):
    """There is no such route, or nothing is stored behind this id."""

    def text(self) -> str:
        """What there is none of."""
        return self.detail or self.code


class MethodNotAllowed(ValidationError, code="method_not_allowed", status=405):
    """The route exists, but not for this method."""


class Conflict(ConflictError, code="conflict"):
    """The id is taken by something with other content; the detail names what differs."""


class Unauthorized(ValidationError, code="unauthorized", status=401):
    """The API token is missing or wrong."""


class Forbidden(ValidationError, code="forbidden", status=403):
    """The API token lacks a scope or a namespace; the detail names it."""


class Nondeterminism(ConflictError, code="nondeterminism"):
    """A step recorded earlier was repeated with other input: the handler must be deterministic."""


class Corruption(ValidationError, code="corruption", status=500):
    """Stored or encoded data cannot be read back; the detail names the place and the field."""

    def is_for_callers(self) -> bool:
        return False


class HandleFromOtherBackend(ValidationError, code="handle_from_other_backend"):
    """The handle was issued by another backend; present it to the one that made it."""


class PartitionMismatch(ConflictError, code="partition_mismatch"):
    """Things that must share a partition do not, or the stored partition counts are others."""


class InvariantViolation(BugError, code="invariant_violation"):
    """A counter or a view disagrees with the records: run `verify`."""


class Bug(BugError, code="bug"):
    """The engine did something it must never do; the log has the details."""

    def body(self) -> dict[str, object]:
        """The bare code: the internals are for the log, not for callers."""
        return {"error": self.code, "kind": self.code, "retryable": self.retryable}


# ---- the service


class Unavailable(ServiceError, code="unavailable"):
    """The server is shutting down, or does not offer this operation."""


class ResourceExhausted(ServiceError, code="resource_exhausted", category="retryable", status=429):
    """A shared resource is used up: wait, as long as `retry_after_ms` says if it is given."""

    def is_for_callers(self) -> bool:
        return self.details.get("resource") in (None, "journal", "mailbox")


class TimedOut(ServiceError, code="timeout", status=504):
    """The operation took too long and may or may not have been applied: look before repeating."""


class StoreTimeout(TransportError, code="timeout", category="retryable", status=503):
    """The store did not answer in time: try again."""


class TransportFault(TransportError, code="transport", category="retryable", status=503):
    """The connection to the store failed or broke: try again."""


class ClusterFault(TransportError, code="cluster", category="retryable", status=503):
    """The store's cluster is rearranging itself: try again."""


class BusyLoading(TransportError, code="busy_loading", category="retryable", status=503):
    """The store is still loading its data: try again."""


class AuthFault(TransportError, code="auth"):
    """The store refused our credentials: correct the configured ones."""


class ScriptNotLoaded(TransportError, code="script_not_loaded"):
    """The store lacks our function library, even after loading it once more."""


class ProtocolFault(TransportError, code="protocol"):
    """The store answered with something a healthy one would not say."""


class OtherFault(TransportError, code="other"):
    """The store failed in a way we do not know."""
