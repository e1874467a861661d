"""HTTP to one server: requests as data, retries where a repeat is harmless, typed errors."""

import asyncio
import random
from typing import Any, Final, Literal
from urllib.parse import quote

import httpx
import msgspec

from flowfabric.client.addresses import base_of, checked_token
from flowfabric.core.backoff import Backoff
from flowfabric.core.tokens import Secret
from flowfabric.errors import ApiError, FlowFabricError, HttpError, TryLater, Unreachable
from flowfabric.operations.answers import ErrorBody, encode, error_of
from flowfabric.telemetry.traces import TRACEPARENT, Traces

# Above what the server allows itself, so that its own answer is seen.
TIMEOUT_S: Final = 130.0
# How much longer than the server waits its answer may take.
WAIT_MARGIN_S: Final = 15.0
CONNECT_S: Final = 10.0
BACKOFF: Final = Backoff(0.1, 2.0)
_TRIES: Final = 4
_LONGEST_RETRY_AFTER_S: Final = 5.0
_TOO_MANY: Final = 429
_BUSY: Final = frozenset({_TOO_MANY, 502, 503, 504})
_MAX_BODY: Final = 500
_UNSET: Final = (None, "", ())
_error_decoder: Final = msgspec.json.Decoder(ErrorBody)


# ---- requests


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that are None or empty are left out of the query.

    `is_safe`: a repeat changes nothing. Any other request is repeated only if it was never sent,
    or was refused before anything was done.
    """

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    body: Any = None
    query: dict[str, Any] = {}
    is_safe: bool = True
    timeout_s: float = TIMEOUT_S

    # Bodies hold payloads, tokens and secrets.
    def __repr__(self) -> str:
        return f"Request({self.method} {self.path})"


def get_execution(execution_id: str, part: str, wait_ms: int | None = None) -> Request:
    """Read a part of an execution, which the server may wait for."""
    return Request(
        method="GET",
        path=f"/v1/executions/{segment(execution_id)}/{part}",
        query={"wait_ms": wait_ms or None},
        timeout_s=TIMEOUT_S if wait_ms is None else wait_ms / 1_000 + WAIT_MARGIN_S,
    )


def segment(text: str) -> str:
    """A path segment; ids have braces and colons, names may have anything."""
    return quote(text, safe="")


# ---- the connection


class Rest:
    """A server by its address. The token is sent, and never shown."""

    def __init__(
        self, url: str, token: Secret, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._url = base_of(url)
        self._client = httpx.AsyncClient(
            base_url=self._url,
            headers=_headers(token),
            timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_S),
            transport=transport or Pools(),
            trust_env=False,
        )
        self._traces = Traces()
        # Waits outlast a failure only if the server has answered before: its address is right then.
        self.has_answered = False

    def __repr__(self) -> str:
        return f"Rest({self._url!r})"

    async def close(self) -> None:
        await self._client.aclose()

    async def fetch(self, request: Request) -> httpx.Response:
        """A response of success; any other is raised, after the retries that are allowed."""
        if self._client.is_closed:
            raise HttpError("the connection is closed")
        failures = 0
        while True:
            answer = await self._try(request)
            if not isinstance(answer, _Refusal):
                return answer
            failures += 1
            if failures == _TRIES or not answer.may_repeat:
                raise answer.fault from answer.cause
            await asyncio.sleep(max(answer.wait_s, BACKOFF.pause_s(failures, random.random())))

    async def _try(self, request: Request) -> "httpx.Response | _Refusal":
        try:
            response = await self._send(request)
        except (httpx.HTTPError, httpx.InvalidURL) as cause:
            fault = _fault_of(cause)
            again = fault.retryable and (request.is_safe or _is_unsent(cause))
            return _Refusal(fault, again, cause=cause)
        self.has_answered = True
        if response.is_success:
            return response
        refusal = _refusal_of(response)
        again = refusal.retryable and (request.is_safe or response.status_code == _TOO_MANY)
        return _Refusal(refusal, again, _retry_after(response))

    async def _send(self, request: Request) -> httpx.Response:
        body = request.body
        return await self._client.request(
            request.method,
            request.path,
            content=None if body is None else encode(body),
            headers=self._own_headers(has_body=body is not None),
            params={name: value for name, value in request.query.items() if value not in _UNSET},
            timeout=httpx.Timeout(request.timeout_s, connect=CONNECT_S),
        )

    def _own_headers(self, *, has_body: bool) -> dict[str, str]:
        headers = {"content-type": "application/json"} if has_body else {}
        trace = self._traces.current()
        return headers | {TRACEPARENT: trace} if trace else headers


def _headers(token: Secret) -> dict[str, str]:
    if not token:
        return {}
    return {"authorization": f"Bearer {checked_token(token.reveal()).reveal()}"}


# ---- failures


class _Refusal:
    """A failed try, and whether another may follow."""

    __slots__ = ("cause", "fault", "may_repeat", "wait_s")

    def __init__(
        self,
        fault: FlowFabricError,
        may_repeat: bool,
        wait_s: float = 0.0,
        *,
        cause: Exception | None = None,
    ) -> None:
        self.fault = fault
        self.may_repeat = may_repeat
        self.wait_s = wait_s
        self.cause = cause


def _refusal_of(response: httpx.Response) -> FlowFabricError:
    """The error in a response, as the class an engine in this process raises."""
    status = response.status_code
    try:
        return error_of(_error_decoder.decode(response.content), status)
    except msgspec.MsgspecError:
        # Not a body of our server: most likely a proxy answered.
        unknown = TryLater if status in _BUSY else ApiError
        return unknown(f"HTTP {status}", status=status, raw_body=response.text[:_MAX_BODY])


def _fault_of(fault: httpx.HTTPError | httpx.InvalidURL) -> HttpError:
    kind = Unreachable if isinstance(fault, httpx.TransportError) else HttpError
    return kind(f"{type(fault).__name__}: {fault}".rstrip(": "))


def _is_unsent(fault: Exception) -> bool:
    return isinstance(fault, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def _retry_after(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), _LONGEST_RETRY_AFTER_S) if text.isdigit() else 0.0


# ---- connection pools


_LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=None)
# Requests in flight in one pool before another pool is opened.
_MOST_IN_POOL: Final = 8


class Pools(httpx.AsyncBaseTransport):
    """Many small pools: httpx looks at every connection of a pool before each request."""

    def __init__(self) -> None:
        self._trust = httpx.create_ssl_context(trust_env=False)
        self._pools: list[_Pool] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        pool = next((one for one in self._pools if one.in_flight < _MOST_IN_POOL), None)
        pool = pool or self._new_pool()
        pool.in_flight += 1
        try:
            return await pool.transport.handle_async_request(request)
        finally:
            pool.in_flight -= 1

    def _new_pool(self) -> "_Pool":
        transport = httpx.AsyncHTTPTransport(verify=self._trust, limits=_LIMITS, trust_env=False)
        self._pools.append(_Pool(transport))
        return self._pools[-1]

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.transport.aclose()


class _Pool:
    __slots__ = ("in_flight", "transport")

    def __init__(self, transport: httpx.AsyncHTTPTransport) -> None:
        self.transport = transport
        self.in_flight = 0
