"""The use cases, one package per noun, assembled into one engine."""

import asyncio
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from flowfabric.backend.base import Backend
from flowfabric.backend.coalesce import Store
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.store_keys import NO_KEYS, StoreKeys
from flowfabric.engine.api_tokens import ApiTokens
from flowfabric.engine.attempts.children import HeldChildren
from flowfabric.engine.attempts.claims import Claims
from flowfabric.engine.attempts.finishing import Finishing
from flowfabric.engine.attempts.grants import Grants
from flowfabric.engine.attempts.journals import Journals
from flowfabric.engine.attempts.leases import Leases
from flowfabric.engine.attempts.outcomes import Outcomes
from flowfabric.engine.attempts.watches import Watches
from flowfabric.engine.deps import Deps, Limits
from flowfabric.engine.executions.explain import Explanations
from flowfabric.engine.executions.operators import Operators
from flowfabric.engine.executions.reads import Reads
from flowfabric.engine.executions.scheduling import Scheduling
from flowfabric.engine.executions.submit import Executions
from flowfabric.engine.executions.waits import Waits
from flowfabric.engine.flows.flows import Flows
from flowfabric.engine.flows.graphs import Graphs
from flowfabric.engine.flows.operators import FlowOperators
from flowfabric.engine.flows.reads import FlowReads
from flowfabric.engine.flows.settling import Settling
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.limits.admission import Admissions
from flowfabric.engine.limits.budgets import Budgets, Reservations
from flowfabric.engine.limits.quotas import Quotas
from flowfabric.engine.owners import Owners
from flowfabric.engine.schedules.schedules import Schedules
from flowfabric.engine.store import Facts
from flowfabric.engine.streams.events import Events
from flowfabric.engine.streams.streams import Streams
from flowfabric.engine.suspensions.keys import Keys
from flowfabric.engine.suspensions.mailbox import Mailboxes
from flowfabric.engine.suspensions.signals import Signals
from flowfabric.engine.suspensions.suspend import Suspensions
from flowfabric.engine.suspensions.waitpoints import Waitpoints
from flowfabric.engine.task_options import DeclaredOptions
from flowfabric.engine.tasks import Tasks
from flowfabric.engine.workers import Workers
from flowfabric.operations.declaration import Call, Operation, Transport


class Engine:
    """Everything that can be done with executions on one store."""

    def __init__(
        self,
        deps: Deps,
        searchable_tags: frozenset[str] = frozenset(),
        store_keys: StoreKeys = NO_KEYS,
    ) -> None:
        backend = deps.store.backend
        self.deps = deps
        self.lanes = Lanes(backend)
        self.settling = Settling(deps)
        deps.on_more = self.settling.go_on
        self.task_options = DeclaredOptions(deps)
        self.executions = Executions(deps, self.lanes, self.task_options)
        self.admissions = Admissions(deps)
        self.claims = Claims(deps, self.lanes, self.admissions)
        self.grants = Grants(deps, self.lanes, self.admissions)
        self.workers = Workers(deps)
        self.tasks = Tasks(deps, self.workers, self.task_options)
        self.leases = Leases(deps, self.workers)
        self.watches = Watches(deps)
        self.outcomes = Outcomes(deps)
        self.held_children = HeldChildren(deps, self.outcomes)
        self.finishing = Finishing(deps, self.outcomes, self.claims)
        self.budgets = Budgets(deps, self.outcomes)
        self.reservations = Reservations(deps)
        self.quotas = Quotas(deps)
        self.schedules = Schedules(deps, self.executions)
        self.scheduling = Scheduling(deps)
        self.operators = Operators(deps)
        self.flows = Flows(deps)
        self.flow_operators = FlowOperators(deps, self.settling, self.operators)
        self.flow_reads = FlowReads(deps)
        self.graphs = Graphs(deps, self.executions, self.lanes)
        self.reads = Reads(deps, self.lanes, self.workers)
        self.explanations = Explanations(deps, self.lanes, self.workers)
        self.events = Events(deps, searchable_tags)
        self.waits = Waits(deps, self.executions)
        self.streams = Streams(deps)
        self.journals = Journals(deps)
        self.keys = Keys(backend, deps.limits.waitpoint_grace_ms, store_keys)
        self.signals = Signals(deps, self.keys)
        self.mailboxes = Mailboxes(deps)
        self.suspensions = Suspensions(deps, self.keys, self.signals)
        self.waitpoints = Waitpoints(deps, self.keys)
        self.api_tokens = ApiTokens(deps)
        self.owners = Owners(deps)
        self.facts = Facts(deps)
        self._is_drained = False
        # The bound method that implements an operation: the transport within a process.
        self.use_case: Transport = dict(_use_cases(vars(self).values())).__getitem__

    async def drain(self) -> bool:
        """Let what runs in the background end; whether it did in time. What is left over is found
        by timers. A second call does not wait again."""
        parts, waits = (self.settling, self.deps.slots, self.lanes), not self._is_drained
        self._is_drained = True
        return all(await asyncio.gather(*(part.drain(waits=waits) for part in parts)))

    async def close(self) -> None:
        """Each part has its time; nothing is waited for twice."""
        await self.streams.close()
        self.events.close()
        await self.drain()
        await self.keys.close()
        await self.deps.secret.close()
        await self.lanes.close()
        await self.task_options.close()


def _use_cases(nouns: Iterable[object]) -> Iterator[tuple[Operation[..., Any], Call]]:
    for noun in nouns:
        for name, method in inspect.getmembers(type(noun), inspect.isfunction):
            declared = method.__dict__.get("operation")
            if declared is not None:
                yield declared, getattr(noun, name)


def engine_on(
    backend: Backend,
    counts: PartitionCounts | None = None,
    limits: Limits | None = None,
    searchable_tags: frozenset[str] = frozenset(),
    store_keys: StoreKeys = NO_KEYS,
) -> Engine:
    """An engine over an open store."""
    deps = Deps(Store(backend), counts or PartitionCounts(), limits)
    return Engine(deps, searchable_tags, store_keys)


__all__ = ["Deps", "Engine", "Limits", "engine_on"]
