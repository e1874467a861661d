"""What the outside world observes of a run: its outcome, the calls of step functions, the children,
and what budgets counted."""

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from flowfabric.core.graph import FINAL_PUBLIC
from flowfabric.core.journal import FAILED
from flowfabric.errors import FlowFabricError
from flowfabric.fabric.runs import Run
from flowfabric.operations.attempts import Kept, NewEntry
from flowfabric.operations.workers import Claim
from flowfabric.testing.fabric import Kit, Observer
from flowfabric.worker import codecs
from flowfabric.worker.codecs import Unencodable
from flowfabric.worker.session import JournalKey

R = TypeVar("R")

_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PARTITION: Final = re.compile(r"\{fp:\d+\}")
_MOST_DAYS: Final = 400
# For what lives on after its parent.
_DAYS_AFTER: Final = 3


class Seen(msgspec.Struct, frozen=True):
    """One execution as others see it. A call is listed once, also if it was repeated because
    nothing was recorded of it."""

    kind: str
    state: str
    outcome: str
    calls: tuple[str, ...]
    children: tuple["Seen", ...] = ()


class Observation(msgspec.Struct, frozen=True):
    root: Seen
    spent: Mapping[str, int]


async def observed(
    kit: Kit, submit: Callable[[], Awaitable[Run[R]]], how: str
) -> tuple[Run[R], Observation]:
    """A run, and what is seen of it once it has ended with all that belongs to it. A recorded step
    that runs again is an error."""
    outside = _Outside(kit)
    before = await outside.usage()
    # First, so that it sees what was recorded just before a crash.
    kit.observers.insert(0, outside)
    try:
        run = await submit()
        found = await outside.observe(run, before)
    finally:
        kit.observers.remove(outside)
    again = ", ".join(outside.repeated)
    assert not again, f"{found.root.kind}, {how}: done again though recorded: {again}"
    return run, found


class _Outside(Observer):
    """Watches one run at a time. `repeated`: steps that ran again although they were recorded, or
    within one attempt, whose turns know what the ones before did."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._calls: dict[str, list[str]] = defaultdict(list)
        self._recorded: set[tuple[str, str, int]] = set()
        self._in_attempt: set[tuple[str, JournalKey]] = set()
        self._rounds: dict[str, int] = {}
        self.repeated: list[str] = []

    def called(self, claim: Claim, key: JournalKey, args: tuple[Any, ...]) -> None:
        own = claim.execution_id
        if self._rounds.setdefault(own, claim.round) != claim.round:
            # Its journal was dropped: what was recorded may run again.
            self._recorded = {one for one in self._recorded if one[0] != own}
            self._rounds[own] = claim.round
        place = (claim.attempt_id, key)
        if (own, key.name, key.seq) in self._recorded or place in self._in_attempt:
            self.repeated.append(str(key))
        self._in_attempt.add(place)
        text = f"{key}: {_text(args)}"
        if text not in self._calls[own]:
            self._calls[own].append(text)

    def restarted(self) -> None:
        self._in_attempt.clear()

    def after_append(
        self, items: Sequence[NewEntry], answers: Sequence[Kept | FlowFabricError]
    ) -> None:
        for new, answer in zip(items, answers, strict=True):
            if not isinstance(answer, Kept):
                continue
            entry = new.entry
            if not answer.stored:
                self.repeated.append(f"{entry.name} (use {entry.seq})")
            self._recorded.add((new.execution_id, entry.name.removeprefix(FAILED), entry.seq))

    async def observe(self, run: Run[Any], before: Mapping[str, int]) -> Observation:
        for _ in range(_MOST_DAYS):
            await self._kit.answer_all()
            if (await run.info()).completed_at:
                break
            await self._kit.clock.advance("1d")
        for _ in range(_DAYS_AFTER):
            if _has_ended(await self._seen(run.id)):
                break
            await self._kit.clock.advance("1d")
            await self._kit.answer_all()
        after = await self.usage()
        spent = {name: used - before.get(name, 0) for name, used in after.items()}
        return Observation(await self._seen(run.id), spent)

    async def usage(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for budget_id in sorted(self._kit.budget_ids):
            status = await self._kit.admin.describe_budget(budget_id)
            found |= {f"{budget_id} used {name}": n for name, n in status.usage.items() if n}
            found |= {f"{budget_id} held {name}": n for name, n in status.reserved.items() if n}
        return found

    async def _seen(self, execution_id: str) -> Seen:
        run = self._kit.run(execution_id)
        info = await run.info()
        is_over = info.public_state in FINAL_PUBLIC
        return Seen(
            info.execution_kind,
            info.public_state,
            _plain(await _outcome(run)) if is_over else "",
            tuple(self._calls.get(execution_id, ())),
            # Those that were created at the same time have no order.
            tuple(sorted([await self._seen(one.execution_id) for one in info.children], key=repr)),
        )


async def _outcome(run: Run[Any]) -> str:
    try:
        return repr(await run.result(timeout="1s"))
    except FlowFabricError as fault:
        return str(fault)


def _has_ended(seen: Seen) -> bool:
    return seen.state in FINAL_PUBLIC and all(map(_has_ended, seen.children))


def _text(args: tuple[Any, ...]) -> str:
    return ", ".join(map(_argument, args))


def _argument(value: object) -> str:
    try:
        return _plain(codecs.to_json(value).decode())
    except Unencodable:
        return type(value).__qualname__


def _plain(text: str) -> str:
    """Ids differ from run to run."""
    return _PARTITION.sub("{fp}", _ID.sub("<id>", text))
