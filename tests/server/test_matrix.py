"""Every operation asked by every kind of caller for own, foreign and absent things: what is refused
is refused in the same words, and leaves the whole store as it was."""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import msgspec
import pytest

from flowfabric.client.operations import request_of
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.scopes import SCOPES
from flowfabric.core.tokens import Secret, token_to_text
from flowfabric.operations.declaration import Operation
from flowfabric.operations.nouns import DECLARED
from flowfabric.operations.types import STORE, Owned
from tests.rotation import on_stores
from tests.server.conftest import Serve
from tests.server.driving import Served
from tests.server.dumps import dump_of
from tests.server.test_budgets import make
from tests.server.test_owners import arguments, new_flow, new_quota, refusal
from tests.server.tokens import bearer, token
from tests.stores import url_of

AnyOperation = Operation[..., Any]
Things = dict[str, str]
# So many operations share a server and its things.
AT_ONCE = 8
GROUPS = [DECLARED[at : at + AT_ONCE] for at in range(0, len(DECLARED), AT_ONCE)]


@pytest.fixture(params=on_stores(["sqlite", "postgres"], ["valkey", "valkey-cluster"]))
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    store = parse_store_url(url_of(request.param, tmp_path))
    return Settings(
        store=store,
        searchable_tags=frozenset({"app.team"}),
        waitpoint_secret=Secret("5e" * 32),
        # Nothing but requests changes anything here.
        timer_sweep_interval_ms=3_600_000,
        retention_trimmer_interval_s=3_600,
    )


class Caller(NamedTuple):
    """Without a name it sends no token; `scope` is "" for a token that the server does not know."""

    name: str
    scope: str = ""
    is_limited: bool = False

    @property
    def headers(self) -> dict[str, str]:
        return bearer(self.name) if self.name else {}

    def may_ask(self, declared: AnyOperation) -> bool:
        """Whether it may ask for anything at all."""
        if self.is_limited and declared.terms.owner == STORE:
            return False
        scopes = declared.terms.scopes
        return not scopes or self.scope in scopes or self.scope == "admin"


CALLERS = [
    Caller(""),
    Caller("wrong"),
    *(Caller(one, one) for one in sorted(SCOPES)),
    *(Caller(f"{one} of mine", one, is_limited=True) for one in sorted(SCOPES)),
]


async def things_of(served: Served, namespace: str) -> Things:
    return {
        "namespace": namespace,
        "execution": await served.submit(namespace=namespace),
        "budget": await make(served, namespace=namespace),
        "quota": await new_quota(served, namespace),
        "flow": await new_flow(served, namespace),
    }


def absent_things() -> Things:
    ids = {kind: str(uuid4()) for kind in ("budget", "quota", "flow")}
    return {**ids, "namespace": "nowhere", "execution": f"{{fp:7}}:{uuid4()}"}


async def ask(
    served: Served, caller: Caller, declared: AnyOperation, things: Things
) -> httpx.Response:
    asked = request_of(declared, arguments(declared, things), is_safe=True)
    body = asked.body
    if body is not None:
        body = msgspec.to_builtins(body, enc_hook=token_to_text)
    line = f"{asked.method} {asked.path}"
    return await served.call(line, body, params=asked.query, headers=caller.headers)


def owned_in(declared: AnyOperation, things: Things) -> tuple[set[Owned], set[Owned]]:
    """The marks of the ids in a request, and which of them lie in items of a batch."""
    named = arguments(declared, things)
    in_items = {
        one
        for item in named.get(declared.owners.batch, ())
        for one, _ in declared.owners.of_item(item)
    }
    return in_items | {one for one, _ in declared.owners.of(named)}, in_items


def timeless(answer: httpx.Response) -> str:
    return re.sub(r'"now":\d+', '"now":0', answer.text)


class Matrix:
    """The requests of one operation, and what is wrong with their answers."""

    def __init__(
        self, served: Served, declared: AnyOperation, own: Things, foreign: Things, absent: Things
    ) -> None:
        self.faults: list[str] = []
        self._served = served
        self._declared = declared
        self._own, self._foreign, self._absent = own, foreign, absent

    async def run(self) -> None:
        for caller in CALLERS:
            if not caller.scope:
                await self._refused(caller, 401)
            elif not caller.may_ask(self._declared):
                await self._refused(caller, 403)
            elif caller.is_limited:
                await self._hidden(caller)

    async def _refused(self, caller: Caller, status: int) -> None:
        """Whatever it asks for, in the same words."""
        texts = set()
        for things in (self._own, self._foreign, self._absent):
            answer = await ask(self._served, caller, self._declared, things)
            self._expect(caller, "anything", answer, {status})
            texts.add(answer.json()["error"])
        if len(texts) > 1:
            self.faults.append(f"{self._declared.name} by {caller.name}: {texts}")

    async def _hidden(self, caller: Caller) -> None:
        """Each id that the request names, with all others its own."""
        declared = self._declared
        owned, in_items = owned_in(declared, self._foreign)
        for kind in {one.kind for one in owned}:
            alike = [one for one in owned if one.kind == kind]
            expected = {refusal(declared, one, in_items) for one in alike}
            things = {**self._own, kind: self._foreign[kind]}
            foreign = await ask(self._served, caller, declared, things)
            self._expect(caller, f"a foreign {kind}", foreign, expected)
            if any(one.is_new for one in alike):
                continue
            things = {**self._own, kind: self._absent[kind]}
            absent = await ask(self._served, caller, declared, things)
            self._expect(caller, f"an absent {kind}", absent, expected)
            told = timeless(foreign).replace(self._foreign[kind], self._absent[kind])
            if told != timeless(absent):
                self.faults.append(f"{declared.name}: {told} differs from {absent.text}")

    def _expect(self, caller: Caller, what: str, answer: httpx.Response, among: set[int]) -> None:
        if answer.status_code not in among:
            self.faults.append(
                f"{self._declared.name} by {caller.name!r} for {what}: {answer.status_code},"
                f" expected {among}: {answer.text[:200]}"
            )


def tokens() -> Iterator[Any]:
    for scope, is_limited in product(sorted(SCOPES), (False, True)):
        if is_limited:
            yield token(f"{scope} of mine", scope, namespaces=frozenset({"mine"}))
        else:
            yield token(scope, scope)


@pytest.mark.parametrize("operations", GROUPS, ids=lambda group: group[0].name)
async def test_whoever_may_not_changes_nothing_and_learns_nothing(
    operations: tuple[AnyOperation, ...], serve: Serve, settings: Settings
) -> None:
    served = await serve(tokens=tuple(tokens()))
    served.headers = bearer("admin")
    own, foreign = await things_of(served, "mine"), await things_of(served, "theirs")
    await served.application.services.engine.lanes.drain()
    served.headers = {}
    before = await dump_of(served, settings)
    assert before
    faults: list[str] = []
    for declared in operations:
        matrix = Matrix(served, declared, own, foreign, absent_things())
        await matrix.run()
        faults += matrix.faults
        await served.application.services.engine.lanes.drain()
        after = await dump_of(served, settings)
        if after != before:
            faults.append(f"{declared.name} changed the store: {sorted(after ^ before)[:5]}")
            before = after
    assert not faults, "\n".join(faults)


def test_every_operation_is_in_the_matrix() -> None:
    assert {one.name for group in GROUPS for one in group} == {one.name for one in DECLARED}
