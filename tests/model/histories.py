"""Small histories of several clients, and the search for one order that explains what they saw."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from flowfabric.backend.base import Backend
from flowfabric.backend.types import (
    Append,
    ClaimRequest,
    ConfigPut,
    JournalAppend,
    NamedClaim,
    Worker,
)
from flowfabric.core.fence import Fence
from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.ids import for_flow
from flowfabric.core.journal import JournalEntry
from flowfabric.core.new_execution import NewExecution, NewGraph
from flowfabric.core.plan import Plan, Timer
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import complete, delay, renew
from flowfabric.core.rules.operators import Block, block, cancel, unblock
from flowfabric.operations.streams import Frame
from tests.clock import VirtualClock
from tests.model.comparing import Known, picture
from tests.model.sides import COUNTS, STORES, Side
from tests.model.world import told

FLOW: Final = "11111111-2222-4333-8444-555555555555"
EDGE: Final = "22222222-3333-4444-8555-666666666666"


def _id(number: int) -> str:
    return for_flow(COUNTS, FLOW, f"00000000-0000-4000-8000-{number:012}")


# Two that wait, one that is held, a member that is held and the member behind it.
FIRST, SECOND, HELD, SOURCE, TARGET = (_id(number) for number in range(5))
FENCES: Final = {HELD: Fence("lease-h", 1, "attempt-h"), SOURCE: Fence("lease-s", 1, "attempt-s")}


class Call(NamedTuple):
    """One call of one client; `number` tells calls apart that ask for the same."""

    kind: str
    number: int


Client = Sequence[Call]
History = Sequence[Client]


PLANS: Final[dict[str, Plan]] = {
    "complete": complete(HELD, FENCES[HELD], b"done", "", "op"),
    "complete the source": complete(SOURCE, FENCES[SOURCE], b"done", "", "op"),
    "renew": renew(HELD, FENCES[HELD], 50_000),
    "hand back": delay(HELD, FENCES[HELD], Timer(wake_in=0), "op"),
    "cancel the held": cancel(HELD, "enough", "operator_override", None),
    "cancel the first": cancel(FIRST, "enough", "operator_override", None),
    "block": block(FIRST, Block("operator", "wait")),
    "unblock": unblock(FIRST, frozenset({"operator"})),
}


def _request(number: int, n: int) -> ClaimRequest:
    return ClaimRequest(
        worker_id="pool",
        worker_instance_id=f"pool-{number}",
        namespace="default",
        lanes=("default",),
        sets=("-",),
        ids=tuple((f"lease-{number}-{i}", f"attempt-{number}-{i}") for i in range(n)),
        lease_for=30_000,
    )


def _new(execution_id: str, **fields: Any) -> NewExecution:
    record = Record(execution_id="", namespace="default", lane="default", **fields)
    return NewExecution(
        execution_id=execution_id, record=record, input=b"in", dedup_window_ms=1_000
    )


def _named(execution_id: str, name: str) -> NamedClaim:
    return NamedClaim(
        execution_id=execution_id,
        worker_id="pool",
        worker_instance_id=f"pool-{name}",
        lease_id=f"lease-{name}",
        attempt_id=f"attempt-{name}",
        lease_for=30_000,
    )


def _append(number: int) -> Append:
    frame = Frame(frame_type="token", payload=b"%d" % number)
    return Append(execution_id=HELD, attempt_index=0, fence=FENCES[HELD], frames=(frame,))


def _entry(number: int) -> JournalAppend:
    return JournalAppend(HELD, FENCES[HELD], (JournalEntry("mail", 0, f"digest-{number}", b""),))


def _worker(number: int) -> Worker:
    return Worker(
        namespace="default",
        worker_instance_id="pool-1",
        worker_id=f"pool-{number % 2}",
        ttl_ms=1_000,
    )


Make = Callable[[Backend, int], Awaitable[Sequence[object]]]


async def _finish(backend: Backend, number: int) -> Sequence[object]:
    finished = await backend.finish([PLANS["complete"]], _request(number, 1))
    return [*finished.answers, finished.claimed]


async def _count(backend: Backend, number: int) -> Sequence[object]:
    return [await backend.count("default", "default")]


def _applying(kind: str) -> Make:
    return lambda backend, number: backend.apply([PLANS[kind]])


KINDS: Final[dict[str, Make]] = {
    "claim one": lambda backend, number: backend.claim([_request(number, 1)]),
    "claim two": lambda backend, number: backend.claim([_request(number, 2)]),
    "take the first": lambda backend, number: backend.lease([_named(FIRST, str(number))]),
    "finish and claim": _finish,
    "create with one key": lambda backend, number: backend.create(
        [_new(_id(10 + number), idempotency_key="key-1")]
    ),
    "create with one id": lambda backend, number: backend.create([_new(_id(9), priority=number)]),
    "append": lambda backend, number: backend.append([_append(number)]),
    "journal": lambda backend, number: backend.journal([_entry(number)]),
    "register": lambda backend, number: backend.register([_worker(number)]),
    "configure": lambda backend, number: backend.config_put([ConfigPut("doc", 0, b"%d" % number)]),
    "read the held": lambda backend, number: backend.read([HELD], frozenset({"attempts"})),
    "read the target": lambda backend, number: backend.read([TARGET], frozenset({"input"})),
    "count": _count,
    **{kind: _applying(kind) for kind in PLANS},
}


async def make(backend: Backend, call: Call) -> list[object]:
    return told(await KINDS[call.kind](backend, call.number))


async def furnish(backend: Backend) -> None:
    """What every history begins with."""
    await backend.create([_new(FIRST), _new(SECOND), _new(HELD)])
    source, target = _new(SOURCE, flow_id=FLOW), _new(TARGET, flow_id=FLOW)
    blocked = NewExecution(
        execution_id=target.execution_id, record=target.record, has_dependencies=True
    )
    edge = Edge(
        edge_id=EDGE,
        flow_id=FLOW,
        source=SOURCE,
        target=TARGET,
        data_ref="input",
        state="open",
    )
    graph = NewGraph(
        flow=Flow(flow_id=FLOW, namespace="default"),
        members=(blocked, source),
        edges=(edge,),
        groups=(Group(target=TARGET, flow_id=FLOW, n=1),),
    )
    await backend.create_graph([graph])
    await backend.lease([_named(HELD, "h"), _named(SOURCE, "s")])


async def end_of(backend: Backend) -> dict[str, object]:
    """Everything the store shows afterwards."""
    side = Side("store", backend)
    side.cursor = await backend.cursor("oldest")
    known = Known()
    known.flows.add(FLOW)
    known.streams.add((HELD, 0))
    known.journals.add(HELD)
    shown = await picture(side, known)
    await side.engine.close()
    return shown


async def observe(
    backend: Backend, history: History, pauses: Sequence[int]
) -> list[list[list[object]]]:
    """What each client is answered when all of them act at once."""

    async def act(client: Client, pause: int) -> list[list[object]]:
        answers = []
        for call in client:
            for _ in range(pause):
                await asyncio.sleep(0)
            answers.append(await make(backend, call))
        return answers

    return await asyncio.gather(*map(act, history, pauses))


class Search:
    """Looks for an order of all calls in which a lone caller of the reference sees the same."""

    def __init__(
        self, history: History, answers: list[list[list[object]]], end: dict[str, object]
    ) -> None:
        self._history = history
        self._answers = answers
        self._end = end
        self._total = sum(len(client) for client in history)

    async def order(self, taken: tuple[int, ...] = ()) -> tuple[int, ...] | None:
        """Whose turn it was each time; None when no order explains what was seen."""
        if taken and not await self._explains(taken):
            return None
        if len(taken) == self._total:
            return taken
        for client, calls in enumerate(self._history):
            if taken.count(client) < len(calls):
                found = await self.order((*taken, client))
                if found is not None:
                    return found
        return None

    async def _explains(self, taken: tuple[int, ...]) -> bool:
        reference = STORES["memory"](VirtualClock(), Path())
        await furnish(reference)
        done = [0] * len(self._history)
        for client in taken:
            place = done[client]
            answer = await make(reference, self._history[client][place])
            if answer != self._answers[client][place]:
                return False
            done[client] += 1
        return len(taken) < self._total or await end_of(reference) == self._end
