"""The audit trail of routes: what was done, and by whom if a token said so."""

import logging
from typing import Any

from flowfabric.engine.audit import audit
from flowfabric.server.call import Call


def audited(call: Call[Any, Any], event: str, **facts: str) -> None:
    """Write one line. Facts are ids and reasons, never payloads or tokens."""
    audit(event, logging.INFO, **facts, caller=call.caller.name)
