"""Whoever is limited to a namespace is refused whatever a request names that belongs to another."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from flowfabric.client.operations import request_of
from flowfabric.core.tokens import WaitpointToken, token_to_text
from flowfabric.operations.declaration import Operation
from flowfabric.operations.nouns import DECLARED
from flowfabric.operations.types import STORE, UUID_PATTERN, Owned
from tests.server.conftest import Serve
from tests.server.driving import Served
from tests.server.samples import UUID
from tests.server.test_budgets import make
from tests.server.tokens import bearer, token

OPERATIONS = DECLARED


def sample(kind: Any, things: dict[str, str]) -> Any:
    """Something of a type; where it names a thing, one of these."""
    if get_origin(kind) is Annotated:
        owned = [one.kind for one in kind.__metadata__ if isinstance(one, Owned)]
        if owned:
            return things[owned[0]]
        if any(getattr(one, "pattern", None) == UUID_PATTERN for one in kind.__metadata__):
            return UUID
        inner = get_args(kind)[0]
        if get_origin(inner) is Sequence:
            return [sample(get_args(inner)[0], things)]
        if any(isinstance(one, msgspec.Meta) and one.pattern for one in kind.__metadata__):
            return UUID
        return sample(inner, things)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        return kind(
            **{
                field.name: sample(hints[field.name], things)
                for field in msgspec.structs.fields(kind)
                if field.required or names_a_thing(hints[field.name])
            }
        )
    if get_origin(kind) is dict and get_args(kind)[1] is str:
        return {"app.team": "red"}
    if get_origin(kind) is tuple:
        return (sample(get_args(kind)[0], things),)
    if get_origin(kind) in (Union, UnionType):
        return sample(get_args(kind)[0], things)
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if kind is WaitpointToken:
        return WaitpointToken("k1:0")
    plain: dict[Any, Any] = {
        str: "x",
        int: 1_000,
        dict: {"tokens": 1},
        Mapping: {"tokens": 1},
        Sequence: (),
        Collection: ("x",),
        bytes: b"",
    }
    return plain[get_origin(kind) or kind]


def names_a_thing(kind: Any) -> bool:
    return any(isinstance(one, Owned) for one in getattr(kind, "__metadata__", ()))


async def new_quota(served: Served, namespace: str) -> str:
    body = {"max_concurrent": 1, "namespace": namespace}
    return str((await served.done("POST /v1/quotas", body))["quota_policy_id"])


async def new_flow(served: Served, namespace: str) -> str:
    body = {"flow_kind": "etl", "namespace": namespace}
    return str((await served.done("POST /v1/flows", body))["flow_id"])


def arguments(declared: Operation[..., Any], things: dict[str, str]) -> dict[str, Any]:
    needed = (
        name
        for name, one in declared.signature.parameters.items()
        if one.default is inspect.Parameter.empty or names_a_thing(declared.parameters[name])
    )
    return {name: sample(declared.parameters[name], things) for name in needed}


async def status(served: Served, declared: Operation[..., Any], things: dict[str, str]) -> int:
    question = request_of(declared, arguments(declared, things), is_safe=True)
    body = (
        msgspec.to_builtins(question.body, enc_hook=token_to_text)
        if question.body is not None
        else None
    )
    line = f"{question.method} {question.path}"
    return (await served.call(line, body, params=question.query)).status_code


@pytest.mark.parametrize("declared", OPERATIONS, ids=lambda one: one.name)
async def test_what_is_of_another_namespace_is_refused(
    declared: Operation[..., Any], serve: Serve
) -> None:
    mine = token("mine", "admin", namespaces=frozenset({"mine"}))
    served = await serve(tokens=(token("all", "admin"), mine))
    served.headers = bearer("all")
    own, foreign = [
        {
            "namespace": name,
            "execution": await served.submit(namespace=name),
            "budget": await make(served, namespace=name),
            "quota": await new_quota(served, name),
            "flow": await new_flow(served, name),
        }
        for name in ("mine", "theirs")
    ]
    served.headers = bearer("mine")
    named = arguments(declared, foreign)
    in_items: set[Owned] = set()
    for item in named.get(declared.owners.batch, ()):
        in_items |= {one for one, _ in declared.owners.of_item(item)}
    owned = in_items | {one for one, _ in declared.owners.of(named)}
    before = await shown(served, foreign)
    for one in owned:
        answer = await status(served, declared, {**own, one.kind: foreign[one.kind]})
        expected = {refusal(declared, other, in_items) for other in owned if other.kind == one.kind}
        assert answer in expected, one
    assert await shown(served, foreign) == before
    refused = await status(served, declared, own) == 403
    assert refused is (declared.terms.owner == STORE)


async def shown(served: Served, things: dict[str, str]) -> list[Any]:
    """What a caller who may see everything is shown of these things."""
    paths = [f"/v1/{kind}s/{things[kind]}" for kind in ("execution", "flow", "budget")]
    return [await served.done(f"GET {path}", headers=bearer("all")) for path in paths]


def refusal(declared: Operation[..., Any], owned: Owned, in_items: set[Owned]) -> int:
    if owned in in_items:
        return 200
    if owned.kind == "namespace":
        return 403
    return 409 if owned.is_new else 404


def test_an_operation_that_does_not_say_whose_it_is_cannot_be_declared() -> None:
    from flowfabric.operations.declaration import ADMIN, operation

    with pytest.raises(TypeError, match="no member names an owner"):

        @operation("POST /v1/things", ADMIN)
        async def make_thing(self: Any, name: str) -> None:
            """Nobody's."""

    with pytest.raises(TypeError, match="a bare str"):

        @operation("POST /v1/things/{budget_id}", ADMIN)
        async def change_thing(self: Any, budget_id: str) -> None:
            """A bare id."""
