"""What everybody else does: submit, operate, grant, keep house; and time that passes."""

from typing import Any, Final

from hypothesis import strategies as st

from flowfabric.backend.types import ConfigPut, Filter, ListRequest, PutAnswer
from flowfabric.core.plan import Guard, Plan
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import Grant, GrantClaim
from tests.model import strategies as some
from tests.model.comparing import walk
from tests.model.graphs import new_graph, shapes
from tests.model.sides import Side
from tests.model.world import World


class Submitters(World):
    def submit(self, data: st.DataObject) -> None:
        """New work, sometimes into a flow that may not exist, and once more under the same id."""
        fields: dict[str, Any] = data.draw(some.submissions)
        flow_id = data.draw(st.sampled_from(["", "", *sorted(self.known.flows), some.BUDGET]))
        given = {name: value for name, value in fields.items() if name not in ("delay", "deadline")}
        given = {"kind": "work"} | given
        if flow_id:
            given |= {"flow_id": flow_id, "namespace": "default"}
        submission = Submission(
            delay_until=self.at(fields["delay"]), deadline_at=self.at(fields["deadline"]), **given
        )
        answer = self.both(lambda side: side.engine.executions.create(submission))
        if answer.value is not None:
            again = Submission(kind="work", execution_id=answer.value.execution_id)
            self.both(lambda side: side.engine.executions.create(again))
            self.executions.append(answer.value.execution_id)

    def submit_graph(self, data: st.DataObject) -> None:
        shape = data.draw(shapes())

        async def call(side: Side) -> str:
            graph = new_graph(shape, side)
            (created,) = await side.backend.create_graph([graph])
            assert not isinstance(created, Exception), created
            return graph.flow.flow_id

        flow_id = self.both(call).value
        assert flow_id is not None
        self.known.flows.add(flow_id)
        wanted = Filter(namespace="default", flow_id=flow_id)
        records = self.run(walk(self.pair.reference, wanted))
        self.members[flow_id] = tuple(sorted(record.execution_id for record in records))
        self.executions += self.members[flow_id]


OPERATIONS: Final = (
    "cancel",
    "revoke",
    "block",
    "unblock",
    "change_priority",
    "replay",
    "tag",
    "resume",
    "promote_blocked",
    "look_at_its_timers",
)
# What an operator who looks first would do.
FITTING: Final = {
    "waiting": ("block", "change_priority", "cancel"),
    "delayed": ("change_priority", "look_at_its_timers"),
    "blocked": ("unblock", "promote_blocked", "cancel"),
    "active": ("revoke", "look_at_its_timers"),
    "lost": ("cancel", "look_at_its_timers"),
    "suspended": ("resume",),
}


class Operators(World):
    def operate(self, data: st.DataObject) -> None:
        execution_id = self.pick(data, self.executions)
        if execution_id is not None:
            fitting = FITTING.get(self.state_of(execution_id), ("replay",))
            act = data.draw(st.sampled_from(fitting) | st.sampled_from(OPERATIONS))
            getattr(self, f"_{act}_one")(execution_id, data)

    def _cancel_one(self, execution_id: str, data: st.DataObject) -> None:
        held = LeaseProof(execution_id, source=data.draw(some.sources))
        self.both(lambda side: side.engine.outcomes.cancel(held, "enough"))

    def _revoke_one(self, execution_id: str, data: st.DataObject) -> None:
        revocation = data.draw(some.revocations)
        self.both(lambda side: side.engine.leases.revoke(execution_id, revocation))

    def _block_one(self, execution_id: str, data: st.DataObject) -> None:
        reason, look = data.draw(some.blocking), data.draw(some.looks)
        self.both(lambda side: side.engine.scheduling.block(execution_id, reason, "why", look))

    def _unblock_one(self, execution_id: str, data: st.DataObject) -> None:
        expected = data.draw(st.one_of(st.just(""), some.blocking))
        self.both(lambda side: side.engine.scheduling.unblock(execution_id, expected))

    def _change_priority_one(self, execution_id: str, data: st.DataObject) -> None:
        priority = data.draw(st.sampled_from([-1, 0, 7, 9_001]))
        self.both(lambda side: side.engine.operators.change_priority(execution_id, priority))

    def _replay_one(self, execution_id: str, data: st.DataObject) -> None:
        reason = data.draw(st.sampled_from(["", "again"]))
        self.both(lambda side: side.engine.operators.replay(execution_id, reason, "ada"))

    def _tag_one(self, execution_id: str, data: st.DataObject) -> None:
        tags = data.draw(some.tag_writes)
        self.both(lambda side: side.engine.operators.set_execution_tags(execution_id, tags))

    def _resume_one(self, execution_id: str, data: st.DataObject) -> None:
        plan = Plan(
            target=execution_id,
            rule="resume",
            guard=Guard(frozenset({"suspended"})),
            set={"state": "waiting"},
            want="record",
        )
        self.apply([plan])

    def _promote_blocked_one(self, execution_id: str, data: st.DataObject) -> None:
        self.both(lambda side: side.engine.scheduling.promote_blocked_to_eligible(execution_id))

    def _look_at_its_timers_one(self, execution_id: str, data: st.DataObject) -> None:
        async def call(side: Side) -> object:
            engine = side.engine
            return (
                await engine.leases.mark_expired_if_due(execution_id),
                await engine.scheduling.promote_delayed(execution_id),
                await engine.scheduling.expire(execution_id, "execution_deadline"),
                await engine.scheduling.expire(execution_id),
                await engine.scheduling.evaluate_flow_eligibility(execution_id),
            )

        self.both(call)


_CONSUMING: Final = {
    "claim": "claim_execution",
    "resume": "claim_resumed",
    "reclaim": "reclaim",
}


class Schedulers(World):
    def grant(self, data: st.DataObject) -> None:
        """A reservation of this very execution, or of whatever is best."""
        execution_id = self.pick(data, self.executions) or some.NOWHERE
        method = data.draw(st.sampled_from(["issue", "issue_reclaim", "claim_for_worker"]))
        if method == "claim_for_worker":
            wanted = data.draw(some.orders)
            granted = self.both(lambda side: side.engine.grants.claim_for_worker(wanted)).value
            worker = (wanted.worker_id, wanted.worker_instance_id)
        else:
            order = data.draw(some.grant_orders)
            granted = self.both(
                lambda side: getattr(side.engine.grants, method)(execution_id, order)
            ).value
            worker = (order.worker_id, order.worker_instance_id)
        if isinstance(granted, Grant):
            self.grants.append((granted, worker))

    def consume_a_grant(self, data: st.DataObject) -> None:
        found = self.pick(data, self.grants)
        if found is None:
            return
        grant, owner = found
        worker = data.draw(st.just(owner) | some.workers)
        method = data.draw(st.sampled_from([*[_CONSUMING[grant.kind]] * 3, *_CONSUMING.values()]))
        claim = GrantClaim(
            execution_id=grant.execution_id,
            grant_key=grant.grant_key,
            worker_id=worker[0],
            worker_instance_id=worker[1],
        )
        answer = self.both(lambda side: getattr(side.engine.grants, method)(claim))
        self.hold([answer.value] if answer.value else None)

    def take_by_name(self, data: st.DataObject) -> None:
        execution_id, ttl = self.pick(data, self.executions), data.draw(some.lease_lengths)
        if execution_id is not None:
            answer = self.both(lambda side: side.engine.grants.issue_and_claim(execution_id, ttl))
            self.hold([answer.value] if answer.value else None)


class Keepers(World):
    def keep_house(self, data: st.DataObject) -> None:
        acts = ["register", "heartbeat", "mark_dead", "configure", "document", "browse", "purge"]
        act = data.draw(st.sampled_from(acts))
        getattr(self, f"_{act}")(data)

    def _register(self, data: st.DataObject) -> None:
        registration = data.draw(some.registrations)
        self.both(lambda side: side.engine.workers.register_worker(registration))

    def _heartbeat(self, data: st.DataObject) -> None:
        worker, namespace = data.draw(some.workers), data.draw(some.namespaces)
        self.both(lambda side: side.engine.workers.heartbeat_worker(worker[1], namespace))

    def _mark_dead(self, data: st.DataObject) -> None:
        worker, namespace = data.draw(some.workers), data.draw(some.namespaces)
        self.both(lambda side: side.engine.workers.mark_worker_dead(worker[1], "gone", namespace))

    def _configure(self, data: st.DataObject) -> None:
        states = ["active", "active", "active", "paused", "draining", "disabled"]
        state = data.draw(st.sampled_from(states))
        self.both(lambda side: side.engine.lanes.configure("default", "gpu", state=state))

    def _document(self, data: st.DataObject) -> None:
        """Put or remove a timed document, as somebody who saw it, or an older one."""
        name = data.draw(st.sampled_from(["timed/a", "timed/b"]))
        body, off = data.draw(st.sampled_from([b"", b"1", b"2"])), data.draw(st.integers(0, 1))
        due_at = self.at(data.draw(st.sampled_from([None, 0, 1_000]))) or 0

        async def call(side: Side) -> PutAnswer:
            (found,) = await side.backend.config_get([name])
            expected = found.version - off if found else off
            return (await side.backend.config_put([ConfigPut(name, expected, body, due_at)]))[0]

        self.both(call)

    def _browse(self, data: st.DataObject) -> None:
        wanted, order = data.draw(some.filters), data.draw(some.list_orders)
        limit = data.draw(st.integers(1, 4))

        async def call(side: Side) -> list[list[str]]:
            pages: list[list[str]] = []
            cursor = ""
            while not pages or cursor:
                asked = ListRequest(filter=wanted, order=order, cursor=cursor, limit=limit)
                page = await side.backend.search(asked)
                pages.append([record.execution_id for record in page.records])
                cursor = page.next_cursor
            return pages

        self.both(call)

    def _purge(self, data: st.DataObject) -> None:
        async def call(side: Side) -> object:
            return (await side.retention.visit()).counts

        self.both(call)


class Time(World):
    def pass_time(self, data: st.DataObject) -> None:
        """Some while, or until the very instant at which something happens by itself."""
        jump = data.draw(st.one_of(some.jumps, st.sampled_from(["due", "due", "almost due"])))
        if isinstance(jump, str):
            due = self.run(self.next_due())
            jump = max(0, due - self.clock() - (jump == "almost due"))
        self.clock.advance(jump)
        if data.draw(st.booleans()):
            self._sweep()

    def _sweep(self) -> None:
        """Act on what is due until nothing is: every timer fires once for its cause."""

        async def call(side: Side) -> list[object]:
            results: list[object] = []
            for _ in range(8):
                result = await side.sweep.visit()
                assert result.total("error") == 0, result.counts
                await side.rest()
                results.append(result.counts)
                if not result.total("processed"):
                    break
            page = await side.backend.due(100)
            assert (page.records, page.flows) == ((), ()), "a timer fires again and again"
            return results

        self.both(call)
