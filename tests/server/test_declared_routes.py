"""Every route follows from a declaration, except those that cannot."""

from flowfabric.operations.nouns import DECLARED
from flowfabric.server.routes import ROUTES

# Server-Sent Events, raw bytes with headers, and what is about the service itself. Two more are
# declared and have a handler of their own: the feed of events, which is also served as Server-Sent
# Events, and the claim, which hands work back when its client has gone while it waited.
BY_HAND = {
    "GET /v1/executions/{execution_id}/attempts/{attempt_index}/stream/sse",
    "GET /v1/executions/{execution_id}/result",
    "GET /v1/executions/{execution_id}/input",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
    "GET /openapi.json",
    "GET /docs",
}
DECLARED_BY_HAND = {"GET /v1/events", "POST /v1/worker/claim"}


def test_only_these_routes_have_no_declaration() -> None:
    declared = {f"{one.method} {one.path}" for one in DECLARED}
    served = [f"{one.method} {one.path}" for one in ROUTES]
    assert len(served) == len(set(served))
    assert set(served) - declared == BY_HAND
    assert declared - set(served) == set()
    assert declared >= DECLARED_BY_HAND
    assert len(BY_HAND | DECLARED_BY_HAND) == 10
