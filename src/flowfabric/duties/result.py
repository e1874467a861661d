"""What one visit did, by duty name."""

from collections import Counter


class DutyResult:
    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        # Items that are left alone for a while; cancelled flows with work left, if all were seen.
        self.left_alone = 0
        self.cancels_left: int | None = None
        # Flows whose cut-off cancels of siblings came to their end.
        self.drained = 0

    def processed(self, duty: str, n: int = 1) -> None:
        self.counts[duty, "processed"] += n

    def failed(self, duty: str) -> None:
        self.counts[duty, "error"] += 1

    def skipped(self, duty: str) -> None:
        self.counts[duty, "skipped"] += 1

    def total(self, result: str) -> int:
        return sum(n for (_, kind), n in self.counts.items() if kind == result)

    def of(self, duty: str, result: str = "processed") -> int:
        return self.counts[duty, result]
