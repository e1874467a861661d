"""Both sides of a program on one connection to a server: its workers, and what it waits for."""

import msgspec

from flowfabric.client.child_flows import ChildFlows, Counts
from flowfabric.client.ends import Ends
from flowfabric.client.reads import HttpReads
from flowfabric.client.rest import Rest
from flowfabric.client.waiting import HttpWaiter
from flowfabric.core.tokens import Secret


class Client(msgspec.Struct, frozen=True):
    rest: Rest
    waiter: HttpWaiter
    worker_reads: HttpReads


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
    reads = HttpReads(rest, ends, ChildFlows(rest, counts))
    return Client(rest, HttpWaiter(rest, ends), reads)
