"""How large a body may be: the limit itself passes, one byte more does not, however it is sent."""

from collections.abc import AsyncIterator

import pytest

from flowfabric.config import Settings
from flowfabric.server.route import Route
from flowfabric.server.routes import ROUTES
from tests.server.driving import Served
from tests.server.samples import path_of
from tests.server.stores import in_memory

KIB = 1024
LARGE = {"/v1/executions": 1024 * KIB}
MEDIUM = {
    "/v1/executions/{execution_id}/signal": 256 * KIB,
    "/v1/executions/{execution_id}/signals/{name}": 256 * KIB,
    "/v1/executions/{execution_id}/waitpoints/{waitpoint_id}/approve": 256 * KIB,
}
BATCHED = (
    "/v1/executions:batch",
    "/v1/flows:submit",
    "/v1/worker/finish",
    "/v1/worker/frames",
    "/v1/worker/journal",
    "/v1/worker/suspend",
    "/v1/worker/tasks",
)
BATCH = dict.fromkeys(BATCHED, 8192 * KIB)
AGREED = {**LARGE, **MEDIUM, **BATCH}
WRITING = [route for route in ROUTES if route.method in ("POST", "PUT", "PATCH", "DELETE")]
JSON = {"content-type": "application/json"}


@pytest.fixture
def settings() -> Settings:
    return in_memory()


def _label(route: Route) -> str:
    return f"{route.method} {route.path}"


@pytest.mark.parametrize("route", WRITING, ids=_label)
def test_the_declared_limit_is_the_agreed_one(route: Route) -> None:
    assert route.limit == AGREED.get(route.path, 64 * KIB)


async def _chunks(size: int) -> AsyncIterator[bytes]:
    step = 48 * KIB
    for sent in range(0, size, step):
        yield b" " * min(step, size - sent)


@pytest.mark.parametrize("route", WRITING, ids=_label)
async def test_one_byte_over_the_limit_is_refused(route: Route, served: Served) -> None:
    line = f"{route.method} {path_of(route)}"
    for size, is_over in ((route.limit, False), (route.limit + 1, True)):
        for content in (b" " * size, _chunks(size)):
            answer = await served.call(line, content=content, headers=JSON)
            assert (answer.status_code == 413) == is_over, (size, answer.text)
            if is_over:
                assert answer.json() == {
                    "error": "payload_too_large",
                    "kind": "payload_too_large",
                    "retryable": False,
                    "limit_bytes": route.limit,
                    "route": route.path,
                }
