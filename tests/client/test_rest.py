"""Requests over HTTP: what is repeated, what is not, and what every refusal becomes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from flowfabric.client.operations import http_transport
from flowfabric.client.rest import Request, Rest
from flowfabric.core.tokens import Secret
from flowfabric.errors import (
    ApiError,
    ConfigError,
    ExecutionNotFound,
    HttpError,
    InvalidInput,
    MalformedResponse,
    ResourceExhausted,
    StoreTimeout,
    TimedOut,
    TransportFault,
    TryLater,
    Unreachable,
)
from flowfabric.operations.nouns import Calls
from tests.client.scripted import CUT, Scripted, answer, refusal, saying

SAFE = Request(method="GET", path="/v1/partitions")
UNSAFE = Request(method="POST", path="/v1/executions", body={"a": 1}, is_safe=False)
DONE = answer(200, {"done": True})


@asynccontextmanager
async def asking(*script: bytes) -> AsyncIterator[tuple[Rest, Scripted]]:
    async with saying(*script) as scripted:
        rest = Rest(scripted.url, Secret("s3cret"))
        try:
            yield rest, scripted
        finally:
            await rest.close()


@pytest.mark.parametrize(
    "first",
    [
        refusal(429, "resource_exhausted", retryable=True, retry_after="0"),
        refusal(503, "transport", retryable=True),
        answer(502, b"<html>bad gateway</html>"),
        CUT,
    ],
    ids=["429", "503", "502", "cut"],
)
async def test_what_changes_nothing_is_asked_again(first: bytes) -> None:
    async with asking(first, DONE) as (rest, scripted):
        assert (await rest.fetch(SAFE)).content == b'{"done":true}'
        assert len(scripted.requests) == 2


@pytest.mark.parametrize(
    ("first", "fault"),
    [
        (refusal(503, "transport", retryable=True), TransportFault),
        (answer(502, b"<html>bad gateway</html>"), TryLater),
        (CUT, Unreachable),
    ],
    ids=["503", "502", "cut"],
)
async def test_what_may_have_been_done_is_not_asked_again(
    first: bytes, fault: type[Exception]
) -> None:
    async with asking(first, DONE) as (rest, scripted):
        with pytest.raises(fault):
            await rest.fetch(UNSAFE)
        assert len(scripted.requests) == 1


async def test_what_was_refused_for_lack_of_room_is_asked_again_in_any_case() -> None:
    full = refusal(429, "resource_exhausted", retryable=True, retry_after="0")
    async with asking(full, DONE) as (rest, scripted):
        await rest.fetch(UNSAFE)
        assert len(scripted.requests) == 2


async def test_asking_ends_some_time() -> None:
    full = refusal(429, "resource_exhausted", retryable=True)
    async with asking(full) as (rest, scripted):
        with pytest.raises(ResourceExhausted):
            await rest.fetch(SAFE)
        assert len(scripted.requests) == 4


@pytest.mark.parametrize("sent", [SAFE, UNSAFE], ids=["safe", "unsafe"])
async def test_a_server_that_is_not_there_is_unreachable(sent: Request) -> None:
    async with saying(DONE) as scripted:
        url = scripted.url
    rest = Rest(url, Secret(""))
    with pytest.raises(Unreachable) as caught:
        await rest.fetch(sent)
    assert caught.value.retryable
    assert not rest.has_answered
    await rest.close()


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (refusal(404, "execution_not_found", retryable=False), ExecutionNotFound),
        (refusal(504, "timeout", retryable=False), TimedOut),
        (refusal(422, "invalid_json", retryable=False), InvalidInput),
        (refusal(418, "of_a_later_release", retryable=False), ApiError),
        (answer(500, b"<html>oops</html>"), ApiError),
    ],
)
async def test_every_refusal_is_one_error(said: bytes, fault: type[Exception]) -> None:
    async with asking(said) as (rest, scripted):
        with pytest.raises(fault) as caught:
            await rest.fetch(SAFE)
        assert type(caught.value) is fault
        assert len(scripted.requests) == 1


@pytest.mark.parametrize(
    "said", [answer(200, b"not json"), answer(200, {"done": "yes"}), answer(204, b"")]
)
async def test_an_answer_that_is_not_the_declared_one_is_malformed(said: bytes) -> None:
    async with asking(said) as (rest, scripted):
        with pytest.raises(MalformedResponse):
            await Calls(http_transport(rest)).partitions()
        assert len(scripted.requests) == 1


async def test_a_store_that_was_slow_may_be_asked_again() -> None:
    async with asking(refusal(503, "timeout", retryable=True)) as (rest, scripted):
        with pytest.raises(StoreTimeout):
            await rest.fetch(SAFE)
        assert len(scripted.requests) == 4


async def test_an_unknown_refusal_tells_what_was_said() -> None:
    async with asking(answer(500, b"<html>oops</html>")) as (rest, _):
        with pytest.raises(ApiError) as caught:
            await rest.fetch(SAFE)
    assert caught.value.details == {"status": 500, "raw_body": "<html>oops</html>"}


async def test_the_token_is_sent_and_not_shown() -> None:
    async with asking(DONE) as (rest, scripted):
        await rest.fetch(SAFE)
        assert b"authorization: bearer s3cret" in scripted.requests[0].lower()
        assert "s3cret" not in repr(rest)


async def test_a_closed_connection_says_so() -> None:
    rest = Rest("http://127.0.0.1:1", Secret(""))
    await rest.close()
    with pytest.raises(HttpError, match="closed"):
        await rest.fetch(SAFE)


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "ftp://host",
        "http://host:port",
        "http://me:pw@host",
        "http://host?x=1",
        "http://host/#x",
    ],
)
def test_an_address_is_an_address(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Rest(url, Secret(""))
    assert "pw" not in str(caught.value)
