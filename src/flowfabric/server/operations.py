"""Declared operations as routes: read the arguments, authorize the caller, run the use case, write
the answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from flowfabric.engine.audit import audit
from flowfabric.errors import FlowFabricError, Forbidden, NotFound
from flowfabric.operations.declaration import BODY_BYTES, Operation
from flowfabric.operations.types import STORE
from flowfabric.server.call import Call
from flowfabric.server.replies import JSON_ONLY, NO_STORE, NOTHING, Reply, reply_of
from flowfabric.server.route import REQUEST_S, Handler, Route, path_readers

# Members that an audit line has besides the ids of the path: no payloads, no secrets.
_AUDITED: Final = ("namespace", "reason", "state", "source")
# Keywords of a use case that come from the call, not from its arguments.
_CONTEXT: Final[Mapping[str, Callable[[Call[Any, Any]], Any]]] = {
    "visible": lambda call: call.caller.namespaces,
    "trace": lambda call: call.traceparent,
    "caller": lambda call: call.caller.name,
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
    read, encode, terms = _reader(declared), declared.answers.encode, declared.terms
    headers = (*JSON_ONLY, NO_STORE) if terms.no_store else JSON_ONLY
    run = _batch(declared) if declared.owners.batch else _use_case(declared)

    async def handle(call: Call[Any, Any]) -> Reply:
        arguments = read(call)
        if call.caller.namespaces is not None:
            await authorize(declared, call, arguments)
        answer = await run(call, arguments)
        if terms.audit:
            _audit(declared, call, arguments)
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


def _reader(declared: Operation[..., Any]) -> Callable[[Call[Any, Any]], dict[str, Any]]:
    """How the arguments of the use case are read off a call."""
    whole, members, path_names = declared.whole, declared.members, declared.path_names
    if declared.body is None and declared.query is None:
        return lambda call: dict(call.path)
    if declared.body is None:
        return lambda call: {**call.path, **_taken(call.query, whole, members)}
    if not path_names:
        return lambda call: _taken(call.body, whole, members)

    def arguments(call: Call[Any, Any]) -> dict[str, Any]:
        for name in path_names:
            call.require_same_id(name, getattr(call.body, name))
        return {**call.path, **_taken(call.body, whole, members)}

    return arguments


def _taken(request: Any, whole: str, members: Iterable[str]) -> dict[str, Any]:
    return {whole: request} if whole else {name: getattr(request, name) for name in members}


# ---- authorization


async def authorize(
    declared: Operation[..., Any], call: Call[Any, Any], arguments: Mapping[str, Any]
) -> None:
    if declared.owners.owner == STORE:
        raise Forbidden(f"{declared.name} needs a token of all namespaces")
    await call.engine.owners.check(declared.owners.of(arguments), call.caller.namespaces)


# ---- running the use case

_Run = Callable[[Call[Any, Any], dict[str, Any]], Any]


def _use_case(declared: Operation[..., Any]) -> _Run:
    context = [(name, _CONTEXT[name]) for name in declared.context]
    waits = declared.terms.waits

    async def run(call: Call[Any, Any], arguments: dict[str, Any]) -> Any:
        given = {name: look(call) for name, look in context}
        work = call.engine.use_case(declared)(**arguments, **given)
        if not waits or not declared.member(arguments, waits):
            return await work
        async with call.cancellable_wait() as wait:
            return await wait.run(work)

    return run


def _batch(declared: Operation[..., Any]) -> _Run:
    """Runs the items the caller may touch; each other item is answered with its own error."""
    run, batch, answers = _use_case(declared), declared.owners.batch, declared.answers

    async def run_allowed(call: Call[Any, Any], arguments: dict[str, Any]) -> Any:
        items = declared.member(arguments, batch)
        refused = await _refused(declared, call, items)
        if not refused:
            return await run(call, arguments)
        allowed = [one for at, one in enumerate(items) if at not in refused]
        if not allowed and answers.is_list:
            return list(refused.values())
        answer = await run(call, arguments | {batch: allowed})
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
    declared: Operation[..., Any], call: Call[Any, Any], arguments: Mapping[str, Any]
) -> None:
    facts = {name: declared.member(arguments, name) for name in (*call.path, *_AUDITED)}
    given = {name: str(one) for name, one in facts.items() if one not in (None, "")}
    audit(declared.terms.audit, logging.INFO, **given, caller=call.caller.name)
