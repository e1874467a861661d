"""What a claim looks at: the heads of the queues its worker can serve, and nothing else."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from flowfabric.app import backend_of
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.record import Record
from flowfabric.engine import engine_on
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.conformance.limiting import flood

CROWD = 3_000
GPU = {"routing_requirements": {"required_capabilities": ["gpu"]}}


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The records that were read from views."""
    seen: list[Record] = []
    notice = Transaction.notice

    def noting(tx: Transaction, records: Iterable[Record]) -> None:
        listed = list(records)
        seen.extend(listed)
        notice(tx, listed)

    monkeypatch.setattr(Transaction, "notice", noting)
    return seen


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
async def test_a_crowd_of_others_is_not_looked_at(
    scheme: str, tmp_path: Path, looked_at: list[Record]
) -> None:
    path = str(tmp_path / "crowd.db") if scheme == "sqlite" else ""
    backend = backend_of(Settings(store=StoreUrl(scheme, path)), None)
    await backend.prepare()
    engine = engine_on(backend)
    await flood(engine, CROWD)
    for _ in range(3):
        await engine.executions.create(Submission(kind="work", policy=GPU))
    order = ClaimOrder(
        worker_id="w", worker_instance_id="w-1", lanes=("default",), capabilities=("gpu",), n=2
    )
    looks = []
    for taken in (2, 1, 0):
        looked_at.clear()
        assert len(await engine.claims.claim(order)) == taken
        looks.append(len(looked_at))
    # Whether anything is left is told without another record.
    assert looks == [2, 1, 0]
    await engine.close()
    await backend.close()
