"""What only operators do to a whole store."""

import asyncio
import logging
from typing import Final

from flowfabric.engine.audit import audit
from flowfabric.errors import (
    InvalidKid,
    InvalidSecretHex,
    RotationConflict,
    TimedOut,
)
from flowfabric.server.call import Call
from flowfabric.server.replies import Reply, ok
from flowfabric.server.route import ADMIN, Routes
from flowfabric.wire import admin as wire

routes: Final = Routes()

ROTATION_S: Final = 120.0


@routes.add(
    "POST /v1/admin/rotate-waitpoint-secret",
    ADMIN,
    {200: wire.Rotated},
    InvalidKid,
    InvalidSecretHex,
    RotationConflict,
    timeout_s=None,
)
async def rotate_waitpoint_secret(call: Call[wire.RotateSecret, None]) -> Reply:
    """Sign with a new key from now on; tokens of the old one stay valid for the grace."""
    asked, keys = call.body, call.engine.keys
    grace_ms = call.services.settings.waitpoint_grace_ms
    with call.services.rotation:
        try:
            async with asyncio.timeout(ROTATION_S):
                await keys.rotate_waitpoint_hmac_secret(
                    asked.new_kid, asked.new_secret_hex, grace_ms
                )
        except TimeoutError as fault:
            event = "waitpoint_hmac_rotation_timeout_http_504"
            audit(event, logging.ERROR, new_kid=asked.new_kid, timeout_s=str(ROTATION_S))
            raise TimedOut("timeout: the rotation may still finish; repeating is safe") from fault
    return ok(wire.Rotated(rotated=1, failed=[], new_kid=asked.new_kid))
