"""API tokens that are made while servers run. The text of a token is told once, when it is made."""

from typing import Annotated, ClassVar

from flowfabric.core.documents import Redacted
from flowfabric.core.ids import parse_uuid
from flowfabric.core.scopes import Scope
from flowfabric.errors import Conflict, NotFound
from flowfabric.operations.declaration import ADMIN, operation
from flowfabric.operations.types import (
    VISIBLE,
    Answer,
    Free,
    Limit,
    Namespace,
    Outcome,
    Page,
    Part,
    Syntax,
)

TokenId = Annotated[
    str, Syntax(parse_uuid), Free("the use case looks among the tokens that the caller may see")
]


class NewToken(Part, frozen=True, kw_only=True):
    """Without `namespaces` the token may act in all that its maker may act in. Nobody grants a
    scope that its own token lacks. Without `expires_in_ms` it has no end."""

    name: str
    scopes: tuple[Scope, ...]
    namespaces: tuple[Namespace, ...] | None = None
    expires_in_ms: int | None = None


class TokenCreated(Redacted, Outcome, frozen=True, kw_only=True, tag="created"):
    """`token` is what a client sends; no store keeps it."""

    status: ClassVar[int] = 201
    hidden = frozenset({"token"})

    token_id: str
    name: str
    token: str
    expires_at: int = 0


class TokenInfo(Answer, frozen=True, kw_only=True):
    """A token without its text. Without `namespaces` it acts in all of them; an instant of 0 never
    comes."""

    token_id: str
    name: str
    scopes: tuple[Scope, ...]
    namespaces: tuple[str, ...] | None = None
    created_at: int
    created_by: str = ""
    expires_at: int = 0


class Tokens:
    @operation(
        "POST /v1/tokens",
        ADMIN,
        Conflict,
        owner=VISIBLE,
        repeat=False,
        is_secret=True,
    )
    async def create_token(self, new: NewToken) -> TokenCreated:
        """Make a token, which every server of the store takes within seconds; refused on a server
        without API tokens."""

    @operation("GET /v1/tokens", ADMIN, owner=VISIBLE)
    async def list_tokens(self, cursor: str = "", limit: Limit = 50) -> Page[TokenInfo]:
        """The tokens that were made at run time, of the namespaces of the caller, by id."""

    @operation("DELETE /v1/tokens/{token_id}", ADMIN, NotFound, owner=VISIBLE, repeat=False)
    async def revoke_token(self, token_id: TokenId) -> None:
        """Every server of the store refuses the token from now on, within seconds."""
