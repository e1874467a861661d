"""Counters that others keep, read at the time of a scrape."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from flowfabric.telemetry.observer import CounterTotals

_NOT_CANCELLED: Final = ("already_terminal", "not_found")


class CallbackCounters(Collector):
    """May be asked by another thread, so it looks at copies."""

    def __init__(self) -> None:
        self.counted: Callable[[], CounterTotals] = CounterTotals

    def collect(self) -> Iterator[CounterMetricFamily]:
        counted = self.counted()
        hits, siblings = dict(counted.hits), dict(counted.siblings)
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
            counted.reconnects,
        )
        yield _sum("ff_function_reload", "Missing functions loaded again", counted.reloads)


def _of(hits: Mapping[tuple[str, str], int], kind: str) -> dict[str, int]:
    return {label: n for (limit, label), n in hits.items() if limit == kind}


def _family(name: str, text: str, label: str, sums: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, n in sums.items():
        family.add_metric([value], n)
    return family


def _sum(name: str, text: str, n: int) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=n)
