"""The page that follows a submit and a signal through the code names what they really enter."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from flowfabric.server import Http
from flowfabric.server.http import ANSWER
from tests.rotation import on_stores
from tests.server.conftest import Serve
from tests.server.driving import Served
from tests.server.test_signals import signal, suspended
from tests.server.tokens import token
from tests.server.tracing import Call, traced

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src" / "flowfabric"
PAGE: Final = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
MOST_CALLS: Final = 45
MOST_MODULES: Final = 24
REPRESENTATIONS: Final = 4
# Enough that every cache on the way is filled.
WARM_UP: Final = 4
TRACED: Final = 9

on_valkey = pytest.mark.parametrize("settings", on_stores(["valkey"]), indirect=True)

Send = Callable[[], Awaitable[None]]


def parts_of(name: str) -> list[str]:
    """What stands between a mark of the page and its end."""
    return re.findall(rf"<!-- {name} -->(.*?)<!-- end -->", PAGE, re.DOTALL)


def listed(table: str) -> list[Call]:
    """The calls of a table: a file stands before its functions."""
    calls: list[Call] = []
    file = ""
    for row in re.findall(r"^\|.*\| (.+) \|$", table, re.MULTILINE)[1:]:
        for word in re.findall(r"`([^`]+)`", row):
            if word.endswith((".py", ".lua")):
                file = word
            else:
                calls.append(Call(file, word))
    return calls


def sender(application: Http, path: str, body: object, authorization: str = "") -> Send:
    """Sends a request as our listener does."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    if authorization:
        headers.append((b"authorization", authorization.encode()))
    answers: list[int] = []

    def answer(status: int, *_: object) -> bool:
        answers.append(status)
        return True

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": msgspec.json.encode(body), "more_body": False}

    async def refuse(message: object) -> None:
        raise AssertionError(message)

    async def send() -> None:
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
        await application(
            {**scope, "headers": headers, "extensions": {ANSWER: answer}}, receive, refuse
        )
        assert answers.pop() in (200, 201)

    return send


SENT: Final = ("lane-of-the-page", "kind-of-the-page", "creator-of-the-page")
SUBMISSION: Final = {
    **dict(zip(("lane_id", "execution_kind", "creator_identity"), SENT, strict=True)),
    "input_payload": "aGVsbG8=",
}


async def submit_of(served: Served, authorization: str = "") -> Send:
    send = sender(served.application, "/v1/executions", SUBMISSION, authorization)
    for _ in range(WARM_UP):
        await send()
    return send


@on_valkey
async def test_the_page_lists_what_a_submit_enters(served: Served) -> None:
    trace = await traced(await submit_of(served), times=TRACED)
    (table,) = parts_of("submit")
    assert trace.calls == listed(table)


@on_valkey
@pytest.mark.parametrize("authorization", ["", "Bearer boss"])
async def test_the_way_of_a_submit_stays_short(serve: Serve, authorization: str) -> None:
    served = await serve(tokens=(token("boss", "admin"),) if authorization else ())
    trace = await traced(await submit_of(served, authorization), times=TRACED)
    assert len(trace.calls) <= MOST_CALLS
    assert len({call.file for call in trace.calls}) <= MOST_MODULES


@on_valkey
async def test_the_page_lists_what_represents_a_submission(served: Served) -> None:
    trace = await traced(await submit_of(served), *SENT, times=TRACED)
    (table,) = parts_of("representations")
    rows = re.findall(r"^\| \d \| (.+?) \| `(.+)` \|$", table, re.MULTILINE)
    assert len(rows) == REPRESENTATIONS
    assert all((SOURCE / file).exists() for _, file in rows)
    assert trace.representations == {"SubmitBody", "Record", "CreateExecution", "_Shape"}
    named = {word for row, _ in rows for word in re.findall(r"`([^`]+)`", row)}
    assert named >= trace.representations


@on_valkey
async def test_the_page_lists_what_a_signal_enters(served: Served) -> None:
    sends = iter([await signal_of(served) for _ in range(WARM_UP + TRACED)])

    async def send() -> None:
        await next(sends)()

    for _ in range(WARM_UP):
        await send()
    trace = await traced(send, times=TRACED)
    (table,) = parts_of("signal")
    assert [call for call in trace.calls if call in trace.entries] == listed(table)


async def signal_of(served: Served) -> Send:
    own, waitpoint = await suspended(served, "go")
    body = signal(waitpoint, payload="aGVsbG8=")
    return sender(served.application, f"/v1/executions/{own}/signal", body)


def test_the_page_names_functions_of_lua_files() -> None:
    for table in parts_of("lua"):
        for file, function in listed(table):
            text = (SOURCE / "backend" / "valkey" / file).read_text()
            assert re.search(rf"^(local )?function {re.escape(function)}\(", text, re.MULTILINE)
