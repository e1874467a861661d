"""API tokens made at run time: one document of digests, which every server of a store watches."""

import secrets
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.types import ConfigPut
from flowfabric.core.api_tokens import (
    ApiToken,
    Grantor,
    Namespaces,
    Stored,
    added,
    check_grant,
    check_lifetime,
    check_terms,
    living,
    read_tokens,
    write_tokens,
)
from flowfabric.core.ids import parse_uuid
from flowfabric.core.scopes import SCOPES, Scope
from flowfabric.core.tokens import token_digest
from flowfabric.engine.audit import audit
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.errors import NotFound
from flowfabric.operations import tokens as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.tokens import NewToken, TokenCreated, TokenInfo
from flowfabric.operations.types import Page

DOCUMENT: Final = "tokens"
# Scanners for leaked secrets find a token by it.
_PREFIX: Final = "ff_"
_MOST_LISTED: Final = 1_000

A = TypeVar("A")


class ApiTokens:
    """The tokens as this process last read them."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        # By digest.
        self.known: Mapping[str, ApiToken] = {}
        # Whether there has ever been one: servers then ask every caller for a token.
        self.are_needed = False

    async def refresh(self) -> int:
        """Read the tokens again, without those that have expired; how many there are."""
        (found,) = await self._deps.store.backend.config_get([DOCUMENT])
        stored = () if found is None else read_tokens(found.body)
        now = await self._deps.store.backend.now() if stored else 0
        self._keep(living(stored, now), exists=found is not None)
        return len(self.known)

    @implements(declared.Tokens.create_token)
    async def create_token(
        self,
        new: NewToken,
        *,
        visible: Namespaces = None,
        scopes: frozenset[Scope] = SCOPES,
        caller: str = "",
    ) -> TokenCreated:
        check_terms(new.name, new.scopes, new.namespaces)
        check_lifetime(new.expires_in_ms)
        by, asked = Grantor(caller, scopes, visible), frozenset(new.scopes)
        namespaces = None if new.namespaces is None else frozenset(new.namespaces)
        namespaces = check_grant(by, asked, namespaces)
        text, token_id = _PREFIX + secrets.token_urlsafe(32), self._deps.mint()

        def decision(tokens: Stored, now: int) -> tuple[Stored, ApiToken]:
            made = ApiToken(
                token_id=token_id,
                name=new.name,
                digest=token_digest(text),
                scopes=asked,
                namespaces=namespaces,
                created_at=now,
                created_by=caller,
                expires_at=now + new.expires_in_ms if new.expires_in_ms else 0,
            )
            return added(tokens, made, by), made

        made = await self._change(decision)
        audit("token_created", token_id=token_id, token_name=new.name, caller=caller)
        return TokenCreated(
            token_id=token_id, name=new.name, token=text, expires_at=made.expires_at
        )

    @implements(declared.Tokens.list_tokens)
    async def list_tokens(
        self, cursor: str = "", limit: int = 50, *, visible: Namespaces = None
    ) -> Page[TokenInfo]:
        whole(limit, "limit", 1, _MOST_LISTED)
        if cursor:
            parse_uuid(cursor, "cursor")
        await self.refresh()
        seen = sorted(
            (one for one in self.known.values() if one.is_visible(visible)),
            key=lambda one: one.token_id,
        )
        rest = [one for one in seen if one.token_id > cursor]
        page = rest[:limit]
        more = page[-1].token_id if len(rest) > limit else ""
        return Page(items=[_info(one) for one in page], next_cursor=more)

    @implements(declared.Tokens.revoke_token)
    async def revoke_token(
        self, token_id: str, *, visible: Namespaces = None, caller: str = ""
    ) -> None:
        def decision(tokens: Stored, now: int) -> tuple[Stored, ApiToken]:
            for one in tokens:
                if one.token_id == token_id and one.is_visible(visible):
                    return tuple(other for other in tokens if other is not one), one
            raise NotFound(f"there is no token {token_id}")

        revoked = await self._change(decision)
        audit("token_revoked", token_id=token_id, token_name=revoked.name, caller=caller)

    async def _change(self, decision: Callable[[Stored, int], tuple[Stored, A]]) -> A:
        backend = self._deps.store.backend

        async def attempt() -> A | WriteConflict:
            (found,) = await backend.config_get([DOCUMENT])
            now = await backend.now()
            tokens = living(() if found is None else read_tokens(found.body), now)
            news, answer = decision(tokens, now)
            put = ConfigPut(DOCUMENT, found.version if found else 0, write_tokens(news))
            if not (await backend.config_put([put]))[0].applied:
                return WRITE_CONFLICT
            self._keep(news, exists=True)
            return answer

        return await decide("document", DOCUMENT, attempt, self._deps.chance)

    def _keep(self, tokens: Stored, *, exists: bool) -> None:
        self.known = {one.digest: one for one in tokens}
        self.are_needed = exists


def _info(token: ApiToken) -> TokenInfo:
    return TokenInfo(
        token_id=token.token_id,
        name=token.name,
        scopes=tuple(sorted(token.scopes)),
        namespaces=None if token.namespaces is None else tuple(sorted(token.namespaces)),
        created_at=token.created_at,
        created_by=token.created_by,
        expires_at=token.expires_at,
    )
