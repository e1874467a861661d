"""What every declared route does alike: when it is full, slow, broken or about to stop."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from flowfabric.config import Settings
from flowfabric.errors import (
    Corruption,
    FlowFabricError,
    ResourceExhausted,
    StoreTimeout,
    TransportFault,
    Unavailable,
)
from flowfabric.server import Http
from flowfabric.server.replies import Reply
from flowfabric.server.route import Route
from flowfabric.server.routes import ROUTES, service
from tests.server.conftest import BASE
from tests.server.driving import Served
from tests.server.samples import path_of
from tests.server.stores import in_memory

GUARDED = [route for route in ROUTES if route.scopes is not None]


@pytest.fixture
def settings() -> Settings:
    return in_memory()


def _label(route: Route) -> str:
    return f"{route.method} {route.path}"


@pytest.mark.parametrize("route", GUARDED, ids=_label)
async def test_a_parameter_nobody_knows_is_named(route: Route, served: Served) -> None:
    path = path_of(route)
    mark = "&" if "?" in path else "?"
    body: dict[str, str] | None = {} if route.may_omit_body else None
    answer = await served.call(f"{route.method} {path}{mark}unheard=of", body)
    assert (answer.status_code, answer.json()["kind"]) == (400, "invalid_input"), answer.text
    assert "unheard" in answer.json()["error"]


@pytest.mark.parametrize("route", ROUTES, ids=_label)
async def test_another_host_s_name_is_refused(route: Route, served: Served) -> None:
    headers = {"host": "evil.example"}
    answer = await served.call(f"{route.method} {path_of(route)}", headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (403, "forbidden: host")


async def test_a_store_that_does_not_answer_in_time_is_not_healthy(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(service, "_PING_S", 0.01)
    monkeypatch.setattr(served.application.services.engine.deps.store.backend, "ping", hang)
    health = await served.call("GET /healthz")
    assert (health.status_code, health.json()["kind"]) == (503, "timeout")
    assert (await served.call("GET /readyz")).json()["failing"] == ["store"]


@asynccontextmanager
async def handled(
    served: Served, route: Route, fault: Exception | None
) -> AsyncIterator[httpx.Response]:
    """The route's answer when its handler raises this, or never comes back."""

    async def handler(_: Any) -> Reply:
        if fault is not None:
            raise fault
        await asyncio.Event().wait()
        raise AssertionError

    broken = msgspec.structs.replace(route, handler=handler, timeout_s=0.01, body=None)
    services = served.application.services
    transport = httpx.ASGITransport(Http(services, [broken]))
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        own = Served(served.application, client)
        yield await own.call(f"{route.method} {path_of(route)}")


@pytest.mark.parametrize("route", GUARDED, ids=_label)
async def test_a_store_without_room_is_429_with_when_to_come_back(
    route: Route, served: Served
) -> None:
    full = ResourceExhausted("disk: no room", resource="disk", retry_after_ms=1_500)
    async with handled(served, route, full) as answer:
        assert (answer.status_code, answer.json()["kind"]) == (429, "resource_exhausted")
        assert answer.headers["retry-after"] == "2"
        assert answer.json()["retryable"] is True


@pytest.mark.parametrize("route", GUARDED, ids=_label)
async def test_a_server_that_cannot_now_is_503(route: Route, served: Served) -> None:
    async with handled(served, route, Unavailable("stopping")) as answer:
        assert (answer.status_code, answer.json()["kind"]) == (503, "unavailable")


@pytest.mark.parametrize("route", GUARDED, ids=_label)
async def test_a_handler_that_takes_too_long_is_504_and_not_to_be_repeated(
    route: Route, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with handled(served, route, None) as answer:
        assert (answer.status_code, answer.json()["kind"]) == (504, "timeout")
        assert answer.json()["retryable"] is False


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (TransportFault("connection lost"), (503, "transport")),
        (RuntimeError("secret inside"), (500, "bug")),
    ],
)
async def test_faults_are_told_without_their_insides(
    fault: Exception,
    expected: tuple[int, str],
    served: Served,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    for route in GUARDED:
        async with handled(served, route, fault) as answer:
            assert (answer.status_code, answer.json()["kind"]) == expected, _label(route)
            assert "secret" not in answer.text
            if isinstance(fault, FlowFabricError):
                assert answer.json()["retryable"] is fault.retryable


async def test_what_begins_during_a_drain_is_503_but_for_what_workers_hand_in(
    served: Served,
) -> None:
    served.application.services.drain.begin()
    for route in ROUTES:
        answer = await served.call(f"{route.method} {path_of(route)}")
        assert answer.headers["connection"] == "close"
        if route.path.startswith("/v1/worker/") and "claim" not in route.path:
            assert answer.status_code == 415, route.name
        elif route.scopes is not None and route.path.startswith("/v1/"):
            assert (answer.status_code, answer.json()["kind"]) == (503, "unavailable"), route.name
            assert answer.json()["error"] == f"backend op unavailable: {route.name}"
    assert (await served.call("GET /readyz")).json()["failing"] == ["draining"]
    assert (await served.call("GET /healthz")).status_code == 200
    assert (await served.call("GET /metrics")).status_code == 200


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (TransportFault("valkey 10.0.0.5:6379 closed the connection", context="claim"), 503),
        (StoreTimeout("postgres db.internal: no answer"), 503),
        (Corruption("/var/lib/flowfabric.db: malformed; restore a backup"), 500),
        (ResourceExhausted("disk: no room to write /var/lib/x.db", resource="disk"), 429),
    ],
)
async def test_a_fault_of_the_store_names_no_host_and_no_file(
    fault: FlowFabricError, status: int, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    (route,) = (one for one in ROUTES if one.name == "describe_execution")
    async with handled(served, route, fault) as answer:
        assert answer.status_code == status
        assert answer.json()["kind"] == fault.code
        for word in ("10.0.0.5", "db.internal", "/var/lib"):
            assert word not in answer.text
    # The operator finds it in the log.
    assert fault.detail in caplog.text
