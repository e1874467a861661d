"""Resources: values a worker has and its handlers ask for by type."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec

from flowfabric.errors import ConfigError

_log = logging.getLogger("flowfabric.worker")

Lifetime = Literal["process", "task"]


class MissingResource(LookupError):
    """A handler asks for a type that is not registered."""


class Resource(msgspec.Struct, frozen=True):
    """How one value is made, and for how long it is kept."""

    type_: Any
    make: Callable[[], Any]
    lifetime: Lifetime = "process"


def resource(make: Callable[[], Any], *, lifetime: Lifetime = "process") -> Resource:
    """A resource made by a function, or by a generator that also closes it. The return annotation
    is its type."""
    returned = get_type_hints(make).get("return")
    if returned is None:
        raise ConfigError(f"resource: {make!r} needs a return annotation")
    if inspect.isgeneratorfunction(make) or inspect.isasyncgenfunction(make):
        returned = get_args(returned)[0] if get_args(returned) else None
    if returned is None:
        raise ConfigError(f"resource: {make!r} needs an annotation of the type it yields")
    return Resource(get_origin(returned) or returned, make, lifetime)


class Resources:
    """One value per type; of two registered for one type the later counts."""

    def __init__(self, given: Sequence[Any]) -> None:
        self._known: dict[Any, Resource] = {}
        self._values: dict[Any, Any] = {}
        self._process = AsyncExitStack()
        # Several may want a value first; it is made by one of them.
        self._making: dict[Any, asyncio.Lock] = {}
        for one in given:
            if inspect.isfunction(one):
                one = resource(one)
            if isinstance(one, Resource):
                self._known[one.type_] = one
                self._values.pop(one.type_, None)
            else:
                self._known.pop(type(one), None)
                self._values[type(one)] = one

    async def get(self, type_: Any, task: AsyncExitStack) -> Any:
        """The value of a type; one that lives as long as the task is closed with `task`."""
        if type_ in self._values:
            return self._values[type_]
        known = self._known.get(type_) or self._by_base(type_)
        if known is None:
            name = getattr(type_, "__name__", str(type_))
            raise MissingResource(f"no resource of type {name} is registered with this worker")
        if known.lifetime == "task":
            return await _made(known, task)
        async with self._making.setdefault(known.type_, asyncio.Lock()):
            if known.type_ not in self._values:
                self._values[known.type_] = await _made(known, self._process)
        return self._values[known.type_]

    def _by_base(self, type_: Any) -> Resource | None:
        for value_type in reversed(self._values):
            if isinstance(type_, type) and issubclass(value_type, type_):
                return Resource(value_type, partial(self._values.get, value_type))
        return None

    async def close(self) -> None:
        """Close everything; one that fails is logged, and the others are closed all the same."""
        try:
            await self._process.aclose()
        except Exception:
            _log.exception("a resource could not be closed")


async def _made(known: Resource, stack: AsyncExitStack) -> Any:
    make = known.make
    if inspect.isasyncgenfunction(make):
        opened: Callable[[], Any] = asynccontextmanager(
            cast(Callable[[], AsyncIterator[Any]], make)
        )
        return await stack.enter_async_context(opened())
    if inspect.isgeneratorfunction(make):
        return stack.enter_context(contextmanager(cast(Callable[[], Iterator[Any]], make))())
    value = make()
    return await value if inspect.isawaitable(value) else value
