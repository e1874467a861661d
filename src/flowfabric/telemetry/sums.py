"""Counters that others keep, shown as they stand when somebody looks."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from flowfabric.telemetry.observer import Counted

_NOT_CANCELLED: Final = ("already_terminal", "not_found")


class Sums(Collector):
    """May be asked by another thread, so it looks at copies."""

    def __init__(self) -> None:
        self.counted: Callable[[], Counted] = Counted

    def collect(self) -> Iterator[CounterMetricFamily]:
        counted = self.counted()
        hits, siblings = dict(counted.hits), dict(counted.siblings)
        cancelled = {name: n for name, n in siblings.items() if name not in _NOT_CANCELLED}
        ends = {name: n for name, n in siblings.items() if name in _NOT_CANCELLED}
        if cancelled:
            ends["cancelled"] = sum(cancelled.values())
        yield _family("ff_budget_hit", "Starts a budget held", "dimension", _of(hits, "budget"))
        yield _family("ff_quota_hit", "Starts a quota held", "reason", _of(hits, "quota"))
        yield _family("ff_sibling_cancel_dispatched", "Siblings cancelled", "reason", cancelled)
        yield _family("ff_sibling_cancel_disposition", "Ends of siblings", "disposition", ends)
        yield _sum("ff_doorbell_reconnects", "Doorbells connected again", counted.reconnects)
        yield _sum("ff_function_reload", "Missing functions loaded again", counted.reloads)


def _of(hits: Mapping[tuple[str, str], int], kind: str) -> dict[str, int]:
    return {label: n for (limit, label), n in hits.items() if limit == kind}


def _family(name: str, told: str, label: str, sums: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, told, labels=[label])
    for value, n in sums.items():
        family.add_metric([value], n)
    return family


def _sum(name: str, told: str, n: int) -> CounterMetricFamily:
    return CounterMetricFamily(name, told, value=n)
