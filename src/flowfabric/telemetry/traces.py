"""Traces: one span per request; the traceparent of a submit travels with the work it causes.

OpenTelemetry is used when it is installed and a provider is set up; without it a caller's trace is
still passed to the worker that claims the work.
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
    """The traceparent of a header; "" when there is none or it is malformed."""
    return header if _FORM(header) else ""


class Traces:
    """Spans of this process; there are none without a tracer provider."""

    def __init__(self, service: str = "flowfabric", backend: str = "") -> None:
        self._tracer = _tracer(service)
        self.is_on = self._tracer is not None
        # Which kind of store answers; every span says so.
        self._store = {"backend": backend} if backend else {}

    @contextmanager
    def span(self, name: str, parent: str | None, attributes: Mapping[str, Any]) -> Iterator[Any]:
        """A span around the block, below the parent if there is one; None when tracing is off. A
        parent of None is the current span."""
        if self._tracer is None:
            yield None
            return
        with self._tracer.start_as_current_span(
            name, context=_below(parent), attributes={**self._store, **attributes}
        ) as span:
            yield span

    def start(self, name: str, parent: str, attributes: Mapping[str, Any]) -> Any:
        """A span that the caller must end; None when tracing is off."""
        if self._tracer is None:
            return None
        about = {**self._store, **attributes}
        return self._tracer.start_span(name, context=_below(parent), attributes=about)

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Add to the current span."""
        trace.get_current_span().set_attributes(dict(attributes))

    def current(self, otherwise: str = "") -> str:
        """The traceparent of the current span, or else the one the caller sent."""
        if self._tracer is None:
            return otherwise
        return _text_of(None) or otherwise

    def text_of(self, span: Any) -> str:
        """The traceparent of a span; "" for None."""
        return "" if span is None else _text_of(trace.set_span_in_context(span))

    def fail(self, span: Any, why: str) -> None:
        """Mark a span as failed."""
        span.set_status(trace.StatusCode.ERROR, why)


def _below(parent: str | None) -> Any:
    """The context below a traceparent."""
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
