"""Traces: one span per request, and the thread that joins a submit to the work it causes.

OpenTelemetry is used when it is installed and a provider is set up; without it a caller's trace is
still handed on to whoever claims the work.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:  # pragma: no cover
    trace = None  # type: ignore[assignment]

# The tag that carries a trace from a submitter to the worker.
TRACEPARENT: Final = "traceparent"
_FORM: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch


def given_parent(header: str) -> str:
    """The caller's trace, "" when there is none in its one form."""
    return header if _FORM(header) else ""


class Traces:
    """Spans of this process; none at all unless somebody set up a provider before."""

    def __init__(self, service: str = "flowfabric") -> None:
        self._tracer = _tracer(service)

    @property
    def is_on(self) -> bool:
        return self._tracer is not None

    @contextmanager
    def span(self, name: str, parent: str, attributes: Mapping[str, Any]) -> Iterator[Any]:
        """A span around the block, below the caller's if it has one; None when nobody traces."""
        if self._tracer is None:
            yield None
            return
        carrier = {TRACEPARENT: parent} if parent else {}
        context = TraceContextTextMapPropagator().extract(carrier)
        with self._tracer.start_as_current_span(
            name, context=context, attributes=dict(attributes)
        ) as span:
            yield span

    def current(self, otherwise: str = "") -> str:
        """The present span in its text form, or what the caller sent."""
        if self._tracer is None:
            return otherwise
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        return carrier.get(TRACEPARENT, otherwise)


def _tracer(service: str) -> Any:
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace.get_tracer(service)
