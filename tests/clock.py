"""A clock that stands still until a test moves it."""

START_MS = 1_700_000_000_000


class VirtualClock:
    def __init__(self, now: int = START_MS) -> None:
        self._now = now

    def __call__(self) -> int:
        return self._now

    def advance(self, ms: int) -> int:
        self._now += ms
        return self._now
