"""Health of the service."""

from flowfabric.operations.types import Answer


class Status(Answer, frozen=True, kw_only=True):
    status: str


class Readiness(Answer, frozen=True, kw_only=True):
    status: str
    failing: list[str]
