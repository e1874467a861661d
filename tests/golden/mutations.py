"""`make mutations`: whether the golden vectors notice every small change of what Lua mirrors.

Each function of `core` that a Lua file mirrors and each constant that it uses is changed in Python
alone, one at a time. Lua's answers are those of the unchanged library, so every change must show. A
constant that makes no difference to the reference is changed in the library alone.
"""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from flowfabric.backend.valkey import functions
from flowfabric.backend.valkey.library import constants, library
from tests.golden.case import Case
from tests.golden.cases import cases
from tests.golden.constants import patched
from tests.golden.equivalents import UNNOTICEABLE_CONSTANTS, unnoticeable
from tests.golden.mechanisms import Trace
from tests.golden.mirrors import find, mirrored
from tests.golden.mutants import changed, mutants, other_value
from tests.golden.scenarios import SCENARIOS, Scenario, trace_of
from tests.golden.server import probes

_PROCESSES: Final = 2
# A changed function may run forever. The limit is processor time, which a busy machine does not use
# up, and many times what the vector takes unchanged; one that waits forever uses none.
_TIMES_LONGER: Final = 20
_LEAST_PROCESSOR_S: Final = 1.0
_LONGEST_WAIT_S: Final = 120.0
Check = Callable[[], bool]


class Proof(NamedTuple):
    """One vector: whether Python comes to what Lua came to, and which functions that takes."""

    name: str
    holds: Check
    calls: frozenset[CodeType]
    processor_s: float


class Result(NamedTuple):
    name: str
    noticed: int
    too_long: int
    equivalent: int
    survivors: list[str]


# For the processes that share the work; what scenarios came to on the server.
_PROOFS: Final[list[Proof]] = []
_TOLD: Final[list[tuple[Scenario, Trace]]] = []


class TooLongError(BaseException):
    """No `Exception`, so that nothing that is tested handles it."""


@contextmanager
def _calls(found: set[CodeType]) -> Iterator[None]:
    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            found.add(frame.f_code)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def _proven(name: str, holds: Check) -> Proof:
    found: set[CodeType] = set()
    start = time.process_time()
    with _calls(found):
        is_sound = holds()
    if not is_sound:
        raise SystemExit(f"{name}: Lua and Python differ before anything was changed")
    return Proof(name, holds, frozenset(found), time.process_time() - start)


def _case_holds(case: Case, told: Any) -> Check:
    return lambda: bool(case.expect() == told)


def _scenario_holds(scenario: Scenario, told: Trace, store: str = "memory") -> Check:
    return lambda: asyncio.run(trace_of(scenario, store)) == told


def proofs() -> list[Proof]:
    every = [*cases()]
    answers = probes().ask([case.ask for case in every])
    found = [
        _proven(case.probe, _case_holds(case, case.read(answer)))
        for case, answer in zip(every, answers, strict=True)
    ]
    for scenario in SCENARIOS:
        told = asyncio.run(trace_of(scenario, "valkey"))
        _TOLD.append((scenario, told))
        found.append(_proven(str(scenario), _scenario_holds(scenario, told)))
    return found


def _give_up(*_: object) -> None:
    raise TooLongError


@contextmanager
def _limited(proof: Proof) -> Iterator[None]:
    longest = max(_LEAST_PROCESSOR_S, _TIMES_LONGER * proof.processor_s)
    timers = ((signal.ITIMER_PROF, longest), (signal.ITIMER_REAL, _LONGEST_WAIT_S))
    for timer, seconds in timers:
        # Once more after that: the first may end a task that nobody waits for.
        signal.setitimer(timer, seconds, seconds)
    try:
        yield
    finally:
        for timer, _ in timers:
            signal.setitimer(timer, 0)


def _stands(proof: Proof) -> bool:
    try:
        with _limited(proof):
            return proof.holds()
    except Exception:
        return False


def _is_noticed(change: AbstractContextManager[None], some: list[Proof]) -> bool:
    """Whether a vector fails, which is asked first next time: it may notice similar changes."""
    with change:
        for place, proof in enumerate(some):
            if not _stands(proof):
                some.insert(0, some.pop(place))
                return True
    return False


def mutated_function(name: str, every: list[Proof]) -> Result:
    function: FunctionType = find(name)
    some = [proof for proof in every if function.__code__ in proof.calls]
    listed, noticed, too_long, survivors = unnoticeable(name), 0, 0, list[str]()
    left = listed.copy()
    for what, code in mutants(function):
        try:
            if _is_noticed(changed(function, code), some):
                noticed += 1
            elif left[what]:
                left[what] -= 1
            else:
                survivors.append(what)
        except TooLongError:
            too_long += 1
    survivors += [f"{what} (listed as unnoticeable)" for what in left.elements()]
    return Result(name, noticed, too_long, (listed - left).total(), survivors)


def mutated_constant(name: str, every: list[Proof]) -> Result:
    value = constants()[name]
    return _constant_result(name, patched(name, other_value(value)), every)


def _constant_result(name: str, change: AbstractContextManager[None], some: list[Proof]) -> Result:
    value = constants()[name]
    try:
        survivors = [] if _is_noticed(change, some) else [f"{value!r} -> {other_value(value)!r}"]
    except TooLongError:
        return Result(name, 0, 1, 0, [])
    return Result(name, 1 - len(survivors), 0, 0, survivors)


@contextmanager
def _in_library_alone(name: str) -> Iterator[None]:
    """Python keeps the value, which may be one that a scenario has set."""
    before = vars(functions)["library"]

    def changed_library(*, test_mode: bool) -> tuple[str, str]:
        with patched(name, other_value(constants()[name])):
            return library(test_mode=test_mode)

    vars(functions)["library"] = changed_library
    try:
        yield
    finally:
        vars(functions)["library"] = before


def _mutated_in_library(name: str) -> Result:
    """What Python alone does not use, or only under a value of its own, is changed in Lua."""
    live = [
        proof._replace(holds=_scenario_holds(scenario, told, "valkey"))
        for proof, (scenario, told) in zip(_PROOFS[-len(_TOLD) :], _TOLD, strict=True)
    ]
    return _constant_result(name, _in_library_alone(name), live)


def _shown(result: Result) -> Result:
    name, noticed, too_long, equivalent, survivors = result
    words = [f"{noticed:3} noticed"]
    words += [f"{too_long} too long"] if too_long else []
    words += [f"{equivalent} equivalent"] if equivalent else []
    words += [f"{len(survivors)} NOT NOTICED"] if survivors else []
    _say(f"{name:44} {', '.join(words)}")
    for survivor in survivors:
        _say(f"    not noticed: {survivor}")
    return result


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _mutated(name: str) -> Result:
    return (mutated_function if name in mirrored() else mutated_constant)(name, _PROOFS)


def _results(names: list[str]) -> Iterator[Result]:
    """There is one server, so this process alone uses it."""
    used = constants()
    with get_context("fork").Pool(_PROCESSES) as pool:
        for result in pool.imap(_mutated, names):
            is_open = result.name in used and result.survivors
            result = _mutated_in_library(result.name) if is_open else result
            yield _with_reason(result) if result.name in UNNOTICEABLE_CONSTANTS else result


def _with_reason(result: Result) -> Result:
    """Of a constant that is listed as unnoticeable."""
    if result.survivors:
        return result._replace(equivalent=1, survivors=[])
    return result._replace(survivors=["it is noticed (listed as unnoticeable)"])


def main() -> int:
    """Arguments are beginnings of names of functions or constants; without any all are changed."""
    chosen, functions, used = sys.argv[1:] or [""], sorted(mirrored()), sorted(constants())
    names = [name for name in functions + used if name.startswith(tuple(chosen))]
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _give_up)
    # Changed code fails again and again, and stores log each failure.
    logging.disable()
    start = time.monotonic()
    _PROOFS.extend(proofs())
    results = [_shown(result) for result in _results(names)]
    survivors = sum(len(result.survivors) for result in results)
    _say(
        f"{len({*functions} & {*names})} functions, {len({*used} & {*names})} constants: "
        f"{sum(result.noticed for result in results)} changes noticed, "
        f"{sum(result.too_long for result in results)} ran too long, "
        f"{sum(result.equivalent for result in results)} are equivalent, "
        f"{survivors} not noticed; {time.monotonic() - start:.0f} s"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
