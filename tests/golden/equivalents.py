"""Changes of a function that make no difference, and why."""

from typing import Final

EQUIVALENT: Final[dict[tuple[str, str], str]] = {}
