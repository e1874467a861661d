"""Claiming: take the best waiting work of some lanes, or wait until there is some."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from flowfabric.backend.base import TopicSubscription, lane_topic
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, NamedClaim, Offer
from flowfabric.core.plan import Fence, Timer
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import delay
from flowfabric.engine.attempts.claimed import (
    Claimed,
    answer_to,
    check_lease_ms,
    checked,
    claimed_from,
    end_unclaimable,
)
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.lanes import Idleness, Lanes, Route
from flowfabric.engine.limits.admission import Admissions, AdmittedRecord
from flowfabric.errors import FlowFabricError
from flowfabric.operations import workers as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.workers import (
    ClaimOrder,
    ClaimReply,
    ClaimTerms,
)

_log = logging.getLogger("flowfabric.claims")

MOST_WAIT_MS: Final = 30_000
# How often an idle claim asks the store without a notification; at random, so that many workers
# do not ask at once.
SAFETY_NET_S: Final = 5.0
# How often a claim asks again while all offered work had to be ended or was not admitted.
MOST_LOOKS: Final = 32
# A notification stands for little work most often: so many are asked for, and the rest only if so
# many came. Two identifiers are made for every execution asked for, whether it comes or not.
FIRST_CLAIMS: Final = 4

Leaving = asyncio.Future[Any]


# What a claim got, and whether it reached the end of the queue.
_Looked = tuple[list[Claimed], bool]
_Ask = Callable[[ClaimRequest], Awaitable[ClaimAnswer]]


class _Found(asyncio.Future[list[Claimed]]):
    """The result of a waiting claim. Its cancellation ends the wait, but not a call in progress:
    what that leases would belong to nobody."""

    # Kept here, because the loop does not hold it.
    waiting: asyncio.Task[None]

    def __init__(self, subscription: TopicSubscription) -> None:
        super().__init__()
        self._subscription = subscription

    def cancel(self, msg: Any = None) -> bool:
        self._subscription.close()
        return False


class Claims:
    def __init__(self, deps: Deps, lanes: Lanes, admissions: Admissions) -> None:
        self._deps = deps
        self._lanes = lanes
        self._admissions = admissions
        self._idleness = Idleness(deps.store.backend.notifier)

    async def claim(self, order: ClaimOrder, leaving: Leaving | None = None) -> list[Claimed]:
        """Lease up to `n` executions; with nothing there, wait for a notification of the lanes.

        A caller that may lose interest passes a future: once it is done the wait ends, but never
        in the middle of a claim, whose work would be leased by nobody.
        """
        whole(order.wait_ms, "wait_ms", 0, MOST_WAIT_MS)
        order = checked(order)
        if not order.wait_ms:
            return (await self._claim_now(order, self._deps.store.claim))[0]
        subscription = await self._subscribed(order)
        found = _Found(subscription)
        found.waiting = asyncio.ensure_future(self._wait(order, subscription, found))
        if leaving is not None:
            leaving.add_done_callback(lambda _: subscription.close())
        try:
            return await found
        except asyncio.CancelledError:
            if found.exception() is None:
                await asyncio.gather(*map(self._hand_back, found.result()))
            raise
        finally:
            subscription.close()

    @implements(declared.Workers.claim)
    async def claim_work(self, order: ClaimOrder) -> ClaimReply | None:
        check_lease_ms(order.lease_ms)
        return answer_to(order, await self.claim(order))

    async def claim_now(self, order: ClaimTerms) -> list[Claimed]:
        """Lease up to `n` executions of those that wait now."""
        return (await self._claim_now(checked(order), self._deps.store.claim))[0]

    async def request(self, order: ClaimTerms) -> ClaimRequest:
        """What to ask the store for on behalf of a worker; no lanes when none may be claimed from
        now."""
        return self._request(order, await self._route(order))

    def _route(self, order: ClaimTerms) -> Awaitable[Route]:
        return self._lanes.route(order)

    async def _subscribed(self, order: ClaimTerms) -> TopicSubscription:
        """Listen to all the lanes, whatever state they are in now."""
        topics = [lane_topic(order.namespace, lane) for lane in order.lanes]
        takes = (await self._route(order)).hears
        return self._deps.store.backend.notifier().subscribe(*topics, takes=takes)

    def _request(self, order: ClaimTerms, route: Route) -> ClaimRequest:
        mint = self._deps.mint
        return ClaimRequest(
            worker_id=order.worker_id,
            worker_instance_id=order.worker_instance_id,
            namespace=order.namespace,
            lanes=route.lanes,
            sets=route.sets,
            kinds=route.sought.takes.kinds,
            ids=(*[(mint(), mint()) for _ in range(order.n)],),
            lease_for=order.lease_ms,
            payload=order.payload,
            upstreams=order.upstreams,
        )

    async def take(self, order: ClaimTerms, answer: ClaimAnswer) -> list[Claimed]:
        """What came of the store's offers: leased ones, and reserved ones that were admitted."""
        leased: list[Offer] = []
        reserved: list[Record] = []
        for offer in answer.offers:
            if offer.disposition == "leased":
                leased.append(offer)
            elif offer.disposition == "reserved":
                reserved.append(offer.record)
            else:
                await end_unclaimable(self._deps, offer)
        if reserved:
            leased += await self._lease_admitted(order, reserved, has_work=bool(leased))
            places = {one.record.execution_id: at for at, one in enumerate(answer.offers)}
            leased.sort(key=lambda one: places[one.record.execution_id])
        if answer.more and leased:
            # This worker has what it asked for; the next one waiting may have the rest.
            self._deps.store.backend.notifier().notify_next(
                (await self._route(order)).sought.takes,
                *(lane_topic(order.namespace, lane) for lane in order.lanes),
            )
        return [claimed_from(self._deps, offer) for offer in leased]

    async def _wait(
        self, order: ClaimOrder, subscription: TopicSubscription, found: _Found
    ) -> None:
        """A task of its own, so that a caller who leaves cancels no claim; started at once, so that
        nothing delays it after a notification."""
        try:
            found.set_result(await self._found(order, subscription))
        except BaseException as fault:
            found.set_exception(fault)

    async def _found(self, order: ClaimOrder, subscription: TopicSubscription) -> list[Claimed]:
        loop = asyncio.get_running_loop()
        end = loop.time() + order.wait_ms / 1000
        claimed, is_everything = await self._first_look(order)
        few = msgspec.structs.replace(order, n=min(order.n, FIRST_CLAIMS))
        while not claimed and (left := end - loop.time()) > 0:
            if is_everything:
                await subscription.wait(min(left, self._nap_s()))
            if subscription.is_closed:
                break
            claimed, is_everything = await self._claim_now(few, self._deps.store.claim_promptly)
            if few.n < order.n and few.n == len(claimed):
                claimed += await self._rest(order, few.n)
        return claimed

    def _nap_s(self) -> float:
        """How long an idle claim waits for a notification before it asks without one."""
        is_disconnected = self._deps.store.backend.notifier().is_disconnected
        nap = self._deps.limits.claim_poll_ms / 1000 if is_disconnected else SAFETY_NET_S
        return nap * (0.75 + self._deps.chance() / 2)

    async def _first_look(self, order: ClaimOrder) -> _Looked:
        """The subscription began before this, so no later notification is missed."""
        if await self.is_idle(order):
            return [], True
        return await self._claim_now(order, self._deps.store.claim_promptly)

    async def is_idle(self, order: ClaimTerms) -> bool:
        """Whether a claim would find nothing, as far as this process knows."""
        return self._idleness.covers((await self._route(order)).sought)

    async def _hand_back(self, claimed: Claimed) -> None:
        proof = claimed.proof
        fence = Fence(proof.lease_id, proof.lease_epoch, proof.attempt_id)
        plan = delay(proof.execution_id, fence, Timer(wake_in=0), "hand_back")
        try:
            await self._deps.push(plan, claimed.record)
        except FlowFabricError:
            _log.exception(
                "execution %s was not handed back; its lease expires", proof.execution_id
            )

    async def _rest(self, order: ClaimOrder, first: int) -> list[Claimed]:
        rest = msgspec.structs.replace(order, n=order.n - first)
        try:
            return (await self._claim_now(rest, self._deps.store.claim_promptly))[0]
        except FlowFabricError as fault:
            _log.warning("claimed %d executions; the claim for more failed: %s", first, fault)
            return []

    async def _claim_now(self, order: ClaimTerms, ask: _Ask) -> _Looked:
        """One claim, repeated while all it gets is work that is ended or not admitted; and whether
        it reached the end of the queue."""
        for _ in range(MOST_LOOKS):
            route = await self._route(order)
            if not route.lanes:
                return [], True
            mark = self._idleness.mark(route.sought)
            answer = await ask(self._request(order, route))
            is_empty = not answer.more and len(answer.offers) < order.n
            self._idleness.note(route.sought, mark, is_empty=is_empty)
            claimed = await self.take(order, answer)
            if claimed or not answer.offers:
                return claimed, True
        return [], False

    async def _lease_admitted(
        self, order: ClaimTerms, reserved: Sequence[Record], *, has_work: bool
    ) -> list[Offer]:
        """Ask the limits of reserved records and lease those that are admitted.

        An error that comes from the limits is the caller's, unless it has work already, which it
        must not lose: then the grants expire.
        """
        try:
            admitted = await self._admissions.admit(reserved, order.lease_ms)
        except FlowFabricError:
            if not has_work:
                raise
            _log.exception("admission failed; the grants of %d executions expire", len(reserved))
            return []
        answers = await asyncio.gather(
            *(self._lease(order, one) for one in admitted), return_exceptions=True
        )
        faults = [answer for answer in answers if isinstance(answer, BaseException)]
        offers = [answer for answer in answers if isinstance(answer, Offer)]
        if faults and not offers and not has_work:
            raise faults[0]
        return offers

    async def _lease(self, order: ClaimTerms, admitted: AdmittedRecord) -> Offer | None:
        """Lease one admitted record under the name of its reservation, or give back what admission
        got for it."""
        record = admitted.record
        named = NamedClaim(
            execution_id=record.execution_id,
            grant_id=record.grant_id,
            worker_id=order.worker_id,
            worker_instance_id=order.worker_instance_id,
            lease_id=record.grant_id,
            attempt_id=self._deps.mint(),
            lease_for=order.lease_ms,
            payload=order.payload,
            upstreams=order.upstreams,
        )
        try:
            answer = await self._deps.store.lease(named)
        except FlowFabricError:
            await self._admissions.give_back(admitted)
            raise
        if isinstance(answer, Offer) and answer.disposition == "leased":
            return answer
        await self._admissions.give_back(admitted)
        if isinstance(answer, Offer):
            await end_unclaimable(self._deps, answer)
        return None
