"""Random flows: graphs submitted, edited, run, replayed and cancelled, beside a book of them."""

import asyncio
from typing import Any, Final
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from flowfabric.backend.flow_store import EdgeQuery, MemberQuery
from flowfabric.backend.types import Seen
from flowfabric.core.ids import for_flow
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import Failure
from flowfabric.core.states import FINAL, OUTCOMES
from flowfabric.engine.attempts.outcomes import Done
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.executions import Submission
from flowfabric.operations.flows import (
    EdgeAlreadyApplied,
    GraphEdge,
    GraphGroup,
    GraphNode,
    GraphSubmission,
    NewEdge,
    StagedEdge,
)
from flowfabric.operations.workers import ClaimOrder
from tests.model.flowbook import FlowBook, Rule
from tests.model.sides import COUNTS, Side, agree
from tests.model.world import Open, World

BROKEN: Final = Failure("broken", "permanent")
LATER: Final = 9_000_000_000_000
POLICIES: Final = ("cancel_all", "cancel_pending", "flow_only")
ACTS: Final = (
    "work",
    "work",
    "work",
    "work",
    "claim",
    "claim",
    "grow",
    "stage",
    "stage",
    "link",
    "choose",
    "cancel_member",
    "replay_member",
    "replay_flow",
    "submit",
    "cancel_flow",
    "wait",
)


@st.composite
def policies(draw: st.DrawFn, width: int) -> dict[str, object]:
    kind = draw(st.sampled_from(["all_of", "any_of", "quorum"]))
    if kind == "all_of":
        return {"kind": kind}
    cut = draw(st.sampled_from(["cancel_remaining", "let_run"]))
    if kind == "any_of":
        return {"kind": kind, "on_satisfied": cut}
    return {"kind": kind, "k": draw(st.integers(1, width + 1)), "on_satisfied": cut}


def rule_of(policy: Any) -> Rule:
    k = {"all_of": 0, "any_of": 1}.get(policy["kind"], policy.get("k", 0))
    return Rule(k, policy.get("on_satisfied") == "cancel_remaining")


@st.composite
def graphs(draw: st.DrawFn) -> GraphSubmission:
    size = draw(st.integers(2, 7))
    names = [f"n{i}" for i in range(size)]
    edges: list[GraphEdge] = []
    groups: list[GraphGroup] = []
    for target in range(1, size):
        some = st.sets(st.integers(0, target - 1), max_size=4)
        sources = sorted(draw(some))
        ref = draw(st.sampled_from(["", "input", "report"]))
        is_special = draw(st.booleans())
        edges += [
            GraphEdge(source=names[one], target=names[target], data_passing_ref=ref)
            for one in sources
        ]
        if sources and is_special:
            groups.append(GraphGroup(names[target], draw(policies(len(sources)))))
    return GraphSubmission(
        nodes=tuple(GraphNode(kind="work", name=name, input=b"original") for name in names),
        edges=tuple(edges),
        groups=tuple(groups),
    )


class FlowsModel(World):
    def __init__(self, open_store: Open) -> None:
        super().__init__(open_store)
        self.books: dict[str, FlowBook] = {}
        self.cancelled: dict[str, str] = {}
        self._numbers = 0

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.submit(data)
        self.claim(data)

    @rule(acts=st.lists(st.sampled_from(ACTS), min_size=1, max_size=6), data=st.data())
    def somebody_acts(self, acts: list[str], data: st.DataObject) -> None:
        """Several things happen before anybody looks: looking is what takes long."""
        for act in acts:
            getattr(self, act)(data)
            self._end_what_the_flow_cancels()

    def wait(self, data: st.DataObject) -> None:
        """Leases run out; nothing in here ends by the clock."""
        self.clock.advance(data.draw(st.sampled_from([1, 1_000, 40_000])))
        self.both(_sweep)

    # ---- building

    def submit(self, data: st.DataObject) -> None:
        asked = data.draw(graphs())
        submitted = self.both(lambda side: side.engine.graphs.submit_graph(asked)).value
        assert submitted is not None
        book = self._new_book(submitted.flow_id)
        ids = submitted.executions
        for own in ids.values():
            book.join(own)
        for group in asked.groups:
            book.choose(ids[group.target], rule_of(group.policy))
        for edge in self._edges(submitted.flow_id):
            book.stage(edge.edge_id, edge.source, edge.target)
        for name in book.arrows:
            book.link(name)
        self.executions += ids.values()

    def grow(self, data: st.DataObject) -> None:
        """A new flow, or one more member of an old one: created in it, or joining it later."""
        flow_id = self._some_flow(data)
        if flow_id is None or data.draw(st.integers(0, 4)) == 0:
            flow_id = self._uuid()
            self.both(lambda side: side.engine.flows.create_flow(flow_id))
            self._new_book(flow_id)
        delay = data.draw(st.sampled_from([None, LATER]))
        if data.draw(st.booleans()):
            asked = Submission(kind="work", flow_id=flow_id, delay_until=delay)
            made = self.both(lambda side: side.engine.executions.create(asked)).value
            if made is not None:
                self._joined(flow_id, made.execution_id)
            return
        own = for_flow(COUNTS, flow_id, self._uuid())
        self.both(
            lambda side: side.engine.executions.create(
                Submission(kind="work", execution_id=own, delay_until=delay)
            )
        )
        added = self.both(lambda side: side.engine.flows.add_member(flow_id, own))
        if added.error is None:
            self._joined(flow_id, own)

    def _joined(self, flow_id: str, own: str) -> None:
        self.books[flow_id].join(own)
        self.executions.append(own)

    def stage(self, data: st.DataObject) -> None:
        flow_id = self._some_flow(data)
        if flow_id is None or len(self.books[flow_id].members) < 2:
            return
        members = sorted(self.books[flow_id].members)
        ends = data.draw(st.lists(st.sampled_from(members), min_size=2, max_size=2))
        edge_id, apply = self._uuid(), data.draw(st.booleans())
        revision = self._revision(flow_id) - data.draw(st.sampled_from([0, 0, 0, 1]))
        if revision < 0:
            return
        edge = NewEdge(
            edge_id=edge_id,
            upstream=ends[0],
            downstream=ends[1],
            expected_graph_revision=revision,
            apply=apply,
        )
        answer = self.both(lambda side: side.engine.flows.stage_edge(flow_id, edge))
        if answer.error is None:
            self.books[flow_id].stage(edge_id, *ends)
            if apply:
                self.books[flow_id].link(edge_id)

    def link(self, data: st.DataObject) -> None:
        flow_id = self._some_flow(data)
        if flow_id is None:
            return
        book = self.books[flow_id]
        name = self.pick(data, sorted(book.arrows))
        if name is None:
            return
        staged = StagedEdge(edge_id=name, downstream=book.arrows[name].target)
        answer = self.both(lambda side: side.engine.flows.apply_edge(flow_id, staged))
        if answer.error is None and answer.value != EdgeAlreadyApplied():
            book.link(name)

    def choose(self, data: st.DataObject) -> None:
        flow_id = self._some_flow(data)
        target = self.pick(data, sorted(self.books[flow_id].members)) if flow_id else None
        if flow_id is None or target is None:
            return
        policy: Any = data.draw(policies(2))
        answer = self.both(
            lambda side: side.engine.flows.set_edge_group_policy(flow_id, target, policy)
        )
        if answer.error is None:
            self.books[flow_id].choose(target, rule_of(policy))

    # ---- running

    def claim(self, data: st.DataObject) -> None:
        order = ClaimOrder(
            worker_id="pool",
            worker_instance_id="pool-1",
            lanes=("default",),
            n=data.draw(st.integers(1, 3)),
            lease_ms=30_000,
            upstreams=data.draw(st.booleans()),
        )
        self.hold(self.both(lambda side: side.engine.claims.claim(order)).value)

    def work(self, data: st.DataObject) -> None:
        held = self.pick(data, self.holdings)
        if held is None:
            self.claim(data)
            return
        match data.draw(st.sampled_from(["complete", "complete", "fail", "hand_back", "park"])):
            case "complete":
                self._finish(held, "success")
            case "fail":
                self._finish(held, "failed")
            case "hand_back":
                self.both(lambda side: side.engine.outcomes.delay(held, for_ms=0))
            case _:
                self._park(held, data)

    def _finish(self, held: LeaseProof, outcome: str) -> None:
        async def call(side: Side) -> Done:
            if outcome == "success":
                return await side.engine.outcomes.complete(held, b"result")
            return await side.engine.outcomes.fail(held, BROKEN)

        done = self.both(call).value
        if done is not None and not done.replayed:
            self._book_of(held.execution_id).end(held.execution_id, outcome)

    def _park(self, held: LeaseProof, data: st.DataObject) -> None:
        own = held.execution_id
        book = self._book_of(own)
        others = sorted(book.members - {own})
        children = data.draw(st.lists(st.sampled_from(others), max_size=2)) if others else []
        before = set(book.arrows)
        done = self.both(
            lambda side: side.engine.outcomes.wait_for_children(held, tuple(children))
        ).value
        if done is None or done.replayed:
            return
        if not children:
            book.wait_for_what_is_open(own)
            return
        flow_id = next(name for name, one in self.books.items() if own in one.members)
        news = [edge for edge in self._edges(flow_id) if edge.edge_id not in before]
        book.park(own, [(edge.edge_id, edge.source) for edge in news])

    def cancel_member(self, data: st.DataObject) -> None:
        own = self.pick(data, self.executions)
        if own is None or self.state_of(own) in FINAL:
            return
        self.both(lambda side: side.engine.outcomes.cancel(LeaseProof(own), "enough"))
        self._book_of(own).end(own, "cancelled")

    def replay_member(self, data: st.DataObject) -> None:
        own = self.pick(data, self.executions)
        if own is None:
            return
        if self.both(lambda side: side.engine.operators.replay(own)).error is None:
            self._book_of(own).replay(own)

    def replay_flow(self, data: st.DataObject) -> None:
        flow_id = self._some_flow(data)
        if flow_id is None:
            return

        async def call(side: Side) -> list[tuple[str, str, str]]:
            done = await side.engine.flow_operators.replay_flow(flow_id)
            return [(one.execution_id, one.public_state, str(one.error)) for one in done.items]

        for own, state, _ in self.both(call).value or ():
            if state:
                self.books[flow_id].replay(own)

    def cancel_flow(self, data: st.DataObject) -> None:
        flow_id = self._some_flow(data)
        if flow_id is None or data.draw(st.booleans()):
            return
        policy, wait = data.draw(st.sampled_from(POLICIES)), data.draw(st.booleans())
        self.both(
            lambda side: side.engine.flow_operators.cancel_flow(
                flow_id, policy, "enough", wait=wait
            )
        )
        self.cancelled.setdefault(flow_id, policy)

    def _end_what_the_flow_cancels(self) -> None:
        """Members that a cancelled flow ends have ended, whenever they came to such a state."""
        for flow_id, policy in self.cancelled.items():
            book = self.books[flow_id]
            for record in self._records(flow_id):
                own = record.execution_id
                spared = policy == "flow_only" or (
                    policy == "cancel_pending" and record.state in ("active", "lost")
                )
                assert spared or record.state in FINAL
                if record.cancelled_by == "flow_cascade" and own not in book.outcomes:
                    book.end_without_settling(own)

    # ---- what must hold

    @invariant()
    def flows_are_what_the_books_say(self) -> None:
        for flow_id, book in self.books.items():
            found = {one.record.execution_id: one for one in self._seen(flow_id)}
            agree("members", sorted(book.members), sorted(found))
            for own, seen in found.items():
                _agree_on_member(book, own, seen)

    @invariant()
    def reads_agree(self) -> None:
        async def look(side: Side) -> object:
            reads, ids = side.engine.flow_reads, sorted(self.books)
            return await asyncio.gather(
                *(reads.describe_flow(flow_id) for flow_id in ids),
                *(reads.list_members(flow_id) for flow_id in ids),
                *(side.backend.flows_in(number, "", 100) for number in range(COUNTS.flow)),
            )

        self.both(look)

    # ---- helpers

    def _new_book(self, flow_id: str) -> FlowBook:
        self.known.flows.add(flow_id)
        self.books[flow_id] = FlowBook()
        return self.books[flow_id]

    def _book_of(self, execution_id: str) -> FlowBook:
        """The book it is in; one that joined no flow is in a book of its own."""
        books = (book for book in self.books.values() if execution_id in book.members)
        return next(books, FlowBook())

    def _some_flow(self, data: st.DataObject) -> str | None:
        return self.pick(data, list(self.books))

    def _uuid(self) -> str:
        self._numbers += 1
        return str(UUID(int=self._numbers, version=4))

    def _revision(self, flow_id: str) -> int:
        (flow,) = self.run(self.pair.reference.backend.flows([flow_id]))
        assert flow is not None
        return flow.graph_revision

    def _edges(self, flow_id: str) -> tuple[Any, ...]:
        (edges,) = self.run(self.pair.reference.backend.edges([EdgeQuery(flow_id, "flow")]))
        return edges

    def _seen(self, flow_id: str) -> list[Seen]:
        backend = self.pair.reference.backend
        members = self.run(backend.members(MemberQuery(flow_id=flow_id)))
        ids = [one.execution_id for one in members]
        return [one for one in self.run(backend.read(ids, frozenset({"group"}))) if one]

    def _records(self, flow_id: str) -> list[Record]:
        return [one.record for one in self._seen(flow_id)]


def _agree_on_member(book: FlowBook, own: str, seen: Seen) -> None:
    record = seen.record
    outcome = OUTCOMES.get(record.state, "")
    agree(f"{own} ended", book.outcomes.get(own, ""), outcome)
    waits = record.state == "blocked" and record.reason == "dependencies"
    agree(f"{own} waits", own in book.waiting, waits)
    for edge in seen.incoming:
        agree(f"edge {edge.edge_id}", book.arrows[edge.edge_id].state, edge.state)
    junction = book.junctions.get(own)
    if junction is None or seen.group is None:
        agree(f"{own} has a group", junction is not None, seen.group is not None)
        return
    group = seen.group
    won, lost, n = book.outcomes_of(own)
    agree(
        f"group of {own}",
        (junction.state, won, lost, n, len(book.staged(own)), junction.round),
        (
            group.state,
            group.succeeded,
            group.failed + group.skipped,
            group.n,
            group.staged,
            group.round,
        ),
    )


async def _sweep(side: Side) -> object:
    return (await side.sweep.visit()).counts


def flows_model_of(open_store: Open) -> type[FlowsModel]:
    class FlowsOfOneStore(FlowsModel):
        def __init__(self) -> None:
            super().__init__(open_store)

    return FlowsOfOneStore
