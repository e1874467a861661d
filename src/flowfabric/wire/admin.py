"""What only operators do to a whole store."""

from typing import Any

from flowfabric.operations.types import Answer, Body


class RotateSecret(Body, frozen=True, kw_only=True):
    """The secret is on its way in and must never be shown."""

    new_kid: str
    new_secret_hex: str

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("new_kid", self.new_kid), ("new_secret_hex", "<REDACTED>")]

    def __repr__(self) -> str:
        return f"RotateSecret(new_kid={self.new_kid!r}, new_secret_hex=<REDACTED>)"


class Rotated(Answer, frozen=True, kw_only=True):
    rotated: int
    failed: list[Any]
    new_kid: str
