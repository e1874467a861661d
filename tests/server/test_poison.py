"""Values that nobody can mean, in every place a request has for one: never a server error."""

import json
import logging
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pytest

from flowfabric.server.route import Route
from flowfabric.server.routes import ROUTES
from tests.server.driving import Served
from tests.server.poison import POISON, body_of, holes
from tests.server.samples import UUID, path_of, path_value, with_bodies
from tests.server.test_budgets import make

JSON = {"content-type": "application/json"}


def _label(route: Route) -> str:
    return f"{route.method} {route.path}"


async def _known(served: Served) -> dict[str, Any]:
    """Ids of things there are, and the fence of a lease that is held."""
    flow_id = str(uuid4())
    await served.done("POST /v1/flows", {"flow_id": flow_id, "flow_kind": "etl"})
    held = await served.held(flow_id=flow_id)
    schedule = {"kind": "x", "every_ms": 3_600_000}
    await served.done("PUT /v1/schedules/nightly", schedule)
    return {
        **held,
        "flow_id": flow_id,
        "budget_id": await make(served),
        "schedule_id": "nightly",
        "worker_id": "pool",
        "worker_instance_id": "pool-1",
    }


def _hole(_: object) -> str:
    return "HOLE"


@pytest.mark.parametrize("route", with_bodies(ROUTES), ids=_label)
async def test_no_value_anywhere_in_a_body_breaks_the_server(
    route: Route, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    known = await _known(served)
    line = f"{route.method} {path_of(route, **{name: str(one) for name, one in known.items()})}"
    for body in holes(body_of(route, known)):
        text = json.dumps(body, default=_hole)
        for bad in POISON:
            content = text.replace('"HOLE"', bad).encode("utf-8", "surrogatepass")
            answer = await served.call(line, content=content, headers=JSON)
            assert answer.status_code < 500, (content[:300], answer.text)


TRICKS = [
    "",
    "%00",
    "%ff",
    "%ED%A0%80",
    "%F0%9F%98%80",
    "%2e%2e%2f%2e%2e",
    "%",
    "%zz",
    "1" + "0" * 400,
    "-1",
    "9223372036854775808",
    "1e400",
    "x" * 5_000,
    "%7Bfp%3A65536%7D%3A" + UUID,
    "%7Bfp%3A-1%7D%3A" + UUID,
]


@pytest.mark.parametrize("route", ROUTES, ids=_label)
async def test_no_text_in_an_address_breaks_the_server(
    route: Route, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    body = b"{}" if route.body is not None else None
    plain = path_of(route).partition("?")[0]
    paths = [
        plain.replace(quote(path_value(name), safe=""), trick, 1)
        for name in route.readers
        for trick in TRICKS
    ]
    fields = msgspec.structs.fields(route.query) if route.query is not None else ()
    paths += [f"{plain}?{one.encode_name}={trick}" for one in fields for trick in TRICKS[1:]]
    for path in paths:
        answer = await served.call(f"{route.method} {path}", content=body, headers=JSON)
        assert answer.status_code < 500, (path[:200], answer.text)
