"""Mechanism `list`."""

from flowfabric.backend.types import ListRequest, Page
from flowfabric.backend.valkey.calls import Calls
from flowfabric.errors import Unavailable


class SearchMechanism:
    _calls: Calls

    async def search(self, request: ListRequest) -> Page:
        raise Unavailable("search")
