"""Health, readiness, metrics and API documentation."""

import asyncio
from importlib.resources import files
from typing import Any, Final

from flowfabric.errors import FlowFabricError, NotFound, StoreTimeout
from flowfabric.operations.declaration import ANY, METRICS
from flowfabric.operations.types import Answer
from flowfabric.server.call import Call
from flowfabric.server.replies import JSON, NO_SNIFF, Reply, encode, ok, reply_of
from flowfabric.server.route import OPEN, Routes
from flowfabric.telemetry.metrics import CONTENT_TYPE

routes: Final = Routes()


class Status(Answer, frozen=True, kw_only=True):
    status: str


class Readiness(Answer, frozen=True, kw_only=True):
    status: str
    failing: list[str]


_PING_S: Final = 2.0
_METRICS_TYPE: Final = CONTENT_TYPE.decode()
_PAGE: Final = files("flowfabric.server").joinpath("docs.html").read_bytes()
_OWN_ONLY: Final = (
    b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    b" connect-src 'self'; frame-ancestors 'none'"
)
_PAGE_POLICY: Final = (b"content-security-policy", _OWN_ONLY)


@routes.add("GET /healthz", OPEN, {200: Status}, StoreTimeout)
async def healthz(call: Call[None, None]) -> Reply:
    """Whether the store answers."""
    fault = await _ping(call)
    if fault is None:
        return ok(Status(status="ok"))
    answer = reply_of(fault)
    return Reply(503, answer.body, answer.headers)


@routes.add("GET /readyz", OPEN, {200: Status, 503: Readiness})
async def readyz(call: Call[None, None]) -> Reply:
    """Whether requests should be sent here."""
    failing = ["draining"] if call.services.drain.has_begun else []
    if await _ping(call) is not None:
        failing.append("store")
    if failing:
        return Reply(503, encode(Readiness(status="not ready", failing=failing)), (JSON,))
    return ok(Status(status="ready"))


@routes.add("GET /metrics", METRICS, {200: _METRICS_TYPE}, NotFound)
async def metrics(call: Call[None, None]) -> Reply:
    """Metrics for Prometheus; with `FF_METRICS_OPEN` they need no token."""
    text = await call.services.exposition()
    if text is None:
        raise NotFound("metrics are disabled")
    return Reply(200, text, ((b"content-type", CONTENT_TYPE),))


@routes.add("GET /openapi.json", ANY, {200: dict[str, Any]})
async def openapi(call: Call[None, None]) -> Reply:
    """This interface as an OpenAPI document."""
    return Reply(200, call.services.openapi(), (JSON,))


@routes.add("GET /docs", ANY, {200: "text/html"})
async def docs(call: Call[None, None]) -> Reply:
    """This interface as a page that loads nothing from other servers."""
    headers = ((b"content-type", b"text/html; charset=utf-8"), NO_SNIFF, _PAGE_POLICY)
    return Reply(200, _PAGE, headers)


async def _ping(call: Call[None, None]) -> FlowFabricError | None:
    try:
        async with asyncio.timeout(_PING_S):
            await call.engine.deps.store.backend.ping()
    except TimeoutError:
        return StoreTimeout(f"no answer within {_PING_S:g} s", context="ping")
    except FlowFabricError as fault:
        return fault
    return None
