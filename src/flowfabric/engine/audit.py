"""The audit trail: who did what that only operators may do. Never a token, never a secret."""

import logging
from typing import Final

_log: Final = logging.getLogger("flowfabric.audit")


def audit(event: str, level: int = logging.INFO, **facts: str) -> None:
    """Write one line: the event's name and the ids it is about."""
    if _log.isEnabledFor(level):
        text = " ".join(f"{name}={value!r}" for name, value in facts.items())
        _log.log(level, "%s %s", event, text, extra={"audit": event, **facts})
