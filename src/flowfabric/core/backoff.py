"""Backoff: how long to pause before something that failed is tried again."""

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """Pauses that double from the first up to the longest."""

    first_s: float
    longest_s: float

    def pause_s(self, failures: int, chance: float = 1.0) -> float:
        """The pause after this many failures in a row, which are at least one. A `chance` from 0
        to 1 keeps those that failed together from coming back together."""
        return spread(grown(self.first_s, 2.0, self.longest_s, failures - 1), chance)


def grown(first: float, multiplier: float, longest: float, times: int) -> float:
    """What has grown so many times by a factor, up to a limit."""
    if not first:
        return 0
    try:
        found = first * multiplier**times
    except OverflowError:
        return longest
    return min(found, longest)


def spread(pause: float, chance: float) -> float:
    """Somewhere in the upper half of the pause."""
    return pause * (0.5 + chance / 2)
