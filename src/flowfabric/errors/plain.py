"""Untrusted text as plain text: characters that a terminal or a log reader would act on are shown
as escapes."""

import re
from typing import Final

# C0, DEL and C1; separators of lines; bidirectional overrides; halves of surrogate pairs.
_HARMFUL: Final = "\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_in_line: Final = re.compile(f"[{_HARMFUL}]")
_in_lines: Final = re.compile(rf"(?![\n\t])[{_HARMFUL}]")


def plain(text: str) -> str:
    """One line: a line break is shown as an escape, too."""
    return text if text.isascii() and text.isprintable() else _in_line.sub(_escape, text)


def plain_lines(text: str) -> str:
    """Several lines: line breaks and tabs stay."""
    return _in_lines.sub(_escape, text)


def plain_json(text: str) -> str:
    """JSON that means the same: in it these characters occur in strings only."""
    return _in_lines.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
