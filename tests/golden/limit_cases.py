"""Vectors about budgets and gates."""

from typing import Any, Final

import msgspec

from flowfabric.backend.valkey.limit_packing import budget_of, budget_row, fault_of, quota_row
from flowfabric.core.limits import budgets, gates
from flowfabric.errors import FlowFabricError
from tests.golden.case import FEW, MANY, SOME, Case, Counted, read_log
from tests.golden.inputs import NOW, Inputs

_replace = msgspec.structs.replace


# ---- budgets

_BUDGET_TAG: Final = "{b:1}"


def _chain_given(chain: budgets.Chain, *more: Any) -> list[Any]:
    packed = [part for level in chain for part in (level.budget_id, budget_row(level))]
    return [_BUDGET_TAG, packed, *more]


def _read_chain(answer: Any) -> budgets.Chain:
    return tuple(budget_of(*pair) for pair in zip(answer[::2], answer[1::2], strict=True))


def _flat(amounts: budgets.Amounts) -> list[Any]:
    return [part for name in sorted(amounts) for part in (name, amounts[name])]


def _values(one: msgspec.Struct | None) -> Any:
    return list(msgspec.structs.astuple(one)) if one is not None else False


def _refusal(draw: Inputs) -> Case:
    chain, amounts, held = draw.chain(), draw.amounts(), draw.one(({}, {"a": 2}, {"a": 4, "b": 1}))
    return Case(
        "refusal",
        _chain_given(chain, _flat(amounts), held),
        lambda: _values(budgets.refusal(chain, amounts, held)),
        lambda answer: answer and answer[1:],
    )


def _breached(draw: Inputs) -> Case:
    chain = draw.chain()[:1]
    hard = budgets.Hard(chain[0].budget_id, "b", 1, 2)
    return Case(
        "breached",
        _chain_given(chain, "b"),
        lambda: (budgets.breached(chain, hard, NOW),),
        _read_chain,
    )


def _plus(draw: Inputs) -> Case:
    chain, amounts = draw.chain(), draw.amounts()
    if draw.chance(0.2):
        # Up to the largest number that is exact, and past it.
        amounts = {"a": 2**53 - 1 - chain[0].used.get("a", 0) + draw.one((-1, 0, 1))}

    def expect() -> Any:
        try:
            for level in chain:
                budgets.plus(level.used, amounts)
        except FlowFabricError as fault:
            return fault.detail
        return False

    def read(answer: Any) -> Any:
        fault = fault_of(answer, amounts) if answer else None
        return fault.detail if fault else False

    return Case("plus", _chain_given(chain, _flat(amounts)), expect, read)


def _closed(draw: Inputs) -> Case:
    chain = draw.chain()
    return Case(
        "closed",
        _chain_given(chain),
        lambda: _values(budgets.closed(chain)),
        lambda answer: answer and answer[1:],
    )


def _check_dimensions(draw: Inputs) -> Case:
    chain, amounts = draw.chain(), draw.amounts()

    def expect() -> Any:
        try:
            budgets.check_dimensions(chain[0], amounts)
        except FlowFabricError as fault:
            return fault.detail
        return False

    def read(answer: Any) -> Any:
        fault = fault_of(answer) if answer else None
        return fault.detail if fault else False

    return Case("check_dimensions", _chain_given(chain, _flat(amounts)), expect, read)


def _free(draw: Inputs) -> Case:
    chain, amounts = draw.chain(), draw.amounts()
    given = _chain_given(chain, amounts)
    return Case("free", given, lambda: budgets.free(chain, amounts, NOW), _read_chain)


def _soft(told: Any) -> budgets.Soft:
    budget_id, dimension, used, limit, action = told
    return budgets.Soft(budget_id, dimension, used, limit, warns=action == "warn")


def _spend(draw: Inputs) -> Case:
    chain = draw.chain()
    amounts = {name: amount for name, amount in draw.amounts().items() if amount < 10}
    ledger = draw.ledger(chain) if draw.chance(0.6) else None
    packed = [list(msgspec.structs.astuple(share)) for share in ledger.shares] if ledger else False

    def expect() -> tuple[Any, ...]:
        spent = budgets.spend(chain, amounts, NOW)
        shares = budgets.entered(ledger, chain, amounts).shares
        warned = [soft.budget_id for soft in spent.softs if soft.warns]
        return spent.chain, spent.softs, shares, warned

    def read(answer: Any) -> tuple[Any, ...]:
        levels, softs, shares, groups = answer
        read_softs = tuple(map(_soft, softs))
        read_shares = tuple(budgets.Share(one[0], one[1], one[2] or {}) for one in shares)
        warned = [entry.details["budget_id"] for entry in read_log(groups)]
        return _read_chain(levels), read_softs, read_shares, warned

    return Case("spend", _chain_given(chain, _flat(amounts), "worker", packed), expect, read)


def _taken_back(draw: Inputs) -> Case:
    chain = draw.chain()
    ledger = draw.ledger(chain)
    packed = [list(msgspec.structs.astuple(share)) for share in ledger.shares]

    def expect() -> budgets.Chain:
        lowered = {level.budget_id: level for level in budgets.taken_back(chain, ledger, NOW)}
        return tuple(lowered.get(level.budget_id, level) for level in chain)

    return Case("taken_back", _chain_given(chain, "worker", packed), expect, _read_chain)


def _reset(draw: Inputs) -> Case:
    chain, only_if_due = draw.chain()[:1], draw.chance(0.6)
    chain = (_replace(chain[0], ancestors=()),)

    def expect() -> tuple[Any, ...]:
        once = budgets.reset_if_due if only_if_due else budgets.reset
        after = once(chain[0], NOW)
        return (after or chain[0],), after is not None

    return Case(
        "reset",
        _chain_given(chain, only_if_due),
        expect,
        lambda answer: (_read_chain(answer[0]), answer[1]),
    )


def _hold(draw: Inputs) -> Case:
    chain = tuple(_replace(level, hard_limits={"a": 0, "b": 0, "ü": 0}) for level in draw.chain())
    amounts = {name: amount for name, amount in draw.amounts().items() if amount < 10}
    aside = {name: amount for name, amount in amounts.items() if amount}

    def expect() -> tuple[Any, ...]:
        *levels, top = budgets.set_aside(chain, aside, NOW)
        return (*levels, _replace(top, reservations_end_at=NOW + 1_000)), "reserved"

    return Case(
        "set_aside",
        _chain_given(chain, _flat(amounts), "hold-1"),
        expect,
        lambda answer: (_read_chain(answer[0]), answer[1]),
    )


def _fits(draw: Inputs) -> Case:
    quota, waiter = draw.quota(), draw.waiter()
    slots, entries = draw.one((0, 1, 2, 3)), draw.one((0, 1, 2, 3))
    packed = [waiter.rank, waiter.until, int(waiter.needs_entry), waiter.cap, waiter.grant_id]
    return Case(
        "_fits",
        [quota_row(quota) if quota else False, packed, slots, entries],
        lambda: gates._fits(quota, waiter, slots, entries),
    )


_QUOTA_TAG: Final = "{q:1}"
_GATE: Final = "q:gate"


def _enter(draw: Inputs) -> Case:
    quota = draw.quota()
    rows = {
        f"e{number}": (draw.one((0, NOW + 500, NOW + 9_000)), draw.one((0, NOW - 300, NOW - 1_000)))
        for number in range(draw.one((0, 1, 2, 4)))
    }
    if quota is None:
        rows = {name: (slot, 0) for name, (slot, _) in rows.items()}
    slots = sum(slot > 0 for slot, _ in rows.values())
    instants = [entry for _, entry in rows.values() if entry]
    own = draw.one(("e0", "new"))
    slot_end, entry_at = rows.get(own, (0, 0))
    most = quota.max_requests_per_window if quota else 0
    rate = most > 0 and draw.chance(0.8)
    cap = draw.one((0, 1, 2, 5))
    request = gates.EntryRequest("holder", draw.one((1, 700, 20_000)), cap, rate=rate)
    view = gates.GateView(
        gate=gates.Gate(quota=quota, slots=slots, entries=len(instants)),
        slot=gates.Slot("holder", slot_end) if slot_end else None,
        entry=gates.Entry(entry_at, "holder") if entry_at else None,
        oldest_at=min(instants) if 0 < most <= len(instants) else 0,
    )

    def expect() -> list[Any]:
        match gates.enter(view, request, NOW):
            case gates.TooFast(wait):
                return ["rate", wait]
            case gates.Full(full):
                return ["full", full]
            case gates.Entered(gate, slot, _, new_slot, new_entry):
                until = slot.until if slot and cap else 0
                return ["passed", until, new_slot, new_entry, gate.ends_at]

    def read(answer: Any) -> list[Any]:
        match answer:
            case ["rate", _, _, _, wait, _]:
                return ["rate", wait]
            case ["full", _, full]:
                return ["full", full]
            case _:
                return list(answer)

    packed = [part for name, (slot, entry) in rows.items() for part in (name, slot, entry)]
    row = quota_row(quota) if quota else False
    given = [_QUOTA_TAG, _GATE, row, slots, len(instants), packed, own, "holder", request.hold_ms]
    return Case("enter", [*given, cap, most if rate else 0], expect, read)


def _choose(draw: Inputs) -> Case:
    quota = draw.quota()
    gate = gates.Gate(quota=quota, slots=draw.one((0, 1, 2)), entries=draw.one((0, 1, 2)))
    if quota is None:
        gate = _replace(gate, entries=0)
    waiting = [(f"e{number}", draw.waiter(number)) for number in range(draw.one((0, 2, 4)))]

    def expect() -> list[list[str]]:
        fitting, gone = gates.choose(gate, waiting, NOW)
        off = {*(name for name, _ in fitting), *gone}
        told = [part for name, waiter in fitting for part in (name, waiter.grant_id)]
        return [told, [name for name, _ in waiting if name not in off]]

    packed = [
        part
        for name, one in waiting
        for part in (name, [one.rank, one.until, int(one.needs_entry), one.cap, one.grant_id])
    ]
    row = quota_row(quota) if quota else False
    return Case("choose", [_QUOTA_TAG, _GATE, row, gate.slots, gate.entries, packed], expect)


def _listed_until(draw: Inputs) -> Case:
    look_ms = draw.one((0, 1, 2, 700))
    given = [_QUOTA_TAG, _GATE, look_ms]
    return Case("listed_until", given, lambda: gates.listed_until(look_ms, NOW))


MAKES: Final[tuple[Counted, ...]] = (
    (_refusal, MANY),
    (_breached, FEW),
    (_plus, MANY),
    (_closed, SOME),
    (_check_dimensions, FEW),
    (_free, FEW),
    (_spend, SOME),
    (_taken_back, SOME),
    (_reset, SOME),
    (_hold, FEW),
    (_fits, SOME),
    (_enter, MANY),
    (_choose, SOME),
    (_listed_until, FEW),
)
