"""What a token may do."""

from collections.abc import Collection
from typing import Final, Literal, get_args

Scope = Literal["read", "submit", "worker", "approve", "metrics", "admin"]
SCOPES: Final[frozenset[Scope]] = frozenset(get_args(Scope))
# A shorter API token can be guessed.
MIN_TOKEN_LENGTH: Final = 16
# Figures of the whole store: an admin of some namespaces does not see them.
_OF_THE_STORE: Final[frozenset[Scope]] = frozenset({"metrics"})


def granted(scopes: frozenset[Scope], namespaces: Collection[str] | None) -> frozenset[Scope]:
    """The scopes of a token with those that its scopes imply; None stands for all namespaces."""
    if "admin" not in scopes:
        return scopes
    return SCOPES if namespaces is None else scopes | (SCOPES - _OF_THE_STORE)
