"""What a token may do."""

from typing import Final, Literal, get_args

Scope = Literal["read", "submit", "worker", "admin"]
SCOPES: Final[frozenset[Scope]] = frozenset(get_args(Scope))
