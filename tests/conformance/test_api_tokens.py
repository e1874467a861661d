"""API tokens made at run time: who may make, see and revoke which, and what is stored of them."""

import asyncio
from typing import Any

import pytest

from flowfabric.backend.types import ConfigPut
from flowfabric.core.api_tokens import MOST_OF_A_TENANT, MOST_TOKENS, ApiToken, write_tokens
from flowfabric.core.scopes import SCOPES, granted
from flowfabric.core.tokens import token_digest
from flowfabric.engine import engine_on
from flowfabric.engine.api_tokens import ApiTokens
from flowfabric.errors import Conflict, FlowFabricError, Forbidden, InvalidInput, NotFound
from flowfabric.operations.tokens import NewToken, TokenCreated, Tokens
from tests.conformance.driver import Driver, refused, stranger
from tests.proofs import proves

ROOT: dict[str, Any] = {"caller": "root"}
OF_A = frozenset({"a"})
SEES_A: dict[str, Any] = {"visible": OF_A}
ADMIN_OF_A: dict[str, Any] = {
    "visible": OF_A,
    "scopes": granted(frozenset({"admin"}), OF_A),
    "caller": "ann",
}


def new(name: str = "ci", *scopes: Any, **fields: Any) -> NewToken:
    return NewToken(name=name, scopes=scopes or ("read",), **fields)


def names(tokens: ApiTokens) -> set[str]:
    return {one.name for one in tokens.known.values()}


@proves(Tokens.create_token)
async def test_a_token_is_told_once_and_stored_as_its_digest(driver: Driver) -> None:
    tokens = driver.engine.api_tokens
    assert not tokens.are_needed
    made = await tokens.create_token(new("ci", "read", "submit", namespaces=("b", "a")))
    assert made.name == "ci"
    assert len(made.token) >= 43
    assert made.token not in repr(made)
    known = tokens.known[token_digest(made.token)]
    assert known.scopes == {"read", "submit"}
    assert known.namespaces == frozenset({"a", "b"})
    (stored,) = await driver.engine.deps.store.backend.config_get(["tokens"])
    assert stored is not None
    assert made.token.encode() not in stored.body
    assert made.token.removeprefix("ff_").encode() not in stored.body


async def test_another_process_sees_a_token_and_its_end(driver: Driver) -> None:
    tokens, other = driver.engine.api_tokens, ApiTokens(driver.engine.deps)
    assert await other.refresh() == 0
    assert not other.are_needed
    made = await tokens.create_token(new())
    assert await other.refresh() == 1
    await tokens.revoke_token(made.token_id)
    assert tokens.known == {}
    assert await other.refresh() == 0
    # Whoever made a token wants callers to show one.
    assert other.are_needed


async def test_a_token_expires_by_the_clock_of_the_store(driver: Driver) -> None:
    tokens = driver.engine.api_tokens
    made = await tokens.create_token(new(expires_in_ms=1_000))
    assert made.expires_at == driver.clock() + 1_000
    driver.clock.advance(999)
    assert await tokens.refresh() == 1
    driver.clock.advance(1)
    assert await tokens.refresh() == 0
    assert (await tokens.create_token(new())).name == made.name


@proves(Tokens.list_tokens)
async def test_tokens_are_listed_by_id_without_their_texts(driver: Driver) -> None:
    tokens = driver.engine.api_tokens
    made = [await tokens.create_token(new(f"t{n}"), **ROOT) for n in range(3)]
    first = await tokens.list_tokens(limit=2)
    second = await tokens.list_tokens(first.next_cursor, 2)
    shown = [*first.items, *second.items]
    assert [one.token_id for one in shown] == sorted(one.token_id for one in made)
    assert second.next_cursor == ""
    assert {one.created_by for one in shown} == {"root"}
    assert {one.created_at for one in shown} == {driver.clock()}
    assert not any(one.token in repr(shown) for one in made)


@proves(Tokens.revoke_token)
async def test_an_admin_of_some_namespaces_sees_and_revokes_only_its_own(driver: Driver) -> None:
    tokens = driver.engine.api_tokens
    of_all = await tokens.create_token(new("of all"))
    of_b = await tokens.create_token(new("of b", namespaces=("b",)))
    both = await tokens.create_token(new("both", namespaces=("a", "b")))
    own = await tokens.create_token(new("own", namespaces=("a",)), **ADMIN_OF_A)
    listed = await tokens.list_tokens(**SEES_A)
    assert [one.name for one in listed.items] == ["own"]
    told = set()
    for foreign in (of_all, of_b, both, None):
        token_id = stranger() if foreign is None else foreign.token_id
        with pytest.raises(NotFound) as caught:
            await tokens.revoke_token(token_id, **SEES_A)
        told.add(str(caught.value).replace(token_id, "ID"))
    assert len(told) == 1
    await tokens.revoke_token(own.token_id, **SEES_A)
    assert names(tokens) == {"of all", "of b", "both"}


@pytest.mark.parametrize(
    "asked",
    [
        new("x", "metrics", namespaces=("a",)),
        new("x", "read", namespaces=("a", "b")),
        new("x", "read", namespaces=("b",)),
    ],
)
async def test_nobody_grants_more_than_it_has(driver: Driver, asked: NewToken) -> None:
    with refused(Forbidden):
        await driver.engine.api_tokens.create_token(asked, **ADMIN_OF_A)
    assert await driver.engine.api_tokens.refresh() == 0


async def test_a_token_has_the_namespaces_of_its_maker_if_it_names_none(driver: Driver) -> None:
    tokens = driver.engine.api_tokens
    made = await tokens.create_token(new("own", "admin"), **ADMIN_OF_A)
    assert tokens.known[token_digest(made.token)].namespaces == OF_A
    made = await tokens.create_token(new("all", "admin"))
    assert tokens.known[token_digest(made.token)].namespaces is None


async def test_names_of_others_are_free_and_own_ones_are_not(driver: Driver) -> None:
    tokens = driver.engine.api_tokens
    await tokens.create_token(new("ci", namespaces=("b",)))
    await tokens.create_token(new("ci", namespaces=("a",)), **ADMIN_OF_A)
    with refused(Conflict):
        await tokens.create_token(new("ci", namespaces=("a",)), **ADMIN_OF_A)
    with refused(Conflict):
        await tokens.create_token(new("ci"))


@pytest.mark.parametrize(
    "asked",
    [
        new(""),
        new("n" * 201),
        new("two\nlines"),
        new("\x1b[31m"),
        new("FF_API_TOKEN"),
        NewToken(name="x", scopes=()),
        new("x", namespaces=()),
        new("x", namespaces=("a:b",)),
        new("x", expires_in_ms=0),
        new("x", expires_in_ms=2**53),
    ],
)
async def test_terms_that_make_no_sense_are_refused(driver: Driver, asked: NewToken) -> None:
    with refused(InvalidInput):
        await driver.engine.api_tokens.create_token(asked)
    assert not driver.engine.api_tokens.are_needed


async def test_concurrent_makers_lose_no_token(driver: Driver) -> None:
    backend = driver.engine.deps.store.backend
    both = [driver.engine.api_tokens, engine_on(backend).api_tokens]
    made: list[TokenCreated] = await asyncio.gather(
        *(both[n % 2].create_token(new(f"t{n}")) for n in range(4))
    )
    await both[0].refresh()
    assert set(both[0].known) == {token_digest(one.token) for one in made}


async def test_how_many_there_may_be_is_bounded(driver: Driver) -> None:
    tokens, backend = driver.engine.api_tokens, driver.engine.deps.store.backend

    def one(n: int, namespace: str) -> ApiToken:
        own = f"{namespace}{n}"
        return ApiToken(
            name=own, digest=token_digest(own), token_id=own, namespaces=frozenset({namespace})
        )

    full = tuple(one(n, "a") for n in range(MOST_OF_A_TENANT))
    await backend.config_put([ConfigPut("tokens", 0, write_tokens(full))])
    with pytest.raises(Conflict, match="there are 100 already"):
        await tokens.create_token(new("x", namespaces=("a",)), **ADMIN_OF_A)
    await tokens.create_token(new("x"))
    (found,) = await backend.config_get(["tokens"])
    assert found is not None
    full += tuple(one(n, "b") for n in range(MOST_TOKENS - MOST_OF_A_TENANT))
    await backend.config_put([ConfigPut("tokens", found.version, write_tokens(full))])
    with refused(Conflict):
        await tokens.create_token(new("y"))


async def test_a_caller_in_the_process_has_every_scope(driver: Driver) -> None:
    made = await driver.engine.api_tokens.create_token(new("all", *sorted(SCOPES)))
    assert driver.engine.api_tokens.known[token_digest(made.token)].scopes == SCOPES


async def test_an_unreadable_document_lets_nobody_in(driver: Driver) -> None:
    backend = driver.engine.deps.store.backend
    await backend.config_put([ConfigPut("tokens", 0, b"[{}]")])
    with pytest.raises(FlowFabricError, match="not readable"):
        await driver.engine.api_tokens.refresh()
