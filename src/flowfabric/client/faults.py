"""Errors of a server's answers, as the same classes an engine in this process raises."""

from typing import Final

import httpx
import msgspec

from flowfabric.errors import ApiError, FlowFabricError, HttpError, TryLater, Unreachable
from flowfabric.operations.errors import ErrorBody, error_of

_decoder: Final = msgspec.json.Decoder(ErrorBody)
_BUSY: Final = frozenset({429, 502, 503, 504})
_MAX_BODY: Final = 500


def refusal_of(response: httpx.Response) -> FlowFabricError:
    status = response.status_code
    try:
        return error_of(_decoder.decode(response.content), status)
    except msgspec.MsgspecError:
        # Not our server's words: a proxy in between, most likely.
        unknown = TryLater if status in _BUSY else ApiError
        return unknown(f"HTTP {status}", status=status, raw_body=response.text[:_MAX_BODY])


def fault_of(fault: httpx.HTTPError | httpx.InvalidURL) -> HttpError:
    """A request that got no answer."""
    kind = Unreachable if isinstance(fault, httpx.TransportError) else HttpError
    return kind(f"{type(fault).__name__}: {fault}".rstrip(": "))
