"""Reads the API tokens again when the configuration changes, and every second in any case: a token
that another process made or revoked counts here, too."""

from typing import Final

from flowfabric.duties.result import DutyResult
from flowfabric.engine import Engine

TOKENS_S: Final = 1.0


class TokenWatch:
    name = "token_watch"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def visit(self) -> DutyResult:
        await self._engine.api_tokens.refresh()
        return DutyResult()
