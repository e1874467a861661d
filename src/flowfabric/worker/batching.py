"""Items that go to the store or server in batches: at once, in few calls, several in flight."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar

from flowfabric.errors import FlowFabricError
from flowfabric.operations.attempts import HeldAttempts
from flowfabric.operations.declaration import Call, Operation, Transport
from flowfabric.operations.executions import Executions

I = TypeVar("I")  # noqa: E741

# Several small calls are in flight, so that the store works while handlers run, and none is so
# large that others wait for it.
MOST_ITEMS: Final = 32
_MOST_IN_FLIGHT: Final = 4
# The longest that a small batch waits for more while another one is in flight.
_LATEST_S: Final = 0.1
_GATHERED: Final = frozenset(
    declared.name
    for declared in (
        HeldAttempts.append_journal,
        HeldAttempts.append_frames,
        HeldAttempts.report_usages,
    )
)
# What one sends by itself, and the batch that it travels in.
_AS_ITEMS: Final = {Executions.submit.name: Executions.submit_many}


class Batching(Generic[I]):
    """A handler that gets an answer soon has more to send, so batches that are sent at once would
    stay small. While one is in flight, a few items wait for more, or for its answer, but not for
    one that takes long."""

    def __init__(
        self,
        send: Callable[[list[I]], Coroutine[Any, Any, None]],
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """`then` is called after every batch."""
        self._send_batch = send
        self._then = then
        self._loop = asyncio.get_running_loop()
        self._waiting: list[I] = []
        self._late: asyncio.TimerHandle | None = None
        self.in_flight: set[asyncio.Task[None]] = set()

    def put(self, item: I) -> None:
        """Those of one turn of the event loop are sent together."""
        if not self.in_flight:
            self._start(self._send_turn())
        elif len(self._waiting) % MOST_ITEMS == 0:
            self._loop.call_soon(self._send)
        self._waiting.append(item)

    async def _send_turn(self) -> None:
        await self._send_batch(self._taken())

    def _taken(self) -> list[I]:
        batch, self._waiting = self._waiting[:MOST_ITEMS], self._waiting[MOST_ITEMS:]
        return batch

    def _send(self, least: int = MOST_ITEMS) -> None:
        while self._waiting and len(self.in_flight) < _MOST_IN_FLIGHT:
            if self.in_flight and len(self._waiting) < least:
                self._remember()
                return
            self._start(self._send_batch(self._taken()))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self.in_flight.add(task)
        task.add_done_callback(self._sent)

    def _remember(self) -> None:
        if self._late is None or self._late.when() < self._loop.time():
            self._late = self._loop.call_later(_LATEST_S, self._send, 1)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self.in_flight.discard(task)
        self._send()
        self._then()


# ---- calls that share requests

# The items of one call, and who waits for their answers.
_Asked = tuple[Sequence[Any], "asyncio.Future[list[Any]]"]


def gathered(transport: Transport) -> Transport:
    """For workers that speak to a server: what several attempts record, put out or submit at the
    same time shares a request. Items that may not be sent twice go without those that may."""

    def bind(declared: Operation[..., Any]) -> Call:
        if declared.name in _AS_ITEMS:
            batch = _AS_ITEMS[declared.name]
            return _as_item(_gathered(batch, transport(batch)))
        ask = transport(declared)
        return _gathered(declared, ask) if declared.name in _GATHERED else ask

    return bind


def _as_item(ask: Call) -> Call:
    async def call(item: Any) -> Any:
        (answer,) = await ask([item])
        if isinstance(answer, FlowFabricError):
            raise answer
        return answer

    return call


def _gathered(declared: Operation[..., Any], ask: Call) -> Call:
    batches: dict[bool, Batching[_Asked]] = {}

    async def send(asked: list[_Asked]) -> None:
        try:
            answers = iter(await ask([item for items, _ in asked for item in items]))
        except Exception as fault:
            for _, future in asked:
                if not future.done():
                    future.set_exception(fault)
            return
        for items, future in asked:
            own = [next(answers) for _ in items]
            if not future.done():
                future.set_result(own)

    async def call(items: Sequence[Any]) -> list[Any]:
        is_repeatable = declared.is_repeatable({declared.owners.batch: items})
        if is_repeatable not in batches:
            batches[is_repeatable] = Batching(send)
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        batches[is_repeatable].put((items, future))
        return await future

    return call
