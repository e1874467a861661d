"""Lanes: their state, and what waits in them."""

from typing import Annotated

import msgspec

from flowfabric.operations.types import Answer, Body, Params, one_of

LaneState = Annotated[str, one_of("active", "paused", "draining", "disabled")]


class LanesQuery(Params, frozen=True, kw_only=True):
    namespace: str = "default"
    cursor: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class Lane(Answer, frozen=True, kw_only=True):
    namespace: str
    lane_id: str
    state: str
    lane_shards: int


class Lanes(Answer, frozen=True, kw_only=True):
    lanes: list[Lane]
    next_cursor: str | None


class SetLane(Body, frozen=True, kw_only=True):
    """What is not given stays as it is."""

    namespace: str = "default"
    state: LaneState | None = None
    lane_shards: Annotated[int, msgspec.Meta(description="1 to 256")] | None = None


class QueuesQuery(Params, frozen=True, kw_only=True):
    namespace: str = "default"


class Queue(Answer, frozen=True, kw_only=True):
    """What waits for workers with these capabilities; `oldest_waiting_ms` tells how long the first
    of it has been there."""

    requirement_set: str
    capabilities: list[str]
    depth: int
    oldest_waiting_ms: int


class Queues(Answer, frozen=True, kw_only=True):
    state: str
    queues: list[Queue]
