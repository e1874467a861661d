"""A flow by brute force: arrows between names, and everything else worked out anew at every look.

Nothing is counted along the way and nothing depends on an order of work: who runs, waits, is
skipped or cut follows from how the members have ended and what their arrows and policies say.
"""

from typing import Literal, NamedTuple

ArrowState = Literal["staged", "open", "satisfied", "impossible"]


class Rule(NamedTuple):
    """How the arrows into a member combine; `k` successes are enough, all are needed if it is 0."""

    k: int = 0
    cuts: bool = False


class Arrow:
    def __init__(self, source: str, target: str, round: int, *, any_end: bool = False) -> None:
        self.source = source
        self.target = target
        self.round = round
        self.any_end = any_end
        self.state: ArrowState = "staged"
        # Reopened while its source had ended badly: it waits for that source to end once more.
        self.is_stale = False


class Junction:
    """The arrows into one member, and whether they have fired."""

    def __init__(self) -> None:
        self.rule = Rule()
        self.round = 0
        self.state: Literal["pending", "satisfied", "impossible"] = "pending"


class FlowBook:
    def __init__(self) -> None:
        self.members: set[str] = set()
        self.outcomes: dict[str, str] = {}
        self.waiting: set[str] = set()
        self.arrows: dict[str, Arrow] = {}
        self.junctions: dict[str, Junction] = {}

    # ---- what there is

    def counted(self, target: str) -> list[Arrow]:
        """The arrows that count for a member now."""
        return [arrow for arrow in self._into(target) if arrow.state != "staged"]

    def staged(self, target: str) -> list[Arrow]:
        return [arrow for arrow in self._into(target) if arrow.state == "staged"]

    def outcomes_of(self, target: str) -> tuple[int, int, int]:
        """Successes, failures and skips among the counted arrows of a member."""
        found = self.counted(target)
        won = [arrow for arrow in found if arrow.state == "satisfied"]
        lost = [arrow for arrow in found if arrow.state == "impossible"]
        return len(won), len(lost), len(found)

    def _into(self, target: str) -> list[Arrow]:
        junction = self.junctions.get(target)
        if junction is None:
            return []
        arrows = self.arrows.values()
        return [one for one in arrows if one.target == target and one.round == junction.round]

    # ---- what happens

    def join(self, member: str, outcome: str = "") -> None:
        self.members.add(member)
        if outcome:
            self.outcomes[member] = outcome

    def end(self, member: str, outcome: str) -> None:
        self.outcomes[member] = outcome
        self.waiting.discard(member)
        self._settle()

    def end_without_settling(self, member: str) -> None:
        """Ended by its flow's own cancellation: its arrows stay as they are."""
        self.outcomes[member] = "cancelled"
        self.waiting.discard(member)
        for arrow in self.arrows.values():
            if arrow.source == member and arrow.state == "open":
                arrow.is_stale = True

    def choose(self, target: str, rule: Rule) -> None:
        self.junctions.setdefault(target, Junction()).rule = rule

    def stage(self, name: str, source: str, target: str) -> None:
        junction = self.junctions.setdefault(target, Junction())
        self.arrows[name] = Arrow(source, target, junction.round)

    def link(self, name: str) -> None:
        """An arrow begins to count; its target waits unless it has enough anyway."""
        arrow = self.arrows[name]
        junction = self.junctions[arrow.target]
        arrow.state, arrow.round = "open", junction.round
        if junction.state == "satisfied" and self._verdict(arrow.target) != "satisfied":
            junction.state = "pending"
        if junction.state == "pending":
            self.waiting.add(arrow.target)
        self._settle()

    def park(self, parent: str, children: list[tuple[str, str]]) -> None:
        """A parent waits for children, however they end, and for nothing it waited for before."""
        junction = self.junctions.setdefault(parent, Junction())
        junction.round += 1
        junction.rule, junction.state = Rule(), "pending"
        self.waiting.add(parent)
        for name, child in children:
            self.arrows[name] = Arrow(child, parent, junction.round, any_end=True)
            self.arrows[name].state = "open"
        self._settle()

    def wait_for_what_is_open(self, member: str) -> None:
        """A member parks without naming anybody: what leads to it counts, if any of it is open."""
        junction = self.junctions.get(member)
        if junction is not None and junction.state == "pending":
            self.waiting.add(member)
            self._release_if_nothing_is_open(member)

    def replay(self, member: str) -> None:
        was = self.outcomes.pop(member)
        for arrow in self.arrows.values():
            if arrow.source == member:
                arrow.is_stale = False
        junction = self.junctions.get(member)
        if was == "skipped" and junction is not None:
            junction.state = "pending"
            self.waiting.add(member)
            for arrow in self.counted(member):
                if arrow.state == "impossible":
                    arrow.state = "open"
                    source = self.outcomes.get(arrow.source, "success")
                    arrow.is_stale = source != "success"
        self._resolve()
        if member in self.waiting:
            self._release_if_nothing_is_open(member)
        self._settle()

    # ---- what follows

    def _settle(self) -> None:
        """Groups fire until none does any more; then whoever nobody needs is cut."""
        fired: set[str] = set()
        while True:
            moved, news = self._resolve(), self._fire()
            fired |= news
            if not moved and not news:
                break
        if self._cut(fired):
            self._settle()

    def _resolve(self) -> bool:
        moved = False
        for arrow in self.arrows.values():
            outcome = self.outcomes.get(arrow.source)
            if arrow.state == "open" and outcome is not None and not arrow.is_stale:
                good = outcome == "success" or arrow.any_end
                arrow.state = "satisfied" if good else "impossible"
                moved = True
        return moved

    def _fire(self) -> set[str]:
        news: set[str] = set()
        for target, junction in self.junctions.items():
            verdict = self._verdict(target) if junction.state == "pending" else ""
            if verdict and self.counted(target):
                junction.state = "satisfied" if verdict == "satisfied" else "impossible"
                news.add(target)
                if target not in self.outcomes:
                    self.waiting.discard(target)
                    if verdict == "impossible":
                        self.outcomes[target] = "skipped"
        return news

    def _verdict(self, target: str) -> str:
        won, lost, n = self.outcomes_of(target)
        k = self.junctions[target].rule.k
        if not k:
            if lost:
                return "impossible"
            return "satisfied" if won == n and not self.staged(target) else ""
        if won >= k:
            return "satisfied"
        if n >= k:
            return "impossible" if n - lost < k else ""
        return "impossible" if won + lost == n and not self.staged(target) else ""

    def _cut(self, fired: set[str]) -> bool:
        losers = {
            arrow.source
            for target in fired
            if self.junctions[target].rule.cuts
            for arrow in self.counted(target)
            if arrow.source not in self.outcomes and not self._is_needed(arrow.source)
        }
        for loser in losers:
            self.outcomes[loser] = "cancelled"
            self.waiting.discard(loser)
        return bool(losers)

    def _is_needed(self, member: str) -> bool:
        return any(
            arrow.source == member
            and arrow.state in ("open", "staged")
            and self.junctions[arrow.target].state == "pending"
            and self.junctions[arrow.target].round == arrow.round
            for arrow in self.arrows.values()
        )

    def _release_if_nothing_is_open(self, member: str) -> None:
        junction = self.junctions[member]
        won, lost, n = self.outcomes_of(member)
        if won + lost == n and not self.staged(member) and junction.state == "pending":
            self.waiting.discard(member)
            if n:
                junction.state = "satisfied"
