"""Random durable programs: what they consist of, how a handler runs them, and what disturbs them.

A program is a list of statements, and a statement a list that begins with its name: data that a
task takes as its argument. A further kind of statement is one entry of STATEMENTS (how it runs) and
one of the strategies in `statements`. All that a program does must come to the same however often
it is entered; durations are whole hours, time limits are not, so that none of them ends together
with something else.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from hypothesis import strategies as st

from flowfabric import (
    BudgetExceeded,
    CallTimeout,
    Context,
    ExecutionFailed,
    FlowFabricError,
)
from flowfabric.testing import Kit
from flowfabric.testing.crashes import Crash

Statement = list[Any]
Program = list[Statement]

ANSWERED: Final = "go"
_NEVER: Final = "never"
_LIMIT: Final = "5h30m"
_PURSE, _EMPTY = "purse", "empty"
_DEPTH: Final = 2


class Wrong(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"wrong {code}")
        self.code = code


class Unmakeable(LookupError):
    """Cannot be made again from what JSON keeps."""

    def __init__(self, thing: object) -> None:
        super().__init__("unmakeable")
        self.thing = thing


def _fault(code: int) -> Exception:
    made = (ValueError(f"bad {code}"), Wrong(code), Unmakeable(object()))
    return made[code % len(made)]


class Machine:
    """One entry of a program. `trace`: what it did, which is its result."""

    def __init__(self, ctx: Context, task: Any) -> None:
        self.ctx = ctx
        self.task = task
        self.trace: list[str] = []
        self.caught: list[Exception] = []

    async def run(self, program: Program) -> None:
        for name, *operands in program:
            await STATEMENTS[name](self, *operands)


async def _step(machine: Machine, code: int, how: str) -> None:
    """`again`: fails until the attempt is retried."""
    retries = machine.ctx.info.retry_count

    async def effect(number: int) -> int:
        if how == "fail" or (how == "again" and not retries):
            raise _fault(number)
        return number

    machine.trace.append(f"step {await machine.ctx.step(f's{code}', effect, code)}")


async def _group(machine: Machine, codes: list[int]) -> None:
    """Steps beside each other; the first that fails cancels those that hang."""

    async def effect(number: int) -> None:
        if number % 2:
            raise _fault(number)
        await asyncio.Event().wait()

    try:
        async with asyncio.TaskGroup() as group:
            for code in [*codes, 1]:
                group.create_task(machine.ctx.step("grouped", effect, code))
    except* Exception as faults:
        machine.trace.append(f"group {sorted(map(_told, faults.exceptions))}")


async def _sleep(machine: Machine, hours: int) -> None:
    await machine.ctx.sleep(f"{hours}h")
    machine.trace.append(f"slept {hours}")


async def _wait(machine: Machine, name: str) -> None:
    signal = await machine.ctx.wait_for(name, timeout="10h")
    machine.trace.append(f"waited {signal.payload if signal else None}")


async def _spend(machine: Machine, coins: int, budget: str) -> None:
    await machine.ctx.spend(budget, coins=coins)
    machine.trace.append(f"spent {coins}")


async def _reserve(machine: Machine, coins: int, budget: str, body: Program) -> None:
    async with machine.ctx.reserve(budget, coins=coins) as hold:
        await machine.run(body)
        await hold.commit(coins=coins - 1)
    machine.trace.append(f"committed {coins}")


async def _call(machine: Machine, body: Program) -> None:
    machine.trace += await machine.ctx.call(machine.task, body)


async def _limited(machine: Machine, body: Program) -> None:
    try:
        machine.trace += await machine.ctx.call(machine.task, body, timeout=_LIMIT)
    except CallTimeout:
        machine.trace.append("took too long")


async def _gather(machine: Machine, bodies: list[Program]) -> None:
    for found in await machine.ctx.gather(*(machine.task.bind(body) for body in bodies)):
        machine.trace += found


async def _start(machine: Machine, body: Program) -> None:
    """A child that waits for nobody: it ends with its parent, or lives on."""
    await machine.ctx.submit(machine.task, [*body, ["idle"]])


async def _idle(machine: Machine) -> None:
    await machine.ctx.wait_for(_NEVER)


async def _loop(machine: Machine, times: int, body: Program) -> None:
    for _ in range(times):
        await machine.run(body)


async def _try(machine: Machine, body: Program, kind: str, handler: Program) -> None:
    try:
        await machine.run(body)
    except _KINDS[kind] as fault:
        machine.trace.append(f"caught {_told(fault)}")
        machine.caught.append(fault)
        try:
            await machine.run(handler)
        finally:
            machine.caught.pop()


async def _finally(machine: Machine, body: Program, last: Program) -> None:
    try:
        await machine.run(body)
    finally:
        await machine.run(last)


async def _raise(machine: Machine, how: str) -> None:
    fault = machine.caught[-1] if machine.caught else RuntimeError("nothing caught")
    if how == "again":
        raise fault
    if how == "from":
        raise RuntimeError("on top") from fault
    raise ExceptionGroup("several", [ValueError("one"), fault])


_KINDS: Final[dict[str, tuple[type[Exception], ...]]] = {
    "all": (Exception,),
    "value": (ValueError, ExecutionFailed),
    "budget": (BudgetExceeded, LookupError),
}

STATEMENTS: Final[dict[str, Callable[..., Awaitable[None]]]] = {
    "step": _step,
    "group": _group,
    "sleep": _sleep,
    "wait": _wait,
    "spend": _spend,
    "reserve": _reserve,
    "call": _call,
    "limited": _limited,
    "gather": _gather,
    "start": _start,
    "idle": _idle,
    "loop": _loop,
    "try": _try,
    "finally": _finally,
    "raise": _raise,
}


def _told(fault: BaseException) -> str:
    """What a program may rely on: what it catches is caught by these bases each time."""
    if isinstance(fault, BaseExceptionGroup):
        return f"group {sorted(map(_told, fault.exceptions))}"
    if isinstance(fault, FlowFabricError):
        return type(fault).__name__
    return f"{type(fault).__name__} {fault}"


# ---- strategies

_CODES: Final = st.integers(0, 5)
_HOURS: Final = st.integers(1, 3)


def _leaves() -> st.SearchStrategy[Statement]:
    return st.one_of(
        st.builds(_list, st.just("step"), _CODES, st.sampled_from(["ok", "ok", "fail", "again"])),
        st.builds(_list, st.just("group"), st.lists(_CODES, max_size=2)),
        st.builds(_list, st.just("sleep"), _HOURS),
        st.builds(_list, st.just("wait"), st.sampled_from([ANSWERED, _NEVER])),
        st.builds(_list, st.just("spend"), st.just(3), st.just(_PURSE)),
        st.builds(_list, st.just("spend"), st.just(11), st.just(_EMPTY)),
        st.builds(_list, st.just("raise"), st.sampled_from(["again", "from", "group"])),
    )


def _list(*parts: Any) -> Statement:
    return list(parts)


def _nested(inner: st.SearchStrategy[Program], depth: int) -> list[st.SearchStrategy[Statement]]:
    found = [
        st.builds(_list, st.just("loop"), st.integers(1, 2), inner),
        st.builds(_list, st.just("try"), inner, st.sampled_from(sorted(_KINDS)), inner),
        st.builds(_list, st.just("finally"), inner, inner),
        st.builds(_list, st.just("reserve"), st.just(7), st.just(_PURSE), inner),
        st.builds(_list, st.just("reserve"), st.just(12), st.just(_EMPTY), inner),
        st.builds(_list, st.just("call"), inner),
        st.builds(_list, st.just("gather"), st.lists(inner, min_size=1, max_size=2)),
        st.builds(_list, st.just("start"), st.just([]) | st.just([["start", []]])),
    ]
    if depth == _DEPTH:
        # Within one another, time limits might end together.
        found.append(st.builds(_list, st.just("limited"), inner))
    return found


def _body(depth: int) -> st.SearchStrategy[Program]:
    if not depth:
        return st.lists(_leaves(), max_size=2)
    inner = _body(depth - 1)
    return st.lists(st.one_of(_leaves(), *_nested(inner, depth)), max_size=3)


def programs() -> st.SearchStrategy[Program]:
    return _body(_DEPTH)


Disturbances = list[tuple[str, int]]


def disturbances() -> st.SearchStrategy[Disturbances]:
    one = st.tuples(st.sampled_from(sorted(_DISTURBING)), st.integers(1, 25))
    return st.lists(one, min_size=1, max_size=3)


# ---- what disturbs them


class _Later(Crash):
    """Something that happens to the worker while the handler goes on."""

    def __init__(self, kit: Kit, place: int, background: set[asyncio.Task[Any]]) -> None:
        super().__init__(kit, place)
        self._background = background

    def happen(self, attempt_id: str) -> bool:
        self._background.add(asyncio.ensure_future(self._disturb(attempt_id)))
        return False

    async def _disturb(self, attempt_id: str) -> None:
        raise NotImplementedError


class _Restart(_Later):
    """The workers are stopped, which hands back what they hold, and started again."""

    async def _disturb(self, attempt_id: str) -> None:
        await self._kit.restart_workers()


class _Taken(_Later):
    """The lease is taken from a handler that does not notice at once."""

    async def _disturb(self, attempt_id: str) -> None:
        with suppress(FlowFabricError):
            # The handler may have ended meanwhile.
            await self._kit.admin.revoke_lease(self._executions[attempt_id])


def _crash(kit: Kit, place: int, background: set[asyncio.Task[Any]]) -> Crash:
    return Crash(kit, place)


_DISTURBING: Final[dict[str, Callable[[Kit, int, set[asyncio.Task[Any]]], Crash]]] = {
    "crash": _crash,
    "restart": _Restart,
    "taken": _Taken,
}


def disturbing(kit: Kit, wanted: Disturbances, background: set[asyncio.Task[Any]]) -> list[Crash]:
    return [_DISTURBING[kind](kit, place, background) for kind, place in wanted]


async def furnish(kit: Kit) -> None:
    """What programs use."""
    await kit.budget(_PURSE, hard={"coins": 10**9})
    await kit.budget(_EMPTY, hard={"coins": 10})
    kit.always_answer(ANSWERED, "went")
    # Whoever waits is answered before time passes.
    kit.clock.drive(kit.engine, kit.answer_all)
