"""What a worker without a server of its own tells of itself."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flowfabric import FlowFabric
from flowfabric.errors import ConfigError
from flowfabric.telemetry.metrics import Metrics, metrics_app, serving_metrics
from tests.sdk.backends import SETTINGS
from tests.serving import TOKEN, serving

Figures = dict[tuple[str, ...], float]


def figures(text: str) -> Figures:
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextmanager
def shown(fabric: FlowFabric) -> Iterator[str]:
    """A fabric that is watched, and where one can see it."""
    metrics = Metrics()
    fabric.observe(metrics)
    with serving_metrics(metrics) as port:
        yield f"http://127.0.0.1:{port}/metrics"


async def worked(fabric: FlowFabric, url: str) -> Figures:
    """Figures after one task that succeeds and one that takes two attempts."""

    @fabric.task(lane="desk")
    async def greet(name: str) -> str:
        return f"hello, {name}"

    stumbled: list[int] = []

    @fabric.task(lane="desk", retries=1, backoff="1ms")
    async def stumble() -> None:
        if not stumbled:
            stumbled.append(1)
            raise ValueError("once")

    async with fabric, fabric.worker():
        assert await greet.call("Ada") == "hello, Ada"
        await stumble.call()
        # A result may be heard of before its worker has the answer.
        while True:
            found = figures(await asyncio.to_thread(lambda: httpx.get(url).text))
            if found.get(("ff_attempt_outcome_total", "desk", "ok")) == 2:
                return found


async def test_a_worker_on_a_store_shows_what_it_did(tmp_path: Path) -> None:
    fabric = FlowFabric(f"sqlite:///{tmp_path / 'own.db'}", settings=SETTINGS)
    with shown(fabric) as url:
        found = await worked(fabric, url)
    assert found["ff_attempt_outcome_total", "desk", "retry"] == 1
    assert found["ff_executions_terminal_total", "completed", "desk"] == 2
    assert found["ff_execution_e2e_seconds_count", "desk"] == 2
    assert found["ff_completion_events_total", "success"] == 2
    assert found["ff_claim_from_grant_duration_seconds_count", "desk"] >= 1
    assert found["ff_scanner_cycle_total", "timer_sweep"] >= 1
    assert found["ff_function_reload_total",] == 0


async def test_a_worker_of_a_server_shows_what_it_did() -> None:
    async with serving(SETTINGS) as server:
        fabric = FlowFabric(server.url, token=TOKEN, settings=SETTINGS)
        with shown(fabric) as url:
            found = await worked(fabric, url)
    assert found["ff_attempt_outcome_total", "desk", "retry"] == 1
    assert found["ff_executions_terminal_total", "completed", "desk"] == 2
    assert found["ff_claim_from_grant_duration_seconds_count", "desk"] >= 1


async def test_the_page_can_be_mounted_and_is_empty_without_metrics() -> None:
    for metrics, beginning in ((Metrics(), "# HELP ff_"), (None, "")):
        transport = httpx.ASGITransport(metrics_app(metrics))
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
            answer = await client.get("/metrics")
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert answer.text.startswith(beginning)
            assert bool(answer.text) == bool(metrics)
            assert (await client.head("/metrics")).text == ""


async def test_whoever_watches_comes_before_the_fabric_is_open() -> None:
    async with FlowFabric("memory://", settings=SETTINGS) as fabric:
        with pytest.raises(ConfigError, match="open already"):
            fabric.observe(Metrics())
