"""How executions ended, seen through a server: at once, or as soon as they have."""

import asyncio
import logging
import random
from typing import Final
from urllib.parse import unquote

import httpx

from flowfabric.client.operations import http_transport
from flowfabric.client.requests import execution, waiting
from flowfabric.client.rest import BACKOFF, Rest
from flowfabric.errors import ExecutionNotFound, FlowFabricError, NotFound, Unavailable
from flowfabric.operations.ends import ATTEMPT_HEADER, ENCODING_HEADER, ENDS, Ended
from flowfabric.operations.executions import ExecutionInfo
from flowfabric.operations.nouns import Calls

_log = logging.getLogger("flowfabric.client")

_WAIT_MS: Final = 25_000
# So many waits are under way at once; with more, each waits for a short turn.
_MOST_WAITS: Final = 100
_TURN_MS: Final = 1_000


class Ends:
    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._executions = Calls(http_transport(rest))
        self._turns = asyncio.Semaphore(_MOST_WAITS)
        self._waiting = 0

    async def look(self, execution_id: str, wait_ms: int = 0) -> Ended | None:
        """How it ended; None while it is live. An unknown one is refused.

        The result says by itself that the execution completed; whatever else there is to tell
        takes a second request. One that completes between the two is asked for its result again.
        """
        done = await self._result(execution_id, wait_ms)
        if done is not None:
            return done
        ended = _ended(await self._executions.describe_execution(execution_id))
        if ended is not None and ended.state == "completed":
            return await self._result(execution_id) or ended
        return ended

    async def _result(self, execution_id: str, wait_ms: int = 0) -> Ended | None:
        try:
            path = execution(execution_id, "result")
            response = await self._rest.fetch(waiting(path, "wait_ms", wait_ms))
        except NotFound:
            return None
        return _completed(execution_id, response) if ATTEMPT_HEADER in response.headers else None

    async def wait(self, execution_id: str, timeout_s: float | None) -> Ended | None:
        """As soon as it has ended; None when the time is up before, or nothing is known of it."""
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_s or None):
                return await self._until(execution_id, is_single_look=timeout_s == 0)
        except (TimeoutError, ExecutionNotFound):
            return None
        finally:
            self._waiting -= 1

    async def _until(self, execution_id: str, *, is_single_look: bool) -> Ended | None:
        failures = 0
        while True:
            try:
                ended = await self._turn(execution_id, is_single_look=is_single_look)
                if ended is not None or is_single_look:
                    return ended
                failures = 0
            except FlowFabricError as fault:
                if not may_recover(fault, self._rest):
                    raise
                failures += 1
                _log.warning("waiting for %s goes on after: %s", execution_id, fault)
                await asyncio.sleep(BACKOFF.pause_s(failures, random.random()))

    async def _turn(self, execution_id: str, *, is_single_look: bool) -> Ended | None:
        if is_single_look:
            return await self.look(execution_id)
        async with self._turns:
            is_crowded = self._waiting > _MOST_WAITS
            return await self.look(execution_id, _TURN_MS if is_crowded else _WAIT_MS)


def may_recover(fault: FlowFabricError, rest: Rest) -> bool:
    """Whether whoever waits should go on: a server that has been there may come back."""
    return rest.has_answered and (fault.retryable or isinstance(fault, Unavailable))


def _completed(execution_id: str, response: httpx.Response) -> Ended:
    return Ended(
        execution_id=execution_id,
        state="completed",
        attempt_index=int(response.headers[ATTEMPT_HEADER]),
        result=response.content,
        result_encoding=unquote(response.headers.get(ENCODING_HEADER, "")),
    )


def _ended(info: ExecutionInfo) -> Ended | None:
    state = ENDS.get(info.public_state)
    if state is None:
        return None
    reason, category = info.failure_reason, info.failure_category
    if state == "cancelled":
        reason, category = info.cancellation_reason, "cancelled"
    return Ended(
        execution_id=info.execution_id,
        state=state,
        attempt_index=info.current_attempt_index,
        result_encoding=info.result_encoding or "",
        reason=reason or "",
        category=category or "",
    )
