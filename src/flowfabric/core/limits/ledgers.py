"""Ledgers: what one execution spent of a budget, so that exactly this can be taken back.

Each level of a tree resets in its own rhythm, so the ledger keeps a share per level, stamped with
the level's reset count: a share from before a reset is worth nothing any more.
"""

import msgspec

from flowfabric.core.limits.budgets import Amounts, Budget, Chain, minus, plus

_replace = msgspec.structs.replace


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What was spent at one level since its last reset."""

    budget_id: str
    reset_count: int
    amounts: dict[str, int]


class Ledger(msgspec.Struct, frozen=True, array_like=True):
    shares: tuple[Share, ...] = ()


def entered(ledger: Ledger | None, chain: Chain, amounts: Amounts) -> Ledger:
    """The ledger with what was just spent at every level of the chain."""
    known = {share.budget_id: share for share in ledger.shares} if ledger else {}
    return Ledger(tuple(_share(known.get(level.budget_id), level, amounts) for level in chain))


def _share(known: Share | None, level: Budget, amounts: Amounts) -> Share:
    is_current = known is not None and known.reset_count == level.reset_count
    before = known.amounts if known is not None and is_current else {}
    return Share(level.budget_id, level.reset_count, plus(before, amounts))


def taken_back(chain: Chain, ledger: Ledger, now: int) -> Chain:
    """The levels of the chain whose usage falls when the ledger is dropped."""
    shares = {share.budget_id: share for share in ledger.shares}
    lowered: list[Budget] = []
    for level in chain:
        share = shares.get(level.budget_id)
        if share is not None and share.reset_count == level.reset_count:
            used = minus(level.used, share.amounts)
            lowered.append(_replace(level, used=used, last_updated_at=now))
    return tuple(lowered)
