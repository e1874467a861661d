"""Every metric moves when the thing it counts happens, and by how much it happened."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flowfabric.config import Settings, StoreUrl
from flowfabric.core.tokens import Secret
from flowfabric.duties.loop import DutyLoop
from flowfabric.duties.maintenance import Retention
from flowfabric.duties.result import DutyResult
from flowfabric.duties.sweep import TimerSweep
from flowfabric.errors import Bug, TransportFault
from flowfabric.server import booted
from flowfabric.server.boot import _close
from flowfabric.telemetry.metrics import Metrics
from tests.server.conftest import BASE, Serve
from tests.server.driving import WORKER, Served, fence
from tests.server.test_budgets import make
from tests.valkey_server import ValkeyServer

Figures = dict[tuple[str, tuple[str, ...]], float]
Scenario = Callable[[Served], Awaitable[None]]
SCENARIOS: dict[str, tuple[Scenario, str, tuple[str, ...], float]] = {}
# What no other store has to mend; see the last tests.
ONLY_ON_VALKEY = {"ff_doorbell_reconnects_total", "ff_function_reload_total"}
# What no other store waits for; see tests/integration/test_postgres_log.py.
ONLY_ON_POSTGRES = {"ff_event_log_lag_seconds"}


async def figures(served: Served) -> Figures:
    """Every sample by its name and the values of its labels."""
    answer = await served.call("GET /metrics")
    return {
        (sample.name, tuple(sorted(sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def moves(name: str, *labels: str, by: float = 1) -> Callable[[Scenario], Scenario]:
    """The scenario makes this sample of this family grow by so much."""

    def declare(scenario: Scenario) -> Scenario:
        family = name.removesuffix("_count")
        SCENARIOS[family] = (scenario, name, tuple(sorted(labels)), by)
        return scenario

    return declare


# ---- requests


@moves("ff_http_requests_total", "GET", "/v1/partitions", "200")
@moves("ff_http_request_duration_seconds_count", "GET", "/v1/partitions", "200")
async def a_request(served: Served) -> None:
    await served.done("GET /v1/partitions")


@moves("ff_stream_ops_rejected_total", "sse_streams")
async def a_stream_too_many(served: Served) -> None:
    pool = served.application.services.sse
    size = pool.available
    for _ in range(size):
        pool.__enter__()
    answer = await served.call("GET /v1/events", headers={"accept": "text/event-stream"})
    assert answer.status_code == 429
    for _ in range(size):
        pool.__exit__(None, None, None)


@moves("ff_sse_streams_open")
async def an_open_stream(served: Served) -> None:
    served.application.services.sse.__enter__()


@moves("ff_stream_ops_in_flight")
async def a_read_under_way(served: Served) -> None:
    served.application.services.engine.streams.permits.__enter__()


@moves("ff_claim_waits")
async def a_waiting_claim(served: Served) -> None:
    served.application.services.claim_waits.enter(("default", "w"))


@moves("ff_worker_at_capacity_total")
async def a_second_wait_of_one_worker(served: Served) -> None:
    served.application.services.claim_waits.enter(("default", "pool-1"))
    waiting = {**WORKER, "wait_ms": 1_000}
    assert await served.refused("POST /v1/worker/claim", waiting) == (429, "resource_exhausted")


@moves("ff_backend_errors_total", "count", "transport")
async def a_store_that_fails(served: Served) -> None:
    async def fail(*_: object) -> None:
        raise TransportFault("connection lost")

    watched = served.application.services.engine.deps.store.backend
    inner = watched._backend  # type: ignore[attr-defined]
    had = inner.count
    watched.__dict__.pop("count", None)
    inner.count = fail
    try:
        assert (await served.refused("GET /v1/executions/count"))[0] == 503
    finally:
        inner.count = had
        watched.__dict__.pop("count", None)


@moves("ff_shutdown_timeout_total")
async def a_drain_that_takes_too_long(served: Served) -> None:
    async def at_once() -> bool:
        return True

    async def too_long() -> bool:
        return False

    easy = SimpleNamespace(close=at_once, drain=at_once, stop=at_once)
    stuck: Any = SimpleNamespace(
        streams=SimpleNamespace(close=too_long),
        drain=at_once,
        close=at_once,
        deps=SimpleNamespace(store=SimpleNamespace(backend=easy)),
    )
    duties: Any = easy
    await _close(stuck, duties, observer(served))


# ---- work


@moves("ff_claim_from_grant_duration_seconds_count", "default")
@moves("ff_attempt_outcome_total", "default", "ok")
@moves("ff_executions_terminal_total", "default", "completed")
@moves("ff_execution_e2e_seconds_count", "default")
@moves("ff_completion_events_total", "success")
async def a_completed_execution(served: Served) -> None:
    await served.finish(await served.held(), complete={})


@moves("ff_lease_renewal_total", "error")
async def a_renewal_too_late(served: Served) -> None:
    held = {**await served.held(), "lease_id": str(uuid4())}
    body = {"worker_instance_id": "pool-1", "lease_ms": 5_000, "items": [held]}
    await served.done("POST /v1/worker/renew", body)


@moves("ff_queue_depth", "default", "waiting", by=2)
async def waiting_work(served: Served) -> None:
    await served.submit()
    await served.submit()


@moves("ff_workers_live", "default")
async def a_worker(served: Served) -> None:
    await served.done("POST /v1/worker/register", {**WORKER, "ttl_ms": 30_000})


@moves("ff_signals_total", "buffered_for_pending_waitpoint")
async def a_signal_nobody_waits_for_yet(served: Served) -> None:
    held = await served.held()
    waitpoint = await served.done("POST /v1/worker/waitpoints", {**held, "expires_in_ms": 60_000})
    await served.done(
        f"POST /v1/executions/{held['execution_id']}/signal",
        {
            "waitpoint_id": waitpoint["waitpoint_id"],
            "waitpoint_token": waitpoint["waitpoint_token"],
            "signal_id": str(uuid4()),
            "signal_name": "go",
            "signal_category": "x",
            "source_type": "test",
            "source_identity": "me",
            "target_scope": "waitpoint",
        },
    )


# ---- limits


@moves("ff_budget_hit_total", "tokens")
async def a_budget_that_is_spent(served: Served) -> None:
    own = await make(served)
    await served.done(f"POST /v1/budgets/{own}/usage", {"dimensions": {"tokens": 100}})
    await served.submit(policy={"budget_ids": [own]})
    assert (await served.call("POST /v1/worker/claim", WORKER)).status_code == 204


@moves("ff_quota_hit_total", "concurrency")
async def a_quota_that_is_taken(served: Served) -> None:
    body: dict[str, Any] = {"window_seconds": 60, "max_requests_per_window": 0, "max_concurrent": 1}
    made = await served.done("POST /v1/quotas", body)
    policy = {"quota_ids": [made["quota_policy_id"]]}
    await served.submit(policy=policy)
    await served.submit(policy=policy)
    await served.claim()
    assert (await served.call("POST /v1/worker/claim", WORKER)).status_code == 204


# ---- flows


@moves("ff_edge_group_policy_total", "any_of")
async def a_group_with_a_policy(served: Served) -> None:
    await served.done("POST /v1/flows:submit", graph("abc", "ac", "bc", policy=RACE))


@moves("ff_sibling_cancel_dispatched_total", "sibling_quorum_satisfied", by=2)
@moves("ff_sibling_cancel_disposition_total", "cancelled", by=2)
async def a_race(served: Served) -> None:
    body = graph("abcd", "ad", "bd", "cd", policy=RACE, to="d")
    await served.done("POST /v1/flows:submit", body)
    await served.finish(fence(await served.claim()), complete={})


@moves("ff_cancel_backlog_depth")
async def a_cancel_that_is_not_over(served: Served) -> None:
    """More members than one step ends, and nobody who goes on at once."""
    engine = served.application.services.engine
    engine.deps.on_more = _nobody
    names = [f"n{at}" for at in range(250)]
    body = graph([*names, "c"], (names[0], "c"), policy=RACE)
    made = await served.done("POST /v1/flows:submit", body)
    cancel = {"reason": "enough", "cancellation_policy": "cancel_all"}
    await served.done(f"POST /v1/flows/{made['flow_id']}/cancel", cancel)
    await visit(served, TimerSweep(engine))


@moves("ff_sibling_cancel_reconcile_total", "completed_drain")
async def a_cut_left_to_the_timer(served: Served) -> None:
    """More siblings than one step cuts, and nobody who goes on at once."""
    engine = served.application.services.engine
    engine.deps.on_more = _nobody
    names = [f"n{at}" for at in range(250)]
    body = graph([*names, "last"], *((name, "last") for name in names), policy=RACE, to="last")
    await served.done("POST /v1/flows:submit", body)
    await served.finish(fence(await served.claim()), complete={})
    await visit(served, TimerSweep(engine))


# ---- duties


@moves("ff_scanner_cycle_total", "retention_trimmer")
@moves("ff_scanner_cycle_duration_seconds_count", "retention_trimmer")
async def a_visit(served: Served) -> None:
    await visit(served, Retention(served.application.services.engine))


class Broken:
    """A duty that dies, or has something it cannot do."""

    name = "broken"

    def __init__(self, fault: Exception | None = None) -> None:
        self._fault = fault
        self.begun = asyncio.Event()

    async def visit(self) -> DutyResult:
        self.begun.set()
        if self._fault is not None:
            raise self._fault
        result = DutyResult()
        result.failed(self.name)
        result.left_alone = 1
        return result


@moves("ff_scanner_items_total", "broken", "error")
@moves("ff_scanner_backoff_items", "broken")
async def an_item_that_fails(served: Served) -> None:
    await visit(served, Broken())


@moves("ff_scanner_restarts_total", "broken")
async def a_duty_that_dies(served: Served) -> None:
    duty = Broken(RuntimeError("dead"))
    loop = DutyLoop(duty, 0.1, observer(served))
    running = asyncio.create_task(loop.run())
    await duty.begun.wait()
    loop.stop()
    await running


# ---- what the scenarios are made of


def _nobody(*_: object) -> None:
    """Goes on with nothing."""


RACE = {"kind": "any_of", "on_satisfied": "cancel_remaining"}


def graph(nodes: Any, *edges: Any, policy: dict[str, str], to: str = "c") -> dict[str, Any]:
    return {
        "flow_kind": "race",
        "nodes": [{"name": n, "lane_id": "default", "execution_kind": "x"} for n in nodes],
        "edges": [{"from": one[0], "to": one[1]} for one in edges],
        "groups": [{"to": to, "policy": policy}],
    }


def observer(served: Served) -> Metrics:
    found = served.application.services.observer
    assert isinstance(found, Metrics)
    return found


async def visit(served: Served, duty: Any) -> None:
    await DutyLoop(duty, 60, observer(served))._cycle()


# ---- the tests


@pytest.fixture
async def still(serve: Serve) -> Served:
    """A server whose own duties do not come by during a test."""
    return await serve(timer_sweep_interval_ms=3_600_000, retention_trimmer_interval_s=86_400)


@pytest.mark.parametrize("family", sorted(SCENARIOS))
async def test_it_moves(family: str, still: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    scenario, name, labels, by = SCENARIOS[family]
    before = (await figures(still)).get((name, labels), 0)
    await scenario(still)
    found = await figures(still)
    assert found.get((name, labels), 0) - before == by, sorted(found)
    # A permit that is out would hold up the end of the server.
    permits = still.application.services.engine.streams.permits
    for _ in range(permits.taken):
        permits.__exit__(None, None, None)


def test_every_metric_has_its_scenario() -> None:
    families = {
        f"{one.name}_total" if one.type == "counter" else one.name
        for one in Metrics().registry.collect()
    }
    assert set(SCENARIOS) | ONLY_ON_VALKEY | ONLY_ON_POSTGRES == families


async def test_a_fault_of_a_visit_is_an_error_of_its_duty(
    still: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    await visit(still, Broken(Bug("broken")))
    assert (await figures(still))["ff_scanner_items_total", ("broken", "error")] == 1


async def test_lanes_beyond_the_sixteenth_share_a_label(still: Served) -> None:
    for at in range(20):
        await still.submit(lane_id=f"lane-{at:02}")
    found = await figures(still)
    lanes = {labels for name, labels in found if name == "ff_queue_depth"}
    assert ("other", "waiting") in lanes
    assert len(lanes) == 17


# ---- what a server of Valkey may lose


@pytest.fixture
async def on_valkey() -> AsyncIterator[tuple[Served, ValkeyServer]]:
    """A server over a store of its own, which tests may hurt."""
    store = ValkeyServer()
    url = StoreUrl("valkey", host="127.0.0.1", port=store.port)
    settings = Settings(store=url, waitpoint_secret=Secret("5e" * 32))
    async with (
        booted(settings) as application,
        httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url=BASE) as client,
    ):
        yield Served(application, client), store
    store.end()


async def test_subscriber_connections_that_were_cut_off_are_counted(
    on_valkey: tuple[Served, ValkeyServer],
) -> None:
    served, store = on_valkey
    notifier = served.application.services.engine.deps.store.backend.notifier()
    for cuts in range(3):
        # Answers come in order: once this topic is confirmed, so are all others.
        subscription = notifier.subscribe(f"lane:default:{cuts}")
        await subscription.wait_subscribed(10)
        assert (await figures(served))["ff_doorbell_reconnects_total", ()] == cuts
        assert store.run("CLIENT", "KILL", "TYPE", "pubsub") == b":1\r\n"
        assert await subscription.wait(10), "a subscriber is notified when the connection is back"
        subscription.close()


async def test_functions_that_had_to_be_loaded_again_are_counted(
    on_valkey: tuple[Served, ValkeyServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    served, store = on_valkey
    assert (await figures(served))["ff_function_reload_total", ()] == 0
    store.expect("FUNCTION", "FLUSH", "SYNC")
    await asyncio.gather(*(served.submit() for _ in range(20)))
    assert (await figures(served))["ff_function_reload_total", ()] == 1
