"""Headers of a result, which itself is nothing but its bytes."""

from typing import Final

# Only of an execution that is completed now: of which attempt the result is.
ATTEMPT_HEADER: Final = "x-attempt-index"
# Percent-encoded: whoever completes an execution chooses the text.
ENCODING_HEADER: Final = "x-result-encoding"
