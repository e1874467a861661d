"""Budgets by brute force: every single spend is kept, and sums are made anew at every look."""

from typing import Final, NamedTuple

DIMENSIONS: Final = ("tokens", "cost")


class Level(NamedTuple):
    """What a budget was defined with."""

    parent: str
    hard: dict[str, int]
    interval_ms: int


class Spent(NamedTuple):
    """One amount at one level, in the period it was spent in, on whose account."""

    budget: str
    period: int
    amounts: dict[str, int]
    # The budget it was spent at and the execution, where there is one to take it back.
    account: tuple[str, str] | None


class LeaseProof(NamedTuple):
    budget: str
    amounts: dict[str, int]
    until: int
    execution: str


class Books:
    """A tree of budgets as somebody with pencil and paper would keep it."""

    def __init__(self) -> None:
        self.levels: dict[str, Level] = {}
        self._periods: dict[str, int] = {}
        self._next_reset: dict[str, int] = {}
        self._spent: list[Spent] = []
        self._holds: dict[tuple[str, str], LeaseProof] = {}
        self._finished: dict[tuple[str, str], int] = {}
        # The executions of finished ones that were cancelled: what they commit still counts.
        self._cancelled: dict[tuple[str, str], str] = {}
        self._marks: dict[tuple[str, str], int] = {}

    def define(self, name: str, level: Level, now: int) -> None:
        if name not in self.levels:
            self.levels[name] = level
            self._periods[name] = 0
            self._next_reset[name] = now + level.interval_ms if level.interval_ms else 0

    def chain(self, name: str) -> list[str]:
        found = [name]
        while parent := self.levels[found[-1]].parent:
            found.append(parent)
        return found

    def used(self, name: str, dimension: str) -> int:
        return sum(
            one.amounts.get(dimension, 0)
            for one in self._spent
            if one.budget == name and one.period == self._periods[name]
        )

    def reserved(self, name: str, dimension: str, now: int) -> int:
        return sum(
            held.amounts.get(dimension, 0)
            for held in self._holds.values()
            if held.until > now and name in self.chain(held.budget)
        )

    def refuses(
        self, name: str, amounts: dict[str, int], now: int, held: dict[str, int] | None = None
    ) -> bool:
        held = held or {}
        for level in self.chain(name):
            for dimension, amount in amounts.items():
                limit = self.levels[level].hard.get(dimension, 0)
                taken = self.used(level, dimension) + self.reserved(level, dimension, now)
                if limit and taken - held.get(dimension, 0) + amount > limit:
                    return True
        return False

    # ---- what callers do, and what they should be told

    def spend(self, name: str, amounts: dict[str, int], key: str, execution: str, now: int) -> str:
        if key and self._marks.get((name, key), 0) > now:
            return "already_applied"
        if self.refuses(name, amounts, now):
            return "hard_breach"
        if key:
            self._marks[name, key] = now + 86_400_000
        self._enter(name, amounts, execution)
        return "ok"

    def release(self, name: str, execution: str) -> None:
        self._spent = [one for one in self._spent if one.account != (name, execution)]

    def reset(self, name: str, now: int) -> None:
        self._periods[name] += 1
        interval = self.levels[name].interval_ms
        self._next_reset[name] = now + interval if interval else 0

    def reserve(self, name: str, reservation: str, held: LeaseProof, now: int) -> str:
        key = (name, reservation)
        if self._live(key, now) or self._finished.get(key, 0) > now:
            return "already_applied"
        if self.refuses(name, held.amounts, now):
            return "hard_breach"
        self._cancelled.pop(key, None)
        self._holds[key] = held
        return "reserved"

    def commit(self, name: str, reservation: str, amounts: dict[str, int], now: int) -> str:
        key = (name, reservation)
        is_finished = self._finished.get(key, 0) > now
        if is_finished and key not in self._cancelled:
            return "already_applied"
        held = self._live(key, now)
        if self.refuses(name, amounts, now, held.amounts if held else None):
            return "hard_breach"
        self._holds.pop(key, None)
        self._finished[key] = now + 86_400_000
        cancelled = self._cancelled.pop(key, "")
        execution = cancelled if is_finished else ""
        self._enter(name, amounts, held.execution if held else execution)
        return "ok"

    def cancel(self, name: str, reservation: str, now: int) -> str:
        key = (name, reservation)
        if not self._live(key, now):
            return "already_applied"
        self._cancelled[key] = self._holds.pop(key).execution
        self._finished[key] = now + 86_400_000
        return "ok"

    def time_passes(self, now: int) -> None:
        """Scheduled resets happen, each once however late, in the rhythm they began with."""
        for name, due in self._next_reset.items():
            interval = self.levels[name].interval_ms
            if 0 < due <= now:
                self._periods[name] += 1
                self._next_reset[name] = due + ((now - due) // interval + 1) * interval

    def _live(self, key: tuple[str, str], now: int) -> LeaseProof | None:
        held = self._holds.get(key)
        return held if held and held.until > now else None

    def _enter(self, name: str, amounts: dict[str, int], execution: str) -> None:
        account = (name, execution) if execution else None
        for level in self.chain(name):
            self._spent.append(Spent(level, self._periods[level], amounts, account))
