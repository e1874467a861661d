"""HTTP to one server: requests as data, retries where a repeat is harmless, typed errors."""

import asyncio
import random
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

import msgspec

from flowfabric.client.addresses import base_of, checked_token
from flowfabric.client.http import Client, HttpClient, Message, RequestFailed, Response
from flowfabric.core.backoff import Backoff
from flowfabric.core.tokens import Secret
from flowfabric.errors import ApiError, FlowFabricError, HttpError, TryLater, Unreachable
from flowfabric.operations.answers import ErrorBody, encode, error_of
from flowfabric.telemetry.traces import TRACEPARENT, Traces

# Above what the server allows itself, so that its own answer is seen.
TIMEOUT_S: Final = 130.0
# How much longer than the server waits its answer may take.
WAIT_MARGIN_S: Final = 15.0
BACKOFF: Final = Backoff(0.1, 2.0)
_TRIES: Final = 4
_LONGEST_RETRY_AFTER_S: Final = 5.0
_SUCCESS: Final = range(200, 300)
_TOO_MANY: Final = 429
_BUSY: Final = frozenset({_TOO_MANY, 502, 503, 504})
_MAX_BODY: Final = 500
_NO_HEADERS: Final[dict[str, str]] = {}
_UNSET: Final = (None, "", ())
_error_decoder: Final = msgspec.json.Decoder(ErrorBody)


# ---- requests


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that are None or empty are left out of the query.

    `is_safe`: a repeat changes nothing. Any other request is repeated only if it was never sent,
    or was refused before anything was done.
    """

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
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

    def __init__(self, url: str, token: Secret, client: Client | None = None) -> None:
        self._url = base_of(url)
        self._client = client or HttpClient(self._url, _headers(token))
        self._is_closed = False
        self._traces = Traces()
        # Waits outlast a failure only if the server has answered before: its address is right then.
        self.has_answered = False

    def __repr__(self) -> str:
        return f"Rest({self._url!r})"

    async def close(self) -> None:
        self._is_closed = True
        await self._client.close()

    async def fetch(self, request: Request) -> Response:
        """A response of success; any other is raised, after the retries that are allowed."""
        if self._is_closed:
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

    async def _try(self, request: Request) -> "Response | _Refusal":
        try:
            response = await self._client.send(self._message(request), request.timeout_s)
        except RequestFailed as cause:
            may_repeat = request.is_safe or not cause.is_sent
            return _Refusal(Unreachable(f"{self._url}: {cause}"), may_repeat, cause=cause)
        self.has_answered = True
        if response.status in _SUCCESS:
            return response
        refusal = _refusal_of(response)
        again = refusal.retryable and (request.is_safe or response.status == _TOO_MANY)
        return _Refusal(refusal, again, _retry_after(response))

    def _message(self, request: Request) -> Message:
        target, body = request.path, request.body
        query = {name: value for name, value in request.query.items() if value not in _UNSET}
        if query:
            target = f"{target}?{urlencode(query, doseq=True, quote_via=quote)}"
        trace = self._traces.current()
        headers = {TRACEPARENT: trace} if trace else _NO_HEADERS
        return Message(request.method, target, headers, None if body is None else encode(body))


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


def _refusal_of(response: Response) -> FlowFabricError:
    """The error in a response, as the class an engine in this process raises."""
    status = response.status
    try:
        return error_of(_error_decoder.decode(response.content), status)
    except msgspec.MsgspecError:
        # Not a body of our server: most likely a proxy answered.
        text = response.content[:_MAX_BODY].decode(errors="replace")
        unknown = TryLater if status in _BUSY else ApiError
        return unknown(f"HTTP {status}", status=status, raw_body=text)


def _retry_after(response: Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), _LONGEST_RETRY_AFTER_S) if text.isdigit() else 0.0
