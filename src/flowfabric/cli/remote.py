"""A server, as far as commands need one: nothing of an engine is loaded for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from flowfabric.client.operations import http_transport
from flowfabric.client.rest import Rest
from flowfabric.client.waiting import Ends, HttpWaiter
from flowfabric.core.tokens import Secret
from flowfabric.fabric.admin import Admin
from flowfabric.fabric.runs import Run
from flowfabric.fabric.submitter import Submitter


class Remote:
    def __init__(self, rest: Rest) -> None:
        self._submitter = Submitter(http_transport(rest), HttpWaiter(rest, Ends(rest)))
        self.admin = Admin(http_transport(rest), self._port)

    async def _port(self) -> Submitter:
        return self._submitter

    def run(self, execution_id: str) -> Run[Any]:
        return Run(execution_id, self._port)


@asynccontextmanager
async def server_at(url: str, token: Secret) -> AsyncIterator[Remote]:
    rest = Rest(url, token)
    try:
        yield Remote(rest)
    finally:
        await rest.close()
