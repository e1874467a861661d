"""Declared operations as routes: read the arguments, authorize the caller, run the use case, write
the answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

import msgspec

from flowfabric.core.sealing import seal, unseal
from flowfabric.engine.audit import audit
from flowfabric.errors import FlowFabricError, Forbidden, InvalidInput, NotFound
from flowfabric.operations.declaration import BODY_BYTES, Operation
from flowfabric.operations.types import STORE, VISIBLE, Page
from flowfabric.operations.workers import Workers
from flowfabric.server.call import Call
from flowfabric.server.replies import JSON_ONLY, NO_STORE, NOTHING, Reply, reply_of
from flowfabric.server.route import REQUEST_S, Handler, Route, path_readers
from flowfabric.telemetry.operation_spans import ids_of

# Members that an audit line has besides the ids of the path: no payloads, no secrets.
_AUDITED: Final = ("namespace", "reason", "state", "source")
# Ids that an answer names because the call made them.
_MADE: Final = ("budget_id", "quota_policy_id")
# Keywords of a use case that come from the call, not from its arguments.
_CONTEXT: Final[Mapping[str, Callable[[Call[Any, Any]], Any]]] = {
    "visible": attrgetter("caller.namespaces"),
    "trace": attrgetter("traceparent"),
    "caller": attrgetter("caller.name"),
    "share": attrgetter("share"),
    "scopes": attrgetter("caller.scopes"),
    "may_claim": lambda call: not call.services.drain.has_begun,
}


_Handle = Callable[[Call[Any, Any]], Awaitable[Reply]]


def route_of(declared: Operation[..., Any]) -> Route:
    terms = declared.terms
    return Route(
        method=declared.method,
        path=declared.path,
        handler=_handler(declared),
        scopes=terms.scopes,
        body=declared.body,
        query=declared.query,
        answers=declared.answers.by_status,
        limit=BODY_BYTES[terms.size],
        timeout_s=None if terms.waits else terms.timeout_s or REQUEST_S,
        raises=terms.raises,
        name=declared.name,
        readers=path_readers(declared),
    )


def _handler(declared: Operation[..., Any]) -> Handler:
    encode, terms, whole = declared.answers.encode, declared.terms, declared.whole
    is_whole_body = bool(whole) and declared.body is not None and not declared.path_names
    headers = (*JSON_ONLY, NO_STORE) if terms.no_store else JSON_ONLY
    context = [(name, _CONTEXT[name]) for name in declared.context]
    run = _batch(declared) if declared.owners.batch else _waiting(declared)
    is_plain = not declared.owners.batch and not terms.waits
    has_hidden_places = is_sealed(declared)

    async def handle(call: Call[Any, Any]) -> Reply:
        arguments = {whole: call.body} if is_whole_body else _arguments(declared, call)
        if call.services.traces.is_on:
            call.services.traces.note(ids_of(declared, arguments))
        seals = False
        if call.caller.namespaces is not None:
            await authorize(declared, call, arguments)
            if seals := has_hidden_places:
                arguments = await _with_open_cursor(declared, call, arguments)
        given = {name: look(call) for name, look in context}
        if is_plain:
            answer = await call.engine.use_case(declared)(**arguments, **given)
        else:
            answer = await run(call, arguments, given)
        if seals:
            answer = await _with_sealed_cursor(declared, call, answer)
        if terms.audit:
            _audit(declared, call, arguments, answer)
        return NOTHING if answer is None else Reply(*encode(answer), headers)

    chosen = _guarded(declared, handle) if terms.is_secret else handle
    chosen.__doc__ = declared.summary
    return chosen


def _guarded(declared: Operation[..., Any], handle: _Handle) -> _Handle:
    """Refuses callers who did not have to show who they are, and keeps answers out of caches."""

    async def guarded(call: Call[Any, Any]) -> Reply:
        if not call.services.tokens.are_needed:
            raise Forbidden(f"{declared.name} needs a server with an API token")
        try:
            reply = await handle(call)
        except NotFound as fault:
            reply = reply_of(fault)
        return Reply(reply.status, reply.body, (*reply.headers, NO_STORE))

    return guarded


# ---- arguments


def _arguments(declared: Operation[..., Any], call: Call[Any, Any]) -> dict[str, Any]:
    """The arguments of the use case, from the path and from the body or the query."""
    request = call.query
    if declared.body is not None:
        request = call.body
        _check_same_ids(call, declared.path_names)
    if declared.whole:
        return {**call.path, declared.whole: request}
    return call.path | {name: getattr(request, name) for name in declared.members}


def _check_same_ids(call: Call[Any, Any], names: Iterable[str]) -> None:
    """An id that the body repeats must be the one of the path."""
    for name in names:
        if getattr(call.body, name) not in (None, call.path[name]):
            raise InvalidInput(f"path {name} does not match body {name}")


# ---- authorization


async def authorize(
    declared: Operation[..., Any], call: Call[Any, Any], arguments: Mapping[str, Any]
) -> None:
    if declared.owners.owner == STORE:
        raise Forbidden(f"{declared.name} needs a token of all namespaces")
    await call.engine.owners.check(declared.owners.of(arguments), call.caller.namespaces)


# ---- cursors of callers who may not see everything


def is_sealed(declared: Operation[..., Any]) -> bool:
    """Whether a page may stop at something that its caller may not see. What waits reads the event
    log, whose cursors are places in the log and name nothing."""
    is_visible = declared.terms.owner == VISIBLE and not declared.terms.waits
    return is_visible and declared.takes("cursor")


async def _with_open_cursor(
    declared: Operation[..., Any], call: Call[Any, Any], arguments: dict[str, Any]
) -> dict[str, Any]:
    sealed = declared.member(arguments, "cursor")
    if not sealed:
        return arguments
    cursor = unseal(await call.engine.keys.ring(), declared.name, sealed)
    if not declared.whole:
        return arguments | {"cursor": cursor}
    query = msgspec.structs.replace(arguments[declared.whole], cursor=cursor)
    return arguments | {declared.whole: query}


async def _with_sealed_cursor(
    declared: Operation[..., Any], call: Call[Any, Any], page: Page[Any]
) -> Page[Any]:
    if not page.next_cursor:
        return page
    cursor = seal(await call.engine.keys.ring(), declared.name, page.next_cursor)
    return msgspec.structs.replace(page, next_cursor=cursor)


# ---- running the use case

_Run = Callable[[Call[Any, Any], dict[str, Any], dict[str, Any]], Any]


def _waiting(declared: Operation[..., Any]) -> _Run:
    """Runs a use case that may wait; it ends when the client disconnects or the server drains."""
    waits = declared.terms.waits

    async def run(call: Call[Any, Any], arguments: dict[str, Any], given: dict[str, Any]) -> Any:
        use_case = call.engine.use_case(declared)
        if not waits or not declared.member(arguments, waits):
            return await use_case(**arguments, **given)
        # A wait for work must not keep a cancel from arriving.
        is_watch = declared.name == Workers.watch.name
        pool = call.services.watches if is_watch else call.services.long_polls
        with pool.of(call.share):
            async with call.cancellable_wait() as wait:
                return await wait.run(use_case(**arguments, **given))

    return run


def _batch(declared: Operation[..., Any]) -> _Run:
    """Runs the items the caller may touch; each other item is answered with its own error."""
    run, batch, answers = _waiting(declared), declared.owners.batch, declared.answers

    async def run_allowed(
        call: Call[Any, Any], arguments: dict[str, Any], given: dict[str, Any]
    ) -> Any:
        items = declared.member(arguments, batch)
        refused = await _refused(declared, call, items)
        if not refused:
            return await run(call, arguments, given)
        allowed = [one for at, one in enumerate(items) if at not in refused]
        if not allowed and answers.is_list:
            return list(refused.values())
        answer = await run(call, arguments | {batch: allowed}, given)
        done = iter(answers.items(answer))
        merged = [refused[at] if at in refused else next(done) for at in range(len(items))]
        return answers.with_items(answer, merged)

    return run_allowed


async def _refused(
    declared: Operation[..., Any], call: Call[Any, Any], items: Iterable[Any]
) -> dict[int, FlowFabricError]:
    visible = call.caller.namespaces
    if visible is None:
        return {}
    check = call.engine.owners.check
    found = await asyncio.gather(
        *(check(declared.owners.of_item(one), visible) for one in items), return_exceptions=True
    )
    for fault in found:
        if isinstance(fault, BaseException) and not isinstance(fault, FlowFabricError):
            raise fault
    return {at: one for at, one in enumerate(found) if isinstance(one, FlowFabricError)}


def _audit(
    declared: Operation[..., Any], call: Call[Any, Any], arguments: Mapping[str, Any], answer: Any
) -> None:
    facts = {name: declared.member(arguments, name) for name in (*call.path, *_AUDITED)}
    facts |= {name: getattr(answer, name, None) for name in _MADE}
    given = {name: str(one) for name, one in facts.items() if one not in (None, "")}
    audit(declared.terms.audit, logging.INFO, **given, caller=call.caller.name)
