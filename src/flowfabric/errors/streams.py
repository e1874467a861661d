"""Errors about attempt output and event subscriptions."""

from flowfabric.errors.base import StateError, SubscriptionError, ValidationError


class StreamClosed(StateError):
    """The attempt's stream has ended and takes no more frames."""

    code = "stream_closed"


class StaleOwnerCannotAppend(StateError):
    """Only the holder of the current lease may append: stop this work."""

    code = "stale_owner_cannot_append"


class RetentionLimitExceeded(ValidationError):
    """The frame or summary is too large or too deep: send less, or keep it elsewhere."""

    code = "retention_limit_exceeded"
    status = 413


class StreamDisconnected(SubscriptionError):
    """The subscription broke off: subscribe again from the cursor in the details."""

    code = "stream_disconnected"


class StreamBackpressure(SubscriptionError):
    """You read too slowly and missed entries: refresh what you show from current state."""

    code = "stream_backpressure"
    category = "informational"
