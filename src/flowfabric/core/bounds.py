"""How many and how large the parts of a request may be, in one place.

Each is checked before anything that takes longer for more parts, so that refusing a request costs
no more than reading it. `make pages` writes them into `docs/reference/limits.md`.
"""

from collections.abc import Sized
from typing import Final

from flowfabric.errors import InvalidInput

# Tags of an execution, a flow or a schedule: pairs, and the bytes of all keys and values.
MAX_TAGS: Final = 128
MAX_TAG_BYTES: Final = 16 * 1024

# A policy as JSON, and the budgets, or quotas, it may name.
MAX_POLICY_BYTES: Final = 64 * 1024
MAX_LIMIT_IDS: Final = 32

# Lanes of a claim, or of a worker's registration.
MAX_LANES: Final = 64

# Executions named in one call.
MAX_NAMED: Final = 1_000

# Frames that one attempt appends in one call.
MAX_FRAMES: Final = 5_000

# A suspend. All keys together are bounded by the condition, which names each of them.
MAX_WAITPOINTS: Final = 256
MAX_CONDITION_BYTES: Final = 64 * 1024


def check_number(values: Sized, field: str, most: int) -> None:
    """Refuse a list or map with more members than it may have."""
    if len(values) > most:
        raise InvalidInput(f"{field}: at most {most}, got {len(values)}")
