"""What spans say of a claimed attempt, and the span of a step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flowfabric.operations.workers import Claim
from flowfabric.worker.session import Session


def claim_attributes(claim: Claim) -> dict[str, Any]:
    about = {
        "execution_id": claim.execution_id,
        "execution_kind": claim.execution_kind,
        "lane_id": claim.lane_id,
        "attempt_id": claim.attempt_id,
        "attempt_index": claim.attempt_index,
        "lease_epoch": claim.lease_epoch,
    }
    return about | {"flow_id": claim.flow_id} if claim.flow_id else about


@contextmanager
def step_span(session: Session, name: str, seq: int) -> Iterator[None]:
    """Around one step that runs, all its tries included; one that is replayed has none."""
    if not session.traces.is_on:
        yield
        return
    about = claim_attributes(session.claim) | {"step": name, "seq": seq}
    with session.traces.span("ff.step", None, about):
        yield
