"""What no rendering shows."""

import msgspec
import pytest

from flowfabric.backend.types import ConfigDocument, ConfigPut
from flowfabric.core.documents import Document, Redacted
from flowfabric.core.handles import Handle
from flowfabric.core.plan import Guard, Plan
from flowfabric.core.suspend_outcomes import given_up
from flowfabric.core.suspensions import ReceivedSignal, Signal
from flowfabric.core.tokens import Key
from tests.unit.core.records import EXECUTION

SECRET = "bearer-of-bad-news"
RAW = SECRET.encode()
HANDLE = Handle(
    execution_id=EXECUTION,
    attempt_index=0,
    attempt_id="attempt",
    lease_id=SECRET,
    lease_epoch=1,
    lease_ttl_ms=2,
    lane_id="lane",
    worker_instance_id="worker",
    backend="memory",
)
SIGNAL = {
    "signal_id": "s",
    "signal_name": "n",
    "signal_category": "c",
    "source_type": "t",
    "source_identity": "i",
    "correlation_id": "",
    "accepted_at": 1,
    "payload": RAW,
}
KEEPERS: list[Redacted] = [
    Document(RAW, 1, 2),
    ConfigDocument("keys", 1, RAW),
    ConfigPut("keys", 1, RAW),
    Key(SECRET),
    HANDLE,
    given_up(HANDLE),
    Signal(waitpoint_id="w", **SIGNAL),  # type: ignore[arg-type]
    ReceivedSignal(**SIGNAL),  # type: ignore[arg-type]
    Plan(rule="note", target=EXECUTION, guard=Guard(frozenset({"active"})), documents={"d": RAW}),
]


@pytest.mark.parametrize("keeper", KEEPERS, ids=lambda one: type(one).__name__)
def test_no_rendering_shows_what_is_hidden(keeper: Redacted) -> None:
    assert SECRET in str(msgspec.structs.astuple(keeper))
    for text in (repr(keeper), str(keeper), f"{keeper}", repr(keeper.__rich_repr__())):
        assert SECRET not in text
    assert repr(keeper).startswith(f"{type(keeper).__name__}(")


def test_the_rest_is_shown() -> None:
    assert repr(Document(RAW, 1, 2)) == "Document(body='<REDACTED>', first_at=1, last_at=2)"
