"""The end of an execution, whatever it was."""

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

End = Literal["completed", "failed", "cancelled", "expired", "skipped"]
# By public state.
ENDS: Final[Mapping[str, End]] = {state: state for state in get_args(End)}


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How an execution ended, with its result if it completed."""

    execution_id: str
    state: End
    attempt_index: int = 0
    result: bytes | None = None
    result_encoding: str = ""
    reason: str = ""
    category: str = ""
