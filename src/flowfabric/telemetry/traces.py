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
    def span(self, name: str, parent: str | None, attributes: Mapping[str, Any]) -> Iterator[Any]:
        """A span around the block, below the caller's if it has one; None when nobody traces. A
        parent of None is the present span."""
        if self._tracer is None:
            yield None
            return
        with self._tracer.start_as_current_span(
            name, context=_below(parent), attributes=dict(attributes)
        ) as span:
            yield span

    def start(self, name: str, parent: str, attributes: Mapping[str, Any]) -> Any:
        """A span that whoever asked for it must end; None when nobody traces."""
        if self._tracer is None:
            return None
        return self._tracer.start_span(name, context=_below(parent), attributes=dict(attributes))

    def current(self, otherwise: str = "") -> str:
        """The present span in its text form, or what the caller sent."""
        if self._tracer is None:
            return otherwise
        return _text_of(None) or otherwise

    def text_of(self, span: Any) -> str:
        """A span in its text form, "" without one."""
        return "" if span is None else _text_of(trace.set_span_in_context(span))

    def fail(self, span: Any, why: str) -> None:
        """Say of a span that what it stands for failed."""
        span.set_status(trace.StatusCode.ERROR, why)


def _below(parent: str | None) -> Any:
    """Where a span belongs whose parent has this text form."""
    if parent is None:
        return None
    return TraceContextTextMapPropagator().extract({TRACEPARENT: parent} if parent else {})


def _text_of(context: Any) -> str:
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, context)
    return carrier.get(TRACEPARENT, "")


def _tracer(service: str) -> Any:
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace.get_tracer(service)
