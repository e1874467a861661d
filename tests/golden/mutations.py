"""`make mutations`: whether the golden vectors notice every small change of what Lua mirrors.

Each function of `core` that a Lua file mirrors and each constant that it uses is changed in Python
alone, one at a time. Lua's answers are those of the unchanged library, so every change must show.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from flowfabric.backend.valkey import loading
from flowfabric.backend.valkey.library import constants, library
from flowfabric.backend.valkey.rendering import MODULES, Constant
from tests.golden.case import Case
from tests.golden.cases import cases
from tests.golden.constants import patched
from tests.golden.equivalents import unnoticeable
from tests.golden.mechanisms import Trace
from tests.golden.mirrors import find, mirrored
from tests.golden.mutants import changed, mutants, other_value
from tests.golden.scenarios import SCENARIOS, Scenario, trace_of
from tests.golden.server import probes

# Scenarios that are played on the server once more.
_LIVE: Final = ("a day", "notifications")
Check = Callable[[], bool]
# Far longer than any vector takes.
_LONGEST_S: Final = 4.0


class Proof(NamedTuple):
    """One vector: whether Python comes to what Lua came to, and which functions that takes."""

    name: str
    holds: Check
    calls: frozenset[CodeType]


class Result(NamedTuple):
    name: str
    noticed: int
    survivors: list[str]


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
    with _calls(found):
        is_sound = holds()
    if not is_sound:
        raise SystemExit(f"{name}: Lua and Python differ before anything was changed")
    return Proof(name, holds, frozenset(found))


def _case_holds(case: Case, told: Any) -> Check:
    return lambda: bool(case.expect() == told)


def _scenario_holds(name: int, told: Trace) -> Check:
    return lambda: asyncio.run(trace_of(SCENARIOS[name], "memory")) == told


def proofs() -> list[Proof]:
    every = [*cases()]
    answers = probes().ask([case.ask for case in every])
    found = [
        _proven(case.probe, _case_holds(case, case.read(answer)))
        for case, answer in zip(every, answers, strict=True)
    ]
    for place, scenario in enumerate(SCENARIOS):
        told = asyncio.run(trace_of(scenario, "valkey"))
        found.append(_proven(str(scenario), _scenario_holds(place, told)))
    return found


def _is_noticed(change: AbstractContextManager[None], some: list[Proof]) -> bool:
    with change:
        return not all(map(_stands, some))


def _stands(proof: Proof) -> bool:
    """What a changed function breaks, or lets run forever, is noticed."""
    signal.setitimer(signal.ITIMER_REAL, _LONGEST_S)
    try:
        return proof.holds()
    except Exception:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _give_up(*_: object) -> None:
    raise TimeoutError


def mutated_function(name: str, every: list[Proof]) -> Result:
    function: FunctionType = find(name)
    some = [proof for proof in every if function.__code__ in proof.calls]
    left, noticed, survivors = unnoticeable(name), 0, []
    for what, code in mutants(function):
        if _is_noticed(changed(function, code), some):
            noticed += 1
        elif left[what]:
            left[what] -= 1
        else:
            survivors.append(what)
    survivors += [f"{what} (listed as unnoticeable)" for what in left.elements()]
    return Result(name, noticed, survivors)


@contextmanager
def _in_client_alone(name: str, value: Constant) -> Iterator[None]:
    """A constant that the client has changed, while the server has the library as it was."""
    pinned, before = library(test_mode=True), vars(loading)["library"]
    vars(loading)["library"] = lambda *, test_mode: pinned
    try:
        with patched(name, value):
            yield
    finally:
        vars(loading)["library"] = before


def _live(scenario: Scenario) -> Proof:
    """The same scenario on the same server comes to the same again."""
    told = asyncio.run(trace_of(scenario, "valkey"))
    holds = lambda: asyncio.run(trace_of(scenario, "valkey")) == told  # noqa: E731
    return Proof(f"{scenario} again", holds, frozenset())


def mutated_constant(name: str, every: list[Proof]) -> Result:
    value = constants()[name]
    other = other_value(value)
    module = MODULES[name.partition(".")[0]].__name__
    if "valkey" in module:
        # Only the client and the functions know it.
        lively = [
            one for one in SCENARIOS if one.name in ("a day", "notifications") and not one.seed
        ]
        is_noticed = _is_noticed(_in_client_alone(name, other), [*map(_live, lively)])
    else:
        is_noticed = _is_noticed(patched(name, other), every)
    return Result(name, int(is_noticed), [] if is_noticed else [f"{value!r} -> {other!r}"])


def _shown(result: Result) -> Result:
    total = result.noticed + len(result.survivors)
    _say(f"{result.name:44} {result.noticed:3} of {total:3} noticed")
    for survivor in result.survivors:
        _say(f"    not noticed: {survivor}")
    return result


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    signal.signal(signal.SIGALRM, _give_up)
    every, chosen = proofs(), sys.argv[1:]

    def is_chosen(name: str) -> bool:
        return not chosen or any(name.startswith(one) for one in chosen)

    functions = [name for name in sorted(mirrored()) if is_chosen(name)]
    results = [_shown(mutated_function(name, every)) for name in functions]
    used = [name for name in sorted(constants()) if is_chosen(name)]
    results += [_shown(mutated_constant(name, every)) for name in used]
    survivors = sum(len(result.survivors) for result in results)
    _say(f"{sum(result.noticed for result in results)} changes noticed, {survivors} not")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
