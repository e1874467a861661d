"""What every part of the admin surface is made of."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from flowfabric.client.questions import Question
from flowfabric.client.rest import Rest
from flowfabric.operations import declaration as operations
from flowfabric.operations.types import Params

T = TypeVar("T")


class Asking(operations.AsyncCalls):
    """Opens its connection with the first question."""

    def __init__(self, reach: Callable[[], Awaitable[Rest]], bind: operations.Transport) -> None:
        super().__init__(bind)
        self._reach = reach

    async def _ask(self, question: Question, answer: type[T]) -> T:
        return await (await self._reach()).ask(question, answer)

    async def _ask_union(self, question: Question, answer: Any) -> Any:
        """As `_ask`, for an answer that is one of several types."""
        return await (await self._reach()).ask(question, answer)

    async def _fetch(self, question: Question) -> bytes:
        return (await (await self._reach()).fetch(question)).content


def asked(path: str, query: Params) -> Question:
    """A read with the parameters that were given."""
    return Question(method="GET", path=path, query=params_of(query))


def params_of(query: Params) -> dict[str, Any]:
    """Parameters as they are spelled in a URL; those at their defaults are left out."""
    given = {
        field.encode_name: getattr(query, field.name)
        for field in msgspec.structs.fields(query)
        if getattr(query, field.name) != field.default
    }
    return {name: _spelled(value) for name, value in given.items()}


def _spelled(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return list(value) if isinstance(value, tuple) else value
