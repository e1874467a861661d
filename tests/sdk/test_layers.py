"""Layers around a port: what they let through, what they refuse, what they tell."""

import asyncio
import logging

import pytest

from flowfabric import FlowFabric
from flowfabric.errors import (
    ConfigError,
    ExecutionNotFound,
    FlowFabricError,
    InvalidInput,
    ResourceExhausted,
    TransportFault,
)
from flowfabric.worker.layers import (
    CallOutcome,
    CircuitBreaker,
    CircuitOpen,
    Hook,
    Metrics,
    RateLimit,
    Tracing,
    call_outcome,
    layered,
)


class Port:
    """Answers, or raises what it is told to."""

    name = "port"

    def __init__(self) -> None:
        self.fault: BaseException | None = None
        self.calls = 0

    async def ask(self, n: int = 1) -> int:
        self.calls += 1
        if self.fault is not None:
            raise self.fault
        return n

    async def renew(self) -> None:
        self.calls += 1


class Hearing(Hook):
    def __init__(self, name: str, heard: list[str]) -> None:
        self._name = name
        self._heard = heard

    def before(self, method: str) -> FlowFabricError | None:
        self._heard.append(f"{self._name} before {method}")
        return None

    def after(self, method: str, elapsed_s: float, fault: BaseException | None) -> None:
        self._heard.append(f"{self._name} after {method} {fault is None}")


async def test_the_last_layer_is_outermost_and_everything_is_delegated() -> None:
    heard: list[str] = []
    port = layered(Port(), Hearing("inner", heard), Hearing("outer", heard))
    assert await port.ask(3) == 3
    assert port.name == "port"
    assert heard == [
        "outer before ask",
        "inner before ask",
        "inner after ask True",
        "outer after ask True",
    ]


async def test_tracing_tells_of_every_call(caplog: pytest.LogCaptureFixture) -> None:
    port = layered(Port(), Tracing(logging.WARNING))
    await port.ask()
    assert "method=ask" in caplog.text
    assert "ok=True" in caplog.text


async def test_a_rate_limit_refuses_what_is_too_much_but_never_a_renewal() -> None:
    port = layered(Port(), RateLimit(2))
    await port.ask()
    await port.ask()
    with pytest.raises(ResourceExhausted, match="ask: rate limit 'all'") as caught:
        await port.ask()
    assert 1 <= int(str(caught.value.details["retry_after_ms"])) <= 500
    await port.renew()
    with pytest.raises(ConfigError):
        RateLimit(0.5)


async def test_classes_have_buckets_of_their_own() -> None:
    port = layered(Port(), RateLimit(classify=lambda method: method, rates={"ask": 1}, exempt=()))
    await port.ask()
    with pytest.raises(ResourceExhausted):
        await port.ask()
    for _ in range(5):
        await port.renew()


async def test_metrics_hear_how_each_call_ended() -> None:
    heard: list[tuple[str, CallOutcome]] = []
    inner = Port()
    port = layered(
        inner, Metrics(lambda method, _, outcome: heard.append((method, outcome))), Metrics()
    )
    await port.ask()
    for fault in (ExecutionNotFound("x"), InvalidInput("x"), TransportFault("x"), KeyError("x")):
        inner.fault = fault
        with pytest.raises(type(fault)):
            await port.ask()
    assert [outcome for _, outcome in heard] == [
        "ok",
        "not_found",
        "validation",
        "transport",
        "unknown",
    ]
    assert call_outcome(ResourceExhausted("x")) == "unavailable"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_the_breaker_opens_tries_once_and_closes() -> None:
    clock, inner = Clock(), Port()
    port = layered(inner, CircuitBreaker(failures=2, open_s=30, clock=clock))
    inner.fault = TransportFault("down")
    for _ in range(2):
        with pytest.raises(TransportFault, match="down"):
            await port.ask()
    with pytest.raises(CircuitOpen) as caught:
        await port.ask()
    assert caught.value.retryable
    assert inner.calls == 2
    clock.now = 31
    with pytest.raises(TransportFault, match="down"):
        await port.ask()
    with pytest.raises(CircuitOpen):
        await port.ask()
    clock.now = 62
    # Any answer shows that the way is open again.
    inner.fault = InvalidInput("no")
    with pytest.raises(InvalidInput):
        await port.ask()
    inner.fault = None
    assert await port.ask() == 1


async def test_a_cancelled_trial_frees_its_place() -> None:
    clock, inner = Clock(), Port()
    port = layered(inner, CircuitBreaker(failures=1, clock=clock))
    inner.fault = TransportFault("down")
    with pytest.raises(TransportFault):
        await port.ask()
    clock.now = 31
    inner.fault = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await port.ask()
    inner.fault = None
    assert await port.ask() == 1


async def test_other_errors_neither_count_nor_reset() -> None:
    inner = Port()
    port = layered(inner, CircuitBreaker(failures=2))
    for fault in (TransportFault("1"), InvalidInput("x"), TransportFault("2")):
        inner.fault = fault
        with pytest.raises(type(fault)):
            await port.ask()
    with pytest.raises(CircuitOpen):
        await port.ask()


async def test_a_worker_runs_through_layers(fabric: FlowFabric) -> None:
    heard: list[str] = []

    @fabric.task()
    async def one() -> int:
        return 1

    fabric.layer(Metrics(lambda method, *_: heard.append(method)))
    async with fabric.worker():
        assert await one.call() == 1
        assert await (await one.submit()).result() == 1
    methods = {"register_worker", "claim", "finish", "call", "submit", "wait_ended", "leave"}
    assert methods <= set(heard)
