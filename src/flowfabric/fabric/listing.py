"""Executions that a program looks for."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal, TypedDict

from flowfabric.fabric.submitter import MOST_PER_PAGE
from flowfabric.operations.execution_queries import Search
from flowfabric.worker.durations import instant_ms


class Listing(TypedDict, total=False):
    """What an execution must match, each by itself; of several states one, of several tags all."""

    state: str | Iterable[str]
    kind: str
    lane: str
    tags: Mapping[str, str]
    flow: str
    worker: str
    since: datetime | float
    before: datetime | float
    oldest_first: bool


def search_of(query: Listing, namespace: str) -> Search:
    state, since, before = query.get("state", ()), query.get("since"), query.get("before")
    order: Literal["created_asc", "created_desc"] = (
        "created_asc" if query.get("oldest_first") else "created_desc"
    )
    return Search(
        namespace=namespace,
        state=(state,) if isinstance(state, str) else tuple(state),
        kind=query.get("kind", ""),
        lane=query.get("lane", ""),
        tag=tuple(f"{key}={value}" for key, value in query.get("tags", {}).items()),
        flow_id=query.get("flow", ""),
        worker=query.get("worker", ""),
        created_after=0 if since is None else instant_ms(since, "since"),
        created_before=0 if before is None else instant_ms(before, "before"),
        order=order,
        limit=MOST_PER_PAGE,
    )
