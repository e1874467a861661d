"""Two stores under one clock and one luck: whatever is done to one is done to the other."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Generic, TypeVar
from uuid import UUID

import msgspec

from flowfabric.backend.base import Backend
from flowfabric.backend.coalesce import Store
from flowfabric.backend.types import ConfigPut
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.tokens import Secret
from flowfabric.duties.maintenance import Retention
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Deps, Engine, secret
from flowfabric.errors import FlowFabricError
from flowfabric.errors.base import BugError
from tests.clock import VirtualClock
from tests.stores import SEARCHABLE, stores_of

T = TypeVar("T")

# Few partitions, so that strangers share one.
COUNTS: Final = PartitionCounts(flow=4, budget=2, quota=2)
STORES: Final = stores_of(COUNTS)
# Both sides sign alike.
SECRET: Final = Secret("5e" * 32)
# And derive the same ids.
_STORE_SECRET: Final = b'{"hex": "%s"}' % (b"5e" * 32)


class Side:
    """One store with an engine whose ids and luck are drawn from a seed."""

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self.backend = backend
        self.cursor = b""
        self._luck = Random(0)
        deps = Deps(Store(backend), COUNTS, mint=self.mint, chance=self._chance)
        self.engine = Engine(deps, SEARCHABLE)
        self.sweep = TimerSweep(self.engine)
        self.retention = Retention(self.engine)

    def reseed(self, seed: int) -> None:
        self._luck = Random(seed)

    def mint(self) -> str:
        return str(UUID(int=self._luck.getrandbits(128), version=4))

    def _chance(self) -> float:
        return self._luck.random()

    async def open(self) -> None:
        await self.backend.prepare()
        await self.backend.config_put([ConfigPut(secret.DOCUMENT, 0, _STORE_SECRET)])
        await self.engine.keys.boot(SECRET)
        self.cursor = await self.backend.cursor("oldest")

    async def rest(self) -> None:
        """Wait for whatever a call left to the background."""
        await self.engine.settling.drain()
        await self.engine.deps.slots.drain()
        await self.engine.lanes.drain()

    async def close(self) -> None:
        await self.engine.close()
        await self.backend.close()


class Answer(msgspec.Struct, Generic[T], frozen=True):
    """What a call came to: its value, or the error it raised, told by code and words."""

    value: T | None = None
    error: type[FlowFabricError] | None = None
    detail: str = ""
    details: dict[str, object] = msgspec.field(default_factory=dict)


async def answer_of(call: Awaitable[T]) -> Answer[T]:
    try:
        return Answer(await call)
    except BugError:
        # Two stores that break in the same way still break.
        raise
    except FlowFabricError as refusal:
        return Answer(None, type(refusal), refusal.detail, dict(refusal.details))


class Disagreement(AssertionError):
    """The store under test and the reference differ."""


def agree(what: str, reference: object, subject: object) -> None:
    if reference != subject:
        raise Disagreement(f"{what}: {difference(reference, subject)}")


def difference(reference: object, subject: object) -> str:
    """The first place where two values differ, named by its path."""
    if type(reference) is type(subject):
        if isinstance(reference, dict) and isinstance(subject, dict):
            for key in dict.fromkeys([*reference, *subject]):
                ours, theirs = reference.get(key, _ABSENT), subject.get(key, _ABSENT)
                if ours != theirs:
                    return f"[{key!r}]{difference(ours, theirs)}"
        if isinstance(reference, list | tuple) and isinstance(subject, list | tuple):
            for place, (ours, theirs) in enumerate(zip(reference, subject, strict=False)):
                if ours != theirs:
                    return f"[{place}]{difference(ours, theirs)}"
        if isinstance(reference, msgspec.Struct):
            for name in reference.__struct_fields__:
                ours, theirs = getattr(reference, name), getattr(subject, name)
                if ours != theirs:
                    return f".{name}{difference(ours, theirs)}"
    return f": expected {reference!r}, got {subject!r}"


_ABSENT: Final = "nothing"


class Pair:
    """The reference and the store under test."""

    def __init__(self, reference: Backend, subject: Backend, clock: VirtualClock) -> None:
        self.clock = clock
        self.reference = Side("reference", reference)
        self.subject = Side("subject", subject)
        self._calls = 0

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.reference, self.subject

    async def open(self) -> None:
        for side in self.sides:
            await side.open()

    async def close(self) -> None:
        for side in self.sides:
            await side.close()

    async def both(self, call: Callable[[Side], Awaitable[T]]) -> Answer[T]:
        """Make one call on each side; both must come to the same."""
        self._calls += 1
        answers = []
        for side in self.sides:
            side.reseed(self._calls)
            answers.append(await answer_of(call(side)))
            await side.rest()
        reference, subject = answers
        agree("answer", reference, subject)
        return reference
