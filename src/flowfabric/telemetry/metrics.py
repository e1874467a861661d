"""Metrics for Prometheus: events of the observer as counters, gauges and histograms."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from flowfabric.telemetry.observer import CounterTotals, Observer

BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25),
    *(0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
# Labels must stay few: further lanes share one.
MAX_LANES: Final = 16
OTHER: Final = "other"
_METHODS: Final = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"}
)


class Metrics(Observer):
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._lanes: set[str] = set()
        count, gauge, time = self._counter, self._gauge, self._histogram
        self._requests = count("ff_http_requests", "Requests", "method", "path", "status")
        self._request_s = time("ff_http_request_duration_seconds", "method", "path", "status")
        self._cycles = count("ff_scanner_cycle", "Visits of a duty", "scanner")
        self._cycle_s = time("ff_scanner_cycle_duration_seconds", "scanner")
        self._items = count("ff_scanner_items", "Items of a duty", "scanner", "result")
        self._restarts = count("ff_scanner_restarts", "Restarts of a duty", "scanner")
        self._backoff = gauge("ff_scanner_backoff_items", "Items in backoff", "scanner")
        self._backlog = gauge("ff_cancel_backlog_depth", "Flows with members left to cancel")
        self._claim_s = time("ff_claim_from_grant_duration_seconds", "lane")
        self._renewals = count("ff_lease_renewal", "Renewals of leases", "outcome")
        self._attempts = count("ff_attempt_outcome", "Ended attempts", "lane", "outcome")
        self._ends = count("ff_executions_terminal", "Ended executions", "lane", "outcome")
        self._e2e_s = time("ff_execution_e2e_seconds", "lane")
        self._depth = gauge("ff_queue_depth", "Executions by state", "lane", "state")
        self._live = gauge("ff_workers_live", "Live workers", "namespace")
        self._signals = count("ff_signals", "Signals", "effect")
        self._completions = count("ff_completion_events", "Completions logged", "outcome")
        self._groups = count("ff_edge_group_policy", "Edge groups by their policy", "policy")
        self._drains = count(
            "ff_sibling_cancel_reconcile", "Cancels of siblings finished by a timer", "action"
        )
        self._full = self._sum("ff_worker_at_capacity", "Claims that found no permit")
        self._stream_ops = gauge("ff_stream_ops_in_flight", "Stream reads and tails under way")
        self._sse = gauge("ff_sse_streams_open", "Open event streams")
        self._waits = gauge("ff_claim_waits", "Claims that wait for work")
        self._rejected = count("ff_stream_ops_rejected", "Calls that found a pool full", "pool")
        self._faults = count("ff_backend_errors", "Failed calls of the store", "op", "kind")
        self._overruns = self._sum("ff_shutdown_timeout", "Drains that took too long")
        self._callbacks = CallbackCounters()
        self.registry.register(self._callbacks)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    # ---- events

    def served(self, method: str, path: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else "OTHER"
        self._requests(method, path, status).inc()
        self._request_s(method, path, status).observe(seconds)

    def store_call_failed(self, op: str, kind: str) -> None:
        self._faults(op, kind).inc()

    def claimed(self, lane: str, seconds: float) -> None:
        self._claim_s(self._lane(lane)).observe(seconds)

    def renewed(self, is_ok: bool) -> None:
        self._renewals("ok" if is_ok else "error").inc()

    def attempted(self, lane: str, outcome: str) -> None:
        self._attempts(self._lane(lane), outcome).inc()

    def ended(self, lane: str, outcome: str, seconds: float | None) -> None:
        lane = self._lane(lane)
        self._ends(lane, outcome).inc()
        if seconds is not None:
            self._e2e_s(lane).observe(seconds)

    def completed(self, outcome: str) -> None:
        self._completions(outcome).inc()

    def signalled(self, effect: str) -> None:
        self._signals(effect).inc()

    def cycled(self, duty: str, seconds: float) -> None:
        self._cycles(duty).inc()
        self._cycle_s(duty).observe(seconds)

    def processed(self, duty: str, result: str, n: int) -> None:
        self._items(duty, result).inc(n)

    def restarted(self, duty: str) -> None:
        self._restarts(duty).inc()

    def backed_off(self, duty: str, n: int) -> None:
        self._backoff.labels(duty).set(n)

    def cancel_backlog(self, n: int) -> None:
        self._backlog.set(n)

    def grouped(self, policy: str, n: int) -> None:
        self._groups(policy).inc(n)

    def drained(self, n: int) -> None:
        self._drains("completed_drain").inc(n)

    def at_capacity(self) -> None:
        self._full.inc()

    def rejected(self, pool: str) -> None:
        self._rejected(pool).inc()

    def overran_shutdown(self) -> None:
        self._overruns.inc()

    def read_totals_from(self, read: Callable[[], CounterTotals]) -> None:
        self._callbacks.read = read

    # ---- gauges, set before the page is rendered

    def show_pools(self, stream_ops: int, sse_streams: int, claim_waits: int) -> None:
        self._stream_ops.set(stream_ops)
        self._sse.set(sse_streams)
        self._waits.set(claim_waits)

    def show_queues(self, depths: Iterable[tuple[str, str, int]]) -> None:
        """(lane, state, how many): the whole picture, replacing the last one."""
        self._depth.clear()
        for lane, state, n in depths:
            self._depth.labels(self._lane(lane), state).inc(n)

    def show_workers(self, live: Iterable[tuple[str, int]]) -> None:
        self._live.clear()
        for namespace, n in live:
            self._live.labels(namespace).set(n)

    def _lane(self, lane: str) -> str:
        if lane not in self._lanes:
            if len(self._lanes) >= MAX_LANES:
                return OTHER
            self._lanes.add(lane)
        return lane

    def _counter(self, name: str, text: str, *labels: str) -> Callable[..., Counter]:
        # Looking up the labels takes longer than counting, and there are few.
        return cache(self._sum(name, text, *labels).labels)

    def _sum(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, *labels: str) -> Callable[..., Histogram]:
        times = Histogram(name, "Seconds", labels, registry=self.registry, buckets=BUCKETS)
        return cache(times.labels)


_NOT_CANCELLED: Final = ("already_terminal", "not_found")


class CallbackCounters(Collector):
    """Counters that engine and store keep themselves, read when a page is rendered. Prometheus may
    do that in another thread, so mappings are copied."""

    def __init__(self) -> None:
        self.read: Callable[[], CounterTotals] = CounterTotals

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        totals = self.read()
        hits, siblings = dict(totals.hits), dict(totals.siblings)
        cancelled = {result: n for result, n in siblings.items() if result not in _NOT_CANCELLED}
        ends = {result: n for result, n in siblings.items() if result in _NOT_CANCELLED}
        if cancelled:
            ends["cancelled"] = sum(cancelled.values())
        yield _family("ff_budget_hit", "Starts a budget held", "dimension", _of(hits, "budget"))
        yield _family("ff_quota_hit", "Starts a quota held", "reason", _of(hits, "quota"))
        yield _family("ff_sibling_cancel_dispatched", "Siblings cancelled", "reason", cancelled)
        yield _family(
            "ff_sibling_cancel_disposition", "Siblings by disposition", "disposition", ends
        )
        yield _sum(
            "ff_doorbell_reconnects",
            "Reconnects of the notification connection",
            totals.reconnects,
        )
        yield _sum("ff_function_reload", "Missing functions loaded again", totals.reloads)
        yield GaugeMetricFamily(
            "ff_event_log_lag_seconds", "Wait of the event log for others", totals.log_lag_s
        )


def _of(hits: Mapping[tuple[str, str], int], kind: str) -> dict[str, int]:
    return {label: n for (limit, label), n in hits.items() if limit == kind}


def _family(name: str, text: str, label: str, totals: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, n in totals.items():
        family.add_metric([value], n)
    return family


def _sum(name: str, text: str, n: int) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=n)


_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Scope]]
_Send = Callable[[_Scope], Awaitable[None]]
LOOPBACK: Final = "127.0.0.1"


def metrics_app(metrics: Metrics | None) -> Callable[[_Scope, _Receive, _Send], Awaitable[None]]:
    """An ASGI application that answers every request with the metrics, which are empty for None."""

    async def app(scope: _Scope, _receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"expected an HTTP request, got {scope['type']}")
        text = metrics.render() if metrics else b""
        headers = [(b"content-type", CONTENT_TYPE), (b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else text
        await send({"type": "http.response.body", "body": body})

    return app


@contextmanager
def serving_metrics(metrics: Metrics, port: int = 0, host: str = LOOPBACK) -> Iterator[int]:
    """Serve the metrics for as long as the block lasts, and give the port. A thread serves them, so
    that they are there even while a handler blocks the event loop."""
    server, thread = start_http_server(port, host, metrics.registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
