"""One connection to a server, for those who submit and for workers."""

import msgspec

from flowfabric.client.ends import Ends
from flowfabric.client.families import ChildFlows, Counts
from flowfabric.client.reads import HttpReads
from flowfabric.client.rest import Rest
from flowfabric.client.submitter import HttpSubmitter
from flowfabric.core.tokens import Secret


class Client(msgspec.Struct, frozen=True):
    rest: Rest
    submitter: HttpSubmitter
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
    return Client(rest, HttpSubmitter(rest, ends), reads)
