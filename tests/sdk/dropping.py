"""A worker's port whose answers get lost on the way, one at a time."""

import asyncio
from typing import Any

import msgspec

from flowfabric import FlowFabric
from flowfabric.errors import TransportFault
from flowfabric.fabric.connection import Connection


class Dropping:
    """Does what it is asked and, at the n-th call of one method, tells nobody."""

    def __init__(self, inner: Any, method: str, at: int) -> None:
        self._inner = inner
        self.method = method
        self._left = at
        self.lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return _Limits(found, self) if name == "limits" else self.unreliable(name, found)

    def unreliable(self, name: str, found: Any) -> Any:
        if name != self.method:
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            answer = await found(*args, **kwargs)
            self._left -= 1
            if self._left == 0:
                self.lost.set_result(answer)
                raise TransportFault("the answer was lost")
            return answer

        return call


class _Limits:
    """The calls about budgets of the same port."""

    def __init__(self, inner: Any, port: Dropping) -> None:
        self._inner = inner
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return self._port.unreliable(name, getattr(self._inner, name))


async def dropping(fabric: FlowFabric, method: str, at: int) -> tuple[FlowFabric, Dropping]:
    """The same store seen by a program that loses an answer."""
    connection = await fabric.open()
    port = Dropping(connection.worker, method, at)

    async def leave_open() -> None:
        """The store is closed by whoever opened it."""

    async def connect() -> Connection:
        return msgspec.structs.replace(connection, worker=port, close=leave_open)

    return FlowFabric.over(connect, namespace=fabric.namespace), port
