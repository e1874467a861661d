"""Mechanism `apply`: plans, and plans with a claim behind them."""

from collections.abc import Callable, Sequence
from functools import partial

from flowfabric.backend.reference.claims import Queues, claim
from flowfabric.backend.reference.tables import RECORDS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import attempt
from flowfabric.backend.types import ClaimRequest, Finished
from flowfabric.core.apply import apply
from flowfabric.core.plan import Answer, Plan


def start_apply(tx: Transaction, plans: Sequence[Plan]) -> Callable[[Plan], Answer]:
    tx.fetch(RECORDS, [plan.target for plan in plans])
    return partial(apply, tx)


Finish = tuple[Sequence[Plan], ClaimRequest]


def start_finish(tx: Transaction, items: Sequence[Finish]) -> Callable[[Finish], Finished]:
    tx.fetch(RECORDS, [plan.target for plans, _ in items for plan in plans])

    def finish(item: Finish) -> Finished:
        plans, request = item
        answers = tuple(attempt(tx, "apply", partial(apply, tx, plan)) for plan in plans)
        tx.flush()
        return Finished(answers, claim(tx, Queues(tx, [request]), request))

    return finish
