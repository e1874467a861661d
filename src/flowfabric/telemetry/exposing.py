"""The metrics of a process without a server: an application to mount, or a port of its own."""

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

from prometheus_client import start_http_server

from flowfabric.telemetry.metrics import CONTENT_TYPE, Metrics

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Scope]]
_Send = Callable[[_Scope], Awaitable[None]]
LOOPBACK: Final = "127.0.0.1"


def metrics_app(metrics: Metrics | None) -> Callable[[_Scope, _Receive, _Send], Awaitable[None]]:
    """An ASGI application that answers everything with the metrics; with nothing if there are
    none."""

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
    """A port that shows the metrics for as long as the block lasts; which one it is. It is served
    by a thread, so that a handler that holds the event loop does not hide what it does."""
    server, thread = start_http_server(port, host, metrics.registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
