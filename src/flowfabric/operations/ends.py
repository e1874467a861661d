"""The end of an execution, whatever it was."""

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

End = Literal["completed", "failed", "cancelled", "expired", "skipped"]
# By public state.
ENDS: Final[Mapping[str, End]] = {state: state for state in get_args(End)}

# Headers of a result, which itself is nothing but its bytes: of which attempt it is, only while the
# execution is completed; and its encoding, percent-encoded, since whoever completes it chooses it.
ATTEMPT_HEADER: Final = "x-attempt-index"
ENCODING_HEADER: Final = "x-result-encoding"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How an execution ended, with its result if it completed."""

    execution_id: str
    state: End
    attempt_index: int = 0
    result: bytes | None = None
    result_encoding: str = ""
    reason: str = ""
    category: str = ""
