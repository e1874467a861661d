"""What every part of the admin surface is made of."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from flowfabric.client.questions import Question
from flowfabric.client.rest import Rest
from flowfabric.operations import declaration as operations

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
