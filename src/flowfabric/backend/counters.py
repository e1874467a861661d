"""What a store counts of itself while it is open, for whoever looks."""

from collections import Counter


class StoreCounters:
    """Sums since the store was opened. Each is written by one thread, and may be read by others."""

    def __init__(self) -> None:
        # By what became of a sibling: the reason it was cancelled for, or why it was not.
        self.siblings: Counter[str] = Counter()
        # Subscriber connections opened again after their connection was lost.
        self.reconnects = 0
        # Times the functions were missing and were loaded again.
        self.reloads = 0
