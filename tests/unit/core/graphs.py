"""Small graphs in rows, and a second opinion on what becomes of them.

`Graph` drives the real rules. `Judge` reads the same graph as plain sets and numbers and works out
from the definitions, without any order of work, how everything must stand.
"""

from typing import Any, Final, Literal, NamedTuple

from flowfabric.core.apply import apply
from flowfabric.core.due import expire
from flowfabric.core.fence import Fence
from flowfabric.core.graph import Edge, Flow, Group, GroupPolicy, OnSatisfied
from flowfabric.core.lease import LeaseTerms, lease
from flowfabric.core.members import move_member
from flowfabric.core.plan import Applied, Plan
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import Failure, complete, fail
from flowfabric.core.rules.operators import cancel
from flowfabric.core.settle import continue_flow
from flowfabric.core.states import FINAL, OUTCOMES, public_state
from flowfabric.core.transition import Transition
from tests.unit.core.records import NOW, Situation, record_in
from tests.unit.core.rows import FakeRows

FLOW: Final = "11111111-2222-4333-8444-555555555555"
Outcome = Literal["success", "failed", "cancelled", "expired"]


class Inbound(NamedTuple):
    """The inbound edges of one member and how they combine."""

    sources: tuple[int, ...]
    policy: GroupPolicy = "all_of"
    k: int = 0
    on_satisfied: OnSatisfied = ""

    @property
    def needed(self) -> int:
        return {"all_of": len(self.sources), "any_of": 1, "quorum": self.k}[self.policy]


# The members are 0, 1, 2 …; member `i` waits for what `Shape[i]` says.
Shape = tuple[Inbound, ...]


def member(number: int) -> str:
    return f"{{fp:101}}:00000000-0000-4000-8000-{number:012}"


def edge_id(source: int, target: int) -> str:
    return f"edge-{source:02}-{target:02}"


class Graph:
    """A flow in rows whose members are ended one by one."""

    def __init__(self, shape: Shape, data_ref: str = "") -> None:
        self.shape = shape
        self.rows = FakeRows(NOW)
        self.rows.put_flow(Flow(flow_id=FLOW, namespace="team", node_count=len(shape)))
        for number, inbound in enumerate(shape):
            self._add(number, inbound, data_ref)

    def _add(self, number: int, inbound: Inbound, data_ref: str) -> None:
        blocked = Situation("blocked", "dependencies", "first")
        situation = blocked if inbound.sources else Situation("waiting", "", "first")
        record = record_in(situation, execution_id=member(number), flow_id=FLOW)
        self.rows.write(Transition(None, record))
        move_member(self.rows, Transition(None, record))
        for source in inbound.sources:
            self.rows.put_edge(
                Edge(
                    edge_id=edge_id(source, number),
                    flow_id=FLOW,
                    source=member(source),
                    target=member(number),
                    data_ref=data_ref,
                    state="open",
                )
            )
        if inbound.sources:
            self.rows.put_group(
                Group(
                    target=member(number),
                    flow_id=FLOW,
                    policy=inbound.policy,
                    k=inbound.k,
                    on_satisfied=inbound.on_satisfied,
                    n=len(inbound.sources),
                )
            )

    def record(self, number: int) -> Record:
        return self.rows.records[member(number)]

    def flow(self) -> Flow:
        return self.rows.flows[FLOW]

    def state(self, number: int) -> str:
        return self.record(number).state

    def live(self) -> list[int]:
        return [i for i in range(len(self.shape)) if self.state(i) not in FINAL]

    def claim(self, number: int) -> Fence:
        record = self.record(number)
        name = f"{number}-{record.lease_epoch}"
        terms = LeaseTerms("pool", "pool-1", f"lease-{name}", f"attempt-{name}", 60_000)
        done = lease(record, terms, self.rows.now)
        self.rows.write(done)
        move_member(self.rows, done)
        after = done.after
        return Fence(after.lease_id, after.lease_epoch, after.attempt_id)

    def plan_to_end(self, number: int, outcome: Outcome) -> Plan:
        """How a member comes to that end: by its worker, its deadline or an operator."""
        record = self.record(number)
        match outcome:
            case "success":
                fence = self.claim(number)
                return complete(record.execution_id, fence, b"result of %d" % number, "", "op")
            case "failed":
                fence = self.claim(number)
                failure = Failure("it broke", "permanent")
                return fail(self.record(number), fence, failure, 0.5, "op")
            case "expired":
                return expire(record, "execution_deadline")
            case "cancelled":
                return cancel(record.execution_id, "why", "operator_override", None)

    def end(self, number: int, outcome: Outcome) -> bool:
        """End one member in one step; whether that step left work over."""
        self.rows.now += 1
        answer = apply(self.rows, self.plan_to_end(number, outcome))
        assert isinstance(answer, Applied)
        return answer.more

    def settle(self) -> int:
        """Go on until nothing is left; how many steps that took."""
        for steps in range(1, 1_000):
            if not continue_flow(self.rows, self.flow()):
                return steps
        raise AssertionError("settling does not come to an end")


class Judge:
    """How a graph must stand after its members ended, found by definition."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.outcomes: dict[int, str] = {}
        self.free = {i for i, inbound in enumerate(shape) if not inbound.sources}
        self.fired: dict[int, str] = {}
        self.reasons: dict[int, set[str]] = {}

    def end(self, number: int, outcome: str) -> None:
        """One member ends: groups fire until none does any more, then siblings are cut."""
        self.outcomes[number] = outcome
        firing: set[int] = set()
        while found := {t: v for t in self._pending() if (v := self._verdict(t))}:
            self.fired |= found
            firing |= found.keys()
            for target, verdict in found.items():
                if target in self.outcomes:
                    continue
                if verdict == "satisfied":
                    self.free.add(target)
                else:
                    self.outcomes[target] = "skipped"
        self._cut(firing)

    def _pending(self) -> list[int]:
        targets = (i for i, inbound in enumerate(self.shape) if inbound.sources)
        return [target for target in targets if target not in self.fired]

    def _verdict(self, target: int) -> str:
        inbound = self.shape[target]
        won = sum(self.outcomes.get(source) == "success" for source in inbound.sources)
        lost = sum(source in self.outcomes for source in inbound.sources) - won
        if won >= inbound.needed:
            return "satisfied"
        out_of_reach = len(inbound.sources) - lost < inbound.needed
        # One that asks for more than it has may still get edges until all of them are resolved.
        short = inbound.needed > len(inbound.sources) and won + lost < len(inbound.sources)
        return "impossible" if out_of_reach and not short else ""

    def _cut(self, firing: set[int]) -> None:
        needed = {source for target in self._pending() for source in self.shape[target].sources}
        for target in firing:
            inbound = self.shape[target]
            if inbound.on_satisfied != "cancel_remaining":
                continue
            for source in set(inbound.sources) - self.outcomes.keys() - needed:
                reason = f"sibling_quorum_{self.fired[target]}"
                self.reasons.setdefault(source, set()).add(reason)
        for source in self.reasons:
            self.outcomes.setdefault(source, "cancelled")

    # ---- what that means for everything that is stored

    def state(self, number: int) -> str:
        states = {outcome: state for state, outcome in OUTCOMES.items()}
        if number in self.outcomes:
            return states[self.outcomes[number]]
        return "waiting" if number in self.free else "blocked"

    def edge_state(self, source: int) -> str:
        outcome = self.outcomes.get(source)
        if outcome is None:
            return "open"
        return "satisfied" if outcome == "success" else "impossible"

    def group(self, target: int) -> dict[str, Any]:
        inbound = self.shape[target]
        ended = [self.outcomes[s] for s in inbound.sources if s in self.outcomes]
        state = self.fired.get(target, "pending")
        cuts = inbound.on_satisfied == "cancel_remaining" and state != "pending"
        return {
            "n": len(inbound.sources),
            "succeeded": ended.count("success"),
            "skipped": ended.count("skipped"),
            "failed": len(ended) - ended.count("success") - ended.count("skipped"),
            "state": state,
            "cancel_reason": f"sibling_quorum_{state}" if cuts else "",
        }

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for number in range(len(self.shape)):
            state = self.state(number)
            public = public_state(state, "dependencies" if state == "blocked" else "")
            counts[public] = counts.get(public, 0) + 1
        return counts
