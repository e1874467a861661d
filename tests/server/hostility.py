"""How much of the hostile input a run tries: a selection, or with `make hostile` all of it."""

import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

# Cases of each route that schemathesis makes.
EXAMPLES: Final = int(os.environ.get("FF_TEST_EXAMPLES", "3"))
IS_COMPLETE: Final = EXAMPLES > 3


def some(values: Sequence[T], number: int) -> list[T]:
    """Evenly spread, so that every kind is among them."""
    if IS_COMPLETE or len(values) <= number:
        return list(values)
    return [values[at * len(values) // number] for at in range(number)]
