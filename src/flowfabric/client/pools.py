"""Connections to a server, in small pools: a pool looks at all it has before every request."""

from typing import Final

import httpx

_LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=None)
# So many requests wait for their answers in one pool before there is a further one.
_MOST: Final = 8


class Pools(httpx.AsyncBaseTransport):
    def __init__(self) -> None:
        self._trust = httpx.create_ssl_context(trust_env=False)
        self._pools: list[_Pool] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        pool = next((one for one in self._pools if one.waiting < _MOST), None) or self._grown()
        pool.waiting += 1
        try:
            return await pool.transport.handle_async_request(request)
        finally:
            pool.waiting -= 1

    def _grown(self) -> "_Pool":
        transport = httpx.AsyncHTTPTransport(verify=self._trust, limits=_LIMITS, trust_env=False)
        self._pools.append(_Pool(transport))
        return self._pools[-1]

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.transport.aclose()


class _Pool:
    __slots__ = ("transport", "waiting")

    def __init__(self, transport: httpx.AsyncHTTPTransport) -> None:
        self.transport = transport
        self.waiting = 0
