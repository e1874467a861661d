"""The part of JSON Schema that arguments are checked by."""

from typing import Final

# The names of the arguments that may also be given as a list, in order.
POSITIONAL: Final = "x-positional"
