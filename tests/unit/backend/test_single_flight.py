"""Concurrent callers share one call, and none of them can spoil it for the others."""

import asyncio
import logging

import pytest

from flowfabric.backend.single_flight import SingleFlight


class Server:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()
        self.fault: Exception | None = None

    async def answer(self, name: str) -> str:
        self.asked.append(name)
        await self.may_answer.wait()
        if self.fault is not None:
            raise self.fault
        return name.upper()


@pytest.fixture
def server() -> Server:
    return Server()


async def begun(*callers: "asyncio.Task[str]") -> None:
    """Let every caller come as far as it can."""
    await asyncio.wait(callers, timeout=0)


async def test_callers_with_the_same_arguments_share_a_call(server: Server) -> None:
    flight = SingleFlight("asking", server.answer)
    callers = [asyncio.ensure_future(flight.get(name)) for name in "aab"]
    await begun(*callers)
    server.may_answer.set()
    assert await asyncio.gather(*callers) == ["A", "A", "B"]
    assert server.asked == ["a", "b"]


async def test_what_has_been_answered_is_asked_anew(server: Server) -> None:
    flight = SingleFlight("asking", server.answer)
    server.may_answer.set()
    assert [await flight.get("a"), await flight.get("a")] == ["A", "A"]
    assert server.asked == ["a", "a"]


async def test_a_caller_that_is_cancelled_cancels_nobody_else(server: Server) -> None:
    flight = SingleFlight("asking", server.answer)
    first, second = (asyncio.ensure_future(flight.get("a")) for _ in range(2))
    await begun(first, second)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    server.may_answer.set()
    assert await second == "A"
    assert server.asked == ["a"]


async def test_a_fault_reaches_all_callers_and_is_forgotten(server: Server) -> None:
    flight = SingleFlight("asking", server.answer)
    server.may_answer.set()
    server.fault = OSError("away")
    found = await asyncio.gather(flight.get("a"), flight.get("a"), return_exceptions=True)
    assert list(found) == [server.fault, server.fault]
    server.fault = None
    assert await flight.get("a") == "A"


async def test_a_fault_that_nobody_waits_for_is_logged(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.backend")
    flight = SingleFlight("asking", server.answer)
    server.may_answer.set()
    server.fault = OSError("away")
    await asyncio.wait((flight.start("a"),))
    assert "asking failed: away" in caplog.text


async def test_closing_ends_what_is_in_flight(server: Server) -> None:
    flight = SingleFlight("asking", server.answer)
    caller = asyncio.ensure_future(flight.get("a"))
    await begun(caller)
    await flight.close()
    with pytest.raises(asyncio.CancelledError):
        await caller
