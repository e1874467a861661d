"""Tokens to test with."""

from flowfabric.config import ApiToken, token_digest
from flowfabric.core.scopes import Scope


def token(text: str, *scopes: Scope, namespaces: frozenset[str] | None = None) -> ApiToken:
    """What a server knows of a token with this text."""
    return ApiToken(
        name=text, digest=token_digest(text), scopes=frozenset(scopes), namespaces=namespaces
    )


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}
