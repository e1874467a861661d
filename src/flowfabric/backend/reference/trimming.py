"""Taking the oldest frames of one mode off a stream, one batch of appends at a time."""

from collections import deque
from typing import Final

from flowfabric.backend.reference.tables import FRAMES
from flowfabric.backend.reference.transaction import Transaction

StreamKey = tuple[str, int]
FrameKey = tuple[str, int, int, int]

# A trim looks at no more than this many frames; what it leaves over is the next one's.
MOST_LOOKS: Final = 10_000
# Most trims want one frame, and it is the first; others may have to pass many of other modes.
_FIRST_PAGE: Final = 4
_LARGEST_PAGE: Final = 512


class Oldest:
    """The frames of one stream and mode, oldest first, behind what earlier trims took.

    Pages come from the tables, which do not yet show what this batch appends; `append` tells. So
    every frame is passed once, however many trims a batch makes.
    """

    def __init__(
        self, tx: Transaction, stream: StreamKey, mode: str, trimmed: tuple[int, int] | None
    ) -> None:
        self._tx = tx
        self._stream = stream
        self._mode = mode
        self._after: FrameKey | None = (*stream, *trimmed) if trimmed else None
        self._ready: deque[FrameKey] = deque()
        self._fresh: deque[FrameKey] = deque()
        self._has_pages = True
        self._page = _FIRST_PAGE
        self._taken: FrameKey | None = None

    def append(self, key: FrameKey) -> None:
        self._fresh.append(key)

    def take(self, most: int) -> list[FrameKey]:
        """Up to this many, which are then no longer among them."""
        taken: list[FrameKey] = []
        looks = MOST_LOOKS
        while len(taken) < most:
            if not self._ready and self._has_pages:
                if looks <= 0:
                    break
                looks -= self._turn_page()
                continue
            source = self._ready or self._fresh
            if not source:
                break
            self._taken = source.popleft()
            taken.append(self._taken)
        return taken

    def passed(self) -> tuple[int, int] | None:
        """The id up to which no frame of this mode is left; None when that is unknown."""
        looked = None if self._ready else self._after
        ends = [key[2:] for key in (self._taken, looked) if key is not None]
        return max(ends, default=None)

    def _turn_page(self) -> int:
        size = self._page
        rows = self._tx.tables.range(FRAMES, self._stream, self._after, size)
        self._has_pages = len(rows) == size
        if rows:
            self._after = rows[-1][0]
        self._ready.extend(key for key, frame in rows if frame.mode == self._mode)
        self._page = min(4 * size, _LARGEST_PAGE)
        return size
