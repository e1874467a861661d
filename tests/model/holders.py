"""What workers do: claim, hold, end or pause, write output, with fences right and wrong."""

from typing import Final

from hypothesis import strategies as st

from flowfabric.backend.types import ClaimAnswer
from flowfabric.core.fence import Fence
from flowfabric.core.plan import Guard, PauseAttempt, Plan, Timer
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import Failure, complete, delay, fail, park, progress, renew
from flowfabric.core.rules.operators import cancel
from flowfabric.engine.lease_proof import LeaseProof, proof_from
from tests.conformance.worker_calls import renewal
from tests.model import strategies as some
from tests.model.sides import Side
from tests.model.world import World, told

ACTS: Final = (
    "complete",
    "complete",
    "fail",
    "fail",
    "delay_until",
    "delay_for",
    "wait_for_children",
    "suspend",
    "renew",
    "renew_all",
    "report",
    "append",
    "journal",
    "send_plans_again",
    "cancel",
)
PLANS: Final = ("complete", "fail", "delay", "hand back", "park", "renew", "progress", "cancel")


def plan_for(name: str, held: LeaseProof, record: Record) -> Plan:
    """A plan as a holder decides it from its claim alone, without asking the store."""
    own = held.execution_id
    fence = Fence(held.lease_id, held.lease_epoch, held.attempt_id)
    match name:
        case "complete":
            return complete(own, fence, b"done", "", "op")
        case "fail":
            return fail(record, fence, Failure("it broke", "transient"), 0.5, "op")
        case "delay":
            return delay(own, fence, Timer(wake_in=700), "op")
        case "hand back":
            return delay(own, fence, Timer(wake_in=0), "op")
        case "park":
            return park(own, fence, None, "op")
        case "renew":
            return renew(own, fence, 30_000)
        case "progress":
            return progress(own, fence, 50, "half")
        case _:
            return cancel(own, "enough", "lease_holder", fence)


class Holders(World):
    def claim(self, data: st.DataObject) -> list[LeaseProof]:
        order = data.draw(some.orders)
        claimed = self.both(lambda side: side.engine.claims.claim(order)).value or []
        self.hold(claimed)
        return [one.proof for one in claimed]

    def work(self, data: st.DataObject) -> None:
        """Claim, and do something with everything that was claimed."""
        for held in self.claim(data):
            self._act(held, "as claimed", data)

    def act(self, data: st.DataObject) -> None:
        """Whatever a holder may do, under any lease there ever was."""
        held = self.pick(data, self.holdings)
        if held is not None:
            self._act(held, data.draw(some.hows), data)

    def finish_and_claim(self, data: st.DataObject) -> None:
        """Plans and a claim behind them in one step of the store."""
        held, name = self.pick(data, self.holdings), data.draw(st.sampled_from(PLANS))
        plans = [plan_for(name, held, held.record)] if held and held.record else []
        order = data.draw(some.orders)

        async def call(side: Side) -> tuple[list[object], ClaimAnswer]:
            finished = await side.backend.finish(plans, some.request_of(order, side.mint))
            return told(finished.answers), finished.claimed

        answer = self.both(call)
        offers = answer.value[1].offers if answer.value else ()
        self.holdings += [
            proof_from(offer.record) for offer in offers if offer.disposition == "leased"
        ]

    def _act(self, held: LeaseProof, how: str, data: st.DataObject) -> None:
        act = data.draw(st.sampled_from(ACTS))
        getattr(self, f"_{act}")(held, some.as_sent(held, how), data)

    def _complete(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        result = data.draw(st.one_of(st.none(), some.bodies))
        self.both(lambda side: side.engine.outcomes.complete(sent, result, "json"))

    def _fail(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        failure = data.draw(some.failures)
        self.both(lambda side: side.engine.outcomes.fail(sent, failure))

    def _delay_until(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        until = self.clock() + data.draw(some.offsets)
        self.both(lambda side: side.engine.outcomes.delay(sent, until=until))

    def _delay_for(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        for_ms = data.draw(st.sampled_from([0, 0, 800]))
        self.both(lambda side: side.engine.outcomes.delay(sent, for_ms=for_ms))

    def _wait_for_children(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        flow_id = held.record.flow_id if held.record else ""
        siblings = self.members.get(flow_id, ())
        named: tuple[str, ...] = ()
        if siblings:
            named = tuple(data.draw(st.lists(st.sampled_from(siblings), max_size=2)))
        self.both(lambda side: side.engine.outcomes.wait_for_children(sent, named))

    def _suspend(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        """Wait for the outside, as far as a store is concerned."""
        plan = Plan(
            target=held.execution_id,
            rule="suspend",
            guard=Guard(
                frozenset({"active"}), Fence(held.lease_id, held.lease_epoch, held.attempt_id)
            ),
            op="suspend",
            set={"state": "suspended", "reason": "signal", "next": "resume"},
            attempt=PauseAttempt("worker_delay"),
        )
        self.apply([plan])

    def _renew(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        ttl = data.draw(some.lease_lengths)
        index = data.draw(st.sampled_from([None, None, 0, 1]))
        self.both(lambda side: side.engine.leases.renew(sent, ttl, index))

    def _renew_all(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        """All leases a forgetful worker believes to hold, in one call."""
        holdings = [held, sent, *self.holdings[-6:]]

        async def call(side: Side) -> list[object]:
            items = [renewal(one) for one in holdings]
            reply = await side.engine.leases.renew_leases("pool-1", 30_000, items)
            return told(reply.items)

        self.both(call)

    def _report(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        percent = data.draw(st.sampled_from([None, 0, 50, 101]))
        self.both(lambda side: side.engine.leases.progress(sent, percent, "at work"))

    def _append(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        frames = data.draw(some.frames)
        index = held.record.attempt_index if held.record else 0
        self.known.streams.add((held.execution_id, index))
        self.both(lambda side: side.engine.streams.append(sent, index, frames))

    def _journal(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        entries = data.draw(some.journal_entries)
        self.known.journals.add(held.execution_id)
        self.both(lambda side: side.engine.journals.append(sent, entries))

    def _send_plans_again(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        """Under leases old and new, as often as a caller may repeat them after a lost answer."""
        name = data.draw(st.sampled_from(PLANS))
        times = data.draw(st.integers(1, 3))
        holdings = (held, *self.holdings[-3:])
        self.apply([plan_for(name, one, one.record) for one in holdings if one.record] * times)

    def _cancel(self, held: LeaseProof, sent: LeaseProof, data: st.DataObject) -> None:
        source = data.draw(some.sources)
        given = LeaseProof(
            sent.execution_id, sent.lease_id, sent.lease_epoch, sent.attempt_id, source
        )
        self.both(lambda side: side.engine.outcomes.cancel(given, "enough"))
