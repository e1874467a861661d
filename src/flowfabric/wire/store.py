"""Facts about the store and the service."""

import msgspec

from flowfabric.operations.types import Answer


class Partitions(Answer, frozen=True, kw_only=True):
    """How many partitions each family has, so that clients can mint ids."""

    num_flow_partitions: int
    num_budget_partitions: int
    num_quota_partitions: int


class Capabilities(Answer, frozen=True, kw_only=True):
    """What the store says of itself."""

    family: str
    tag: int
    library_version: str
    server_version: str
    interface: int
    layout: int
    durability: str
    wakeup: str
    spread: str
    lane_order: str
    event_order: str
    transactional_submit: bool
    # The store's clock.
    now: int = 0
    partitions: Partitions | None = None
    priority_range: tuple[int, int] = (0, 0)
    limits: dict[str, int] = msgspec.field(default_factory=dict)


class Status(Answer, frozen=True, kw_only=True):
    status: str


class Readiness(Answer, frozen=True, kw_only=True):
    status: str
    failing: list[str]
