"""Which of the answers that routes document were seen in the tests.

Every answer a test gets is noted, in whichever process it runs. When all tests of the server were
run and passed, what is documented but was never seen fails the run: see `pytest_runtestloop` in
the outermost conftest.
"""

from collections.abc import Iterable, Iterator

import httpx
import msgspec

from flowfabric.errors import InvalidParameter
from flowfabric.server.openapi import faults_of
from flowfabric.server.route import Route, Router
from flowfabric.server.routes import ROUTES

# The name of a route, the status, and the kind of an error or "".
Seen = tuple[str, int, str]

seen: set[Seen] = set()
_router = Router(ROUTES)


def record(answer: httpx.Response) -> None:
    request = answer.request
    try:
        match = _router.find(request.method, request.url.raw_path.partition(b"?")[0])
    except InvalidParameter:
        return
    if match.route is not None:
        seen.add((match.route.name, answer.status_code, _kind(answer)))


def _kind(answer: httpx.Response) -> str:
    if answer.is_success or not answer.content:
        return ""
    told = msgspec.json.decode(answer.content)
    return str(told.get("kind", "")) if isinstance(told, dict) else ""


def documented() -> Iterator[Seen]:
    for route in ROUTES:
        yield from _answers(route)


def _answers(route: Route) -> Iterator[Seen]:
    yield from ((route.name, status, "") for status in route.answers)
    for fault in faults_of(route):
        if fault.status is not None:
            yield (route.name, fault.status, fault.code)


def missing(found: Iterable[Seen]) -> list[str]:
    """What nobody saw, one line each."""
    left = sorted(set(documented()).difference(found))
    return [f"{name} never answered {status} {kind}".rstrip() for name, status, kind in left]
