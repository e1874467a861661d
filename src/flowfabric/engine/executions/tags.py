"""Tags of executions: pairs of text their users search and filter by."""

from collections.abc import Mapping

from flowfabric.core.bounds import MAX_TAGS, check_number
from flowfabric.core.ids import parse_execution_id, utf8_size
from flowfabric.core.plan import Plan
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import set_tags
from flowfabric.core.tags import check_tag_keys
from flowfabric.engine.deps import Deps
from flowfabric.errors import InvalidInput
from flowfabric.operations import executions as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.executions import TagsUpdated


class Tags:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @implements(declared.Executions.set_execution_tags)
    async def set_execution_tags(
        self, execution_id: str, tags: Mapping[str, object]
    ) -> TagsUpdated:
        """Write all pairs over what is there; how many were given. There is no delete."""
        given = given_tags(tags)

        def decision(record: Record, _: int) -> Plan:
            check_tag_keys(given)
            return set_tags(record, given)

        await self._deps.decide(execution_id, decision)
        return TagsUpdated(len(given))

    async def set_execution_tag(self, execution_id: str, key: str, value: str) -> TagsUpdated:
        return await self.set_execution_tags(execution_id, {key: value})

    async def get_execution_tag(self, execution_id: str, key: str) -> str | None:
        """The tag's value; None when the tag or the whole execution is missing."""
        parse_execution_id(execution_id, self._deps.counts)
        check_tag_keys((key,))
        seen = await self._deps.store.read(execution_id)
        return seen.record.tags.get(key) if seen else None


def given_tags(tags: object) -> dict[str, str]:
    """At least one pair, each with a value; whether the keys will do is asked later."""
    if not isinstance(tags, Mapping):
        raise InvalidInput(f"tags: expected an object, got {type(tags).__name__}")
    if not tags:
        raise InvalidInput("tags: expected at least one")
    check_number(tags, "tags", MAX_TAGS)
    for key, value in tags.items():
        if not isinstance(value, str):
            got = "nothing" if value is None else type(value).__name__
            raise InvalidInput(f"tags: {key}: expected a string, got {got}")
        if utf8_size(value) is None:
            raise InvalidInput(f"tags: {key}: not encodable as UTF-8")
    return dict(tags)
