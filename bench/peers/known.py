"""Who takes part, and what has to be known to compare fairly."""

import msgspec


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    # What its environment holds; FlowFabric runs where the bench does.
    packages: tuple[str, ...] = ()
    stores_results: bool
    note: str


OURS = Peer(
    name="flowfabric",
    stores_results=True,
    note="leases with fencing, attempts and events stored; acknowledged after the run",
)
PEERS = (
    Peer(
        name="saq",
        packages=("saq[hiredis]>=0.26,<0.27", "typing-extensions", "uvloop"),
        stores_results=True,
        note="asyncio, 64 at once; a stuck job is swept after its timeout",
    ),
    Peer(
        name="dramatiq",
        packages=("dramatiq[redis]>=2.2,<3", "hiredis"),
        stores_results=False,
        note="eight threads; acknowledged after the run",
    ),
    Peer(
        name="taskiq",
        packages=("taskiq>=0.13,<0.14", "taskiq-redis>=1.2,<2", "hiredis", "uvloop"),
        stores_results=True,
        note="asyncio, 64 at once, stream broker; acknowledged after the result is stored",
    ),
    Peer(
        name="celery",
        packages=("celery[redis]>=5.7,<6", "hiredis"),
        stores_results=True,
        note="solo pool; by default acknowledged before the run, so a crash loses the task",
    ),
    Peer(
        name="rq",
        packages=("rq>=2.12,<3", "hiredis"),
        stores_results=True,
        note="its worker that does not fork; the usual one forks for each task",
    ),
)
# The same, on one Postgres server.
ON_POSTGRES = (
    Peer(
        name="pgqueuer",
        packages=("pgqueuer[asyncpg]>=1.6,<2", "uvloop"),
        stores_results=False,
        note="asyncio, batches of 64; statuses are buffered, and deleted rows leave a count behind",
    ),
    Peer(
        name="procrastinate",
        packages=("procrastinate>=3.10,<4", "uvloop"),
        stores_results=False,
        note="asyncio, 64 at once; events are stored by triggers",
    ),
    Peer(
        name="dbos",
        packages=("dbos>=3.4,<4",),
        stores_results=True,
        note="a workflow for each task, 64 at once",
    ),
)
