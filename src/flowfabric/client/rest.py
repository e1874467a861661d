"""One connection to a server: questions out, typed answers in, repeated where that is harmless."""

import asyncio
import random
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

import httpx
import msgspec

from flowfabric.client.addresses import base_of, checked_token
from flowfabric.client.faults import fault_of, refusal_of
from flowfabric.client.pools import Pools
from flowfabric.client.requests import TIMEOUT_S, Request
from flowfabric.core.backoff import Backoff
from flowfabric.core.tokens import Secret
from flowfabric.errors import FlowFabricError, HttpError, MalformedResponse
from flowfabric.operations.answers import encode
from flowfabric.telemetry.traces import TRACEPARENT, Traces

T = TypeVar("T")

CONNECT_S: Final = 10.0
_TRIES: Final = 4
BACKOFF: Final = Backoff(0.1, 2.0)
_LONGEST_RETRY_AFTER_S: Final = 5.0
_TOO_MANY: Final = 429


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
        # Whether the server has ever said something: only then is its silence likely to pass.
        self.has_answered = False

    def __repr__(self) -> str:
        return f"Rest({self._url!r})"

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(self, request: Request, answer: type[T]) -> T:
        """The answer, decoded; an answer without a body is an error."""
        found = await self.ask_maybe(request, answer)
        if found is None:
            raise MalformedResponse(f"{request.path}: an empty answer")
        return found

    async def ask_maybe(self, request: Request, answer: type[T]) -> T | None:
        """As `ask`, None when the server had nothing to say."""
        response = await self.fetch(request)
        if response.status_code == httpx.codes.NO_CONTENT:
            return None
        return decoded(response, answer)

    async def fetch(self, request: Request) -> httpx.Response:
        """The raw answer of success; any other is raised, after as many tries as make sense."""
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
            fault = fault_of(cause)
            again = fault.retryable and (request.is_safe or _is_unsent(cause))
            return _Refusal(fault, again, cause=cause)
        self.has_answered = True
        if response.is_success:
            return response
        refusal = refusal_of(response)
        again = refusal.retryable and (request.is_safe or response.status_code == _TOO_MANY)
        return _Refusal(refusal, again, _retry_after(response))

    def _own_headers(self, *, has_body: bool) -> dict[str, str]:
        headers = {"content-type": "application/json"} if has_body else {}
        trace = self._traces.current()
        return headers | {TRACEPARENT: trace} if trace else headers

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


def _headers(token: Secret) -> dict[str, str]:
    if not token:
        return {}
    return {"authorization": f"Bearer {checked_token(token.reveal()).reveal()}"}


_UNSET: Final = (None, "", ())


class _Refusal:
    """A try that came to nothing, and whether another may be made."""

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


def decoded(response: httpx.Response, answer: type[T]) -> T:
    try:
        found: T = _decoder(cast(Any, answer)).decode(response.content)
    except msgspec.MsgspecError as fault:
        raise MalformedResponse(f"{response.request.url.path}: {fault}") from fault
    return found


@lru_cache(maxsize=256)
def _decoder(answer: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(answer)


def _is_unsent(fault: Exception) -> bool:
    return isinstance(fault, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def _retry_after(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), _LONGEST_RETRY_AFTER_S) if text.isdigit() else 0.0
