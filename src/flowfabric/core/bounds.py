"""How many and how large the parts of a request may be, in one place.

Each bound is checked before anything that takes longer for more parts, so that the cost of a refused
request is that of reading it. `docs/reference/limits.md` lists them.
"""

from collections.abc import Sized
from typing import Final

from flowfabric.errors import InvalidInput

# A suspend. All keys together are bounded by the condition, which names each of them.
MAX_WAITPOINTS: Final = 256
MAX_CONDITION_BYTES: Final = 64 * 1024


def check_number(values: Sized, field: str, most: int) -> None:
    """Refuse a list or map with more members than it may have."""
    if len(values) > most:
        raise InvalidInput(f"{field}: at most {most}, got {len(values)}")
