"""Mechanism `verify`: everything derived is computed once more and compared with what is stored.

It reads and reports, and must find nothing after any test, crash or restart.
"""

from itertools import chain

from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.verification.graph import check_graph
from flowfabric.backend.reference.verification.limits import check_limits
from flowfabric.backend.reference.verification.records import check_records, check_rows, check_views
from flowfabric.backend.types import Discrepancy

__all__ = ["verify"]


def verify(tx: Transaction) -> list[Discrepancy]:
    return list(
        chain(check_records(tx), check_views(tx), check_graph(tx), check_rows(tx), check_limits(tx))
    )
