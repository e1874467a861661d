"""Errors about requests as such, and about stored data that cannot be right."""

from flowfabric.errors.base import (
    BugError,
    ConflictError,
    NotFoundError,
    ValidationError,
)


class InvalidInput(ValidationError):
    """An argument is unusable; the detail names it and says why."""

    code = "invalid_input"


class InvalidJson(ValidationError):
    """The request body is not JSON; the detail gives the place and the reason."""

    code = "invalid_json"

    def text(self) -> str:
        """The place and the reason, in words."""
        return f"invalid JSON: {self.detail}"


class InvalidContentType(InvalidJson):
    """The request body is not declared as JSON: send `application/json`."""

    status = 415


class InvalidBody(InvalidJson):
    """A member of the request body is wrong, missing or unknown; the detail gives its path."""

    status = 422


class InvalidParameter(InvalidInput):
    """A parameter of the path or the query is unusable; the detail names it and says why."""

    def text(self) -> str:
        """The name and the reason."""
        return self.detail


class InvalidTagKey(ValidationError):
    """Tag keys look like `app.name`: lower case, and a prefix of your own before the dot."""

    code = "invalid_tag_key"


class PayloadTooLarge(ValidationError):
    """The payload or request body is over its limit: send less, or a reference to it."""

    code = "payload_too_large"
    status = 413

    def body(self) -> dict[str, object]:
        """The error as a REST answer, with the limit and the route as further members."""
        body = super().body()
        body.pop("details", None)
        return {**self.details, **body}


class NotFound(NotFoundError):
    """There is no such route, or nothing is stored behind this id."""

    code = "not_found"

    def text(self) -> str:
        """What there is none of."""
        return self.detail or self.code


class MethodNotAllowed(ValidationError):
    """The route exists, but not for this method."""

    code = "method_not_allowed"
    status = 405


class Conflict(ConflictError):
    """The id is taken by something with other content; the detail names what differs."""

    code = "conflict"


class Unauthorized(ValidationError):
    """The API token is missing or wrong."""

    code = "unauthorized"
    status = 401


class Forbidden(ValidationError):
    """The API token does not reach this far; the detail names the missing scope or namespace."""

    code = "forbidden"
    status = 403


class Nondeterminism(ConflictError):
    """A step recorded earlier was repeated with other input: the handler must be deterministic."""

    code = "nondeterminism"


class Corruption(ValidationError):
    """Stored or encoded data cannot be read back; the detail names the place and the field."""

    code = "corruption"
    status = 500


class HandleFromOtherBackend(ValidationError):
    """The handle was issued by another backend; present it to the one that made it."""

    code = "handle_from_other_backend"


class PartitionMismatch(ConflictError):
    """Things that must share a partition do not, or the stored partition counts are others."""

    code = "partition_mismatch"


class InvariantViolation(BugError):
    """A counter or a view disagrees with the records: run `verify`."""

    code = "invariant_violation"


class Bug(BugError):
    """The engine did something it must never do; the log has the details."""

    code = "bug"

    def body(self) -> dict[str, object]:
        """The bare code: the internals are for the log, not for callers."""
        return {"error": self.code, "kind": self.code, "retryable": self.retryable}
