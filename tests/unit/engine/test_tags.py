"""What is wrong with tags before an execution is looked for."""

from typing import Any

import pytest

from flowfabric.engine.executions.operators import Operators
from flowfabric.errors import InvalidInput, InvalidTagKey
from tests.unit.engine.nostore import deps_without_store

ID = "{fp:7}:00000000-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    "tags",
    [{}, None, "app.a=1", [("app.a", "1")], {"app.a": None}, {"app.a": 1}, {"a.b": "\ud800"}],
)
async def test_pairs_must_be_there_and_have_values(tags: Any) -> None:
    with pytest.raises(InvalidInput, match="tags: "):
        await Operators(deps_without_store()).set_execution_tags(ID, tags)


@pytest.mark.parametrize("key", ["nodot", "App.x", "app."])
async def test_a_malformed_key_is_not_read(key: str) -> None:
    with pytest.raises(InvalidTagKey):
        await Operators(deps_without_store()).get_execution_tag(ID, key)


async def test_a_malformed_id_is_not_read() -> None:
    with pytest.raises(InvalidInput, match="execution_id"):
        await Operators(deps_without_store()).get_execution_tag("x", "app.a")
    with pytest.raises(InvalidInput, match="execution_id"):
        await Operators(deps_without_store()).set_execution_tag("x", "app.a", "1")
