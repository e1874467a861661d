"""A run: an execution that was submitted, and everything one may ask of it."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

import msgspec

from flowfabric.core.backoff import Backoff
from flowfabric.core.events import HistoryEntry
from flowfabric.core.tokens import WaitpointToken
from flowfabric.errors import (
    ConfigError,
    FlowFabricError,
    NotFound,
    ResourceExhausted,
    ResultTimeout,
    WaitpointNotFound,
)
from flowfabric.fabric.submitter import Submitter, every, new_signal
from flowfabric.operations.execution_queries import Attempt, Ended, ExecutionInfo, Explanation
from flowfabric.operations.executions import Steps
from flowfabric.operations.signals import Approval, Delivered, Mail
from flowfabric.operations.streams import FramePage, StoredFrame, Tail, Visibility
from flowfabric.worker import codecs
from flowfabric.worker.children import value_of_end
from flowfabric.worker.durations import Duration, optional_seconds
from flowfabric.worker.output import TRACEBACK

R = TypeVar("R")

_FRAMES: Final = 200
# A stream that never opens sends nothing: the execution itself is read this often.
_BLOCK_MS: Final = 5_000
_BACKOFF: Final = Backoff(0.2, 1.0)


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One frame of output as a reader sees it."""

    id: str
    attempt_index: int
    frame_type: str
    payload: bytes
    ts: int
    mode: str = "durable"

    @property
    def text(self) -> str:
        return self.payload.decode("utf-8", "replace")


class Run(Generic[R]):
    def __init__(
        self,
        execution_id: str,
        port: Callable[[], Any],
        result_type: Callable[[], Any] = lambda: Any,
    ) -> None:
        self.id = execution_id
        self._open = port
        self._result_type = result_type

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    async def _port(self) -> Submitter:
        port: Submitter = await self._open()
        return port

    async def result(self, timeout: Duration | None = None) -> R:
        """The decoded result as soon as it is there; how else it ended is raised."""
        ended = await self.wait(timeout)
        value: R = await result_of(await self._port(), ended, self._result_type())
        return value

    async def wait(self, timeout: Duration | None = None) -> Ended:
        """How it ended, as soon as it has; `ResultTimeout` when that takes too long."""
        seconds = optional_seconds(timeout)
        port = await self._port()
        ended = await port.wait_ended(self.id, seconds)
        if ended is None:
            await port.state(self.id)
            why = await self._why_not()
            raise ResultTimeout(f"{self.id} has not ended after {timeout}; it goes on{why}")
        return ended

    async def _why_not(self) -> str:
        """What keeps it from running, as far as it is known."""
        try:
            found = await self.explain()
        except FlowFabricError:
            return ""
        blockers = "; ".join(one.detail for one in found.blockers)
        return f" ({found.public_state}: {blockers})" if blockers else ""

    async def state(self) -> str:
        return (await self.info()).public_state

    async def info(self) -> ExecutionInfo:
        return await (await self._port()).describe_execution(self.id)

    async def explain(self) -> Explanation:
        """Why it is not running, with every reason at once."""
        return await (await self._port()).explain(self.id)

    async def attempts(self) -> tuple[Attempt, ...]:
        return (await (await self._port()).attempts(self.id)).attempts

    async def history(self) -> tuple[HistoryEntry, ...]:
        port = await self._port()
        return tuple([one async for one in every(lambda cursor: port.history(self.id, cursor))])

    async def summary(self) -> Any:
        """The rolling document of the current attempt; None before its first patch."""
        index = (await self.info()).current_attempt_index
        try:
            found = await (await self._port()).read_summary(self.id, index)
        except NotFound:
            return None
        return msgspec.json.decode(found.document)

    async def stream(
        self, after: str | None = None, visibility: Visibility = "all"
    ) -> AsyncIterator[Frame]:
        """Frames as they come, of one attempt after the other, until the last one has ended."""
        port, index, position = await self._port(), 0, after or "0-0"
        # Reads the frames between the last page and the end of an attempt.
        is_last_look = False
        while True:
            asked = Tail(
                after=position,
                block_ms=0 if is_last_look else _BLOCK_MS,
                count_limit=_FRAMES,
                visibility=visibility,
            )
            page = await _tail_page(port, self.id, index, asked)
            for stored in page.frames:
                if stored.frame.frame_type != TRACEBACK:
                    yield _frame(stored, index)
            position = page.next_after
            if len(page.frames) == _FRAMES:
                continue
            is_closed = page.closed_at > 0
            following = await self._following(port, index, is_closed=is_closed)
            if following == index:
                continue
            if not is_closed and not is_last_look:
                is_last_look = True
                continue
            if following is None:
                return
            index, position, is_last_look = following, "0-0", False

    async def _following(self, port: Submitter, index: int, *, is_closed: bool) -> int | None:
        """The attempt to read on with: a later one, this one, or None when all have ended."""
        if is_closed:
            ended = await port.wait_ended(self.id, 0)
            if ended is not None:
                return index + 1 if ended.attempt_index > index else None
            return index + 1
        await port.state(self.id)
        ended = await port.wait_ended(self.id, 0)
        if ended is None:
            return index
        return index + 1 if ended.attempt_index > index else None

    async def signal(
        self,
        name: str,
        payload: object = None,
        id: str | None = None,
        *,
        waitpoint_id: str = "",
        token: WaitpointToken | str | None = None,
        source: str = "",
    ) -> Delivered:
        """Send a signal to the execution, whatever it is doing: its mailbox keeps it until a wait
        for that name takes it. Of signals with one `id` the first counts, for a day.

        A `waitpoint_id` sends it to that waitpoint instead, by its `token`; without a token it is
        looked up, which only those may do who could cancel the execution as well."""
        port = await self._port()
        if waitpoint_id or token is not None:
            return await self._signal_waitpoint(port, name, payload, (waitpoint_id, token), source)
        if source:
            raise ConfigError("signal: only a signal to a waitpoint has a source")
        body = None if payload is None else msgspec.Raw(codecs.to_json(payload))
        # With an id of its own a request may be repeated after a lost answer.
        mail = Mail(payload=body, id=id or str(uuid4()))
        return await port.signal_by_name(self.id, name, mail)

    async def _signal_waitpoint(
        self,
        port: Submitter,
        name: str,
        payload: object,
        to: tuple[str, WaitpointToken | str | None],
        source: str,
    ) -> Delivered:
        waitpoint_id, token = to
        if token is None:
            token = (await port.waitpoint_token(self.id, waitpoint_id)).token
        new = new_signal(waitpoint_id, token, name, payload, source_identity=source)
        return await port.signal(self.id, new)

    async def approve(self, by: str, comment: str = "", waitpoint_id: str = "") -> Delivered:
        """Approve what waits for people, as `by`; who may call this is the permission."""
        return await self._decide("approved", by, comment, waitpoint_id)

    async def reject(self, by: str, comment: str = "", waitpoint_id: str = "") -> Delivered:
        """Reject it."""
        return await self._decide("rejected", by, comment, waitpoint_id)

    async def _decide(self, name: str, by: str, comment: str, waitpoint_id: str) -> Delivered:
        port = await self._port()
        if not waitpoint_id:
            open_ones = await port.waitpoints(self.id)
            awaited = [one for one in open_ones if name in one.required_signal_names]
            if not awaited:
                raise WaitpointNotFound(f"{self.id} waits for nobody's decision")
            waitpoint_id = awaited[0].waitpoint_id
        payload = codecs.to_json({"comment": comment}) if comment else None
        decision = Approval(signal_name=name, source_identity=by, payload=payload)
        return await port.approve(self.id, waitpoint_id, decision)

    async def cancel(self, reason: str = "") -> None:
        await (await self._port()).cancel(self.id, reason)

    async def replay(
        self, reason: str = "", *, steps: Steps = "drop", steps_until: str = ""
    ) -> None:
        """Run it again, once it has ended or is parked: from the beginning, with every step it has
        recorded (`steps="keep"`), or with those before a step (`steps_until="pay"`, `"pay#3"`)."""
        await (await self._port()).replay(self.id, reason, "", steps, steps_until)

    async def set_tags(self, tags: Mapping[str, str]) -> None:
        await (await self._port()).set_execution_tags(self.id, tags)

    async def traceback(self) -> str:
        """Where its handler failed; nothing unless it has failed."""
        port = await self._port()
        ended = await port.wait_ended(self.id, 0)
        return "" if ended is None else await _traceback(port, ended)


async def result_of(port: Submitter, ended: Ended, type_: Any) -> Any:
    """The decoded result of what has ended; how else it ended is raised."""
    return value_of_end(ended, type_, await _traceback(port, ended))


async def _traceback(port: Submitter, ended: Ended) -> str:
    """The traceback stored behind the output of the attempt that failed last."""
    position, text = "0-0", ""
    while ended.state == "failed":
        asked = Tail(after=position, count_limit=_FRAMES)
        try:
            page = await port.tail(ended.execution_id, ended.attempt_index, asked)
        except ResourceExhausted:
            # The failure is reported without its traceback when the server is overloaded.
            return text
        for stored in page.frames:
            if stored.frame.frame_type == TRACEBACK:
                text = stored.frame.payload.decode("utf-8", "replace")
        if len(page.frames) < _FRAMES:
            return text
        position = page.next_after
    return text


async def _tail_page(
    port: Submitter, execution_id: str, attempt_index: int, asked: Tail
) -> FramePage:
    """A page of a stream; waits while the server has too many readers."""
    failures = 0
    while True:
        try:
            return await port.tail(execution_id, attempt_index, asked)
        except ResourceExhausted:
            failures += 1
            await asyncio.sleep(_BACKOFF.pause_s(failures, random.random()))


def _frame(stored: StoredFrame, attempt_index: int) -> Frame:
    frame = stored.frame
    return Frame(
        id=stored.id,
        attempt_index=attempt_index,
        frame_type=frame.frame_type,
        payload=frame.payload,
        ts=frame.ts,
        mode=frame.mode,
    )
