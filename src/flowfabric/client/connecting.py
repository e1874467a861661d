"""Both sides of a program on one connection to a server: its worker, and what it waits for."""

import msgspec

from flowfabric.client.ends import Ends
from flowfabric.client.families import ChildFlows, Counts
from flowfabric.client.rest import Rest
from flowfabric.client.waiting import HttpWaiter
from flowfabric.client.worker import HttpWorker
from flowfabric.core.tokens import Secret


class Client(msgspec.Struct, frozen=True):
    rest: Rest
    waiter: HttpWaiter
    worker: HttpWorker


async def connect(url: str, token: Secret) -> Client:
    """Reach the server once, so that a wrong address or token is known now."""
    rest = Rest(url, token)
    try:
        counts = Counts(rest)
        await counts.read()
    except BaseException:
        await rest.close()
        raise
    ends = Ends(rest)
    worker = HttpWorker(rest, ends, ChildFlows(rest, counts))
    return Client(rest, HttpWaiter(rest, ends), worker)
