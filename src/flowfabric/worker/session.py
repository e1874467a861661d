"""One claimed attempt while its handler runs: its lease, its journal, its output."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import cached_property, partial
from typing import Any, Final, TypeVar

import msgspec

from flowfabric.core.backoff import Backoff
from flowfabric.core.events import NONDETERMINISM
from flowfabric.core.journal import FAILED, JournalEntry
from flowfabric.core.policy import ExecutionPolicy, read_policy
from flowfabric.errors import (
    ConfigError,
    ExecutionNotActive,
    ExecutionNotFound,
    LeaseExpired,
    LeaseRevoked,
    Nondeterminism,
    StaleLease,
    StaleOwnerCannotAppend,
    StreamClosed,
    TransportError,
)
from flowfabric.operations.attempts import Appended, Kept, NewEntry, NewFrame, Output, Progress
from flowfabric.operations.workers import (
    MOST_STEPS,
    Claim,
    Delay,
    Fail,
    Park,
    Restart,
    WaitChildren,
)
from flowfabric.telemetry.traces import Traces
from flowfabric.worker.calls import WorkerCalls, all_of, fence_of, only
from flowfabric.worker.failures import Failures, KeptFailure, read_failure
from flowfabric.worker.journal_size import JOURNAL_FULL, JournalSize
from flowfabric.worker.output import FrameSender, is_in_step
from flowfabric.worker.progress import ProgressSender, ProgressUpdate

T = TypeVar("T")

# After these errors the lease is gone for good; the work runs elsewhere or not at all.
LEASE_IS_GONE: Final = (
    StaleLease,
    LeaseExpired,
    LeaseRevoked,
    ExecutionNotActive,
    ExecutionNotFound,
    StreamClosed,
    StaleOwnerCannotAppend,
)
_UNHEALTHY: Final = 3
_TRIES: Final = 5
_MOST_STEP_BYTES: Final = 256 * 1024
# While the store cannot be reached.
BACKOFF: Final = Backoff(0.05, 1.0)


Leave = Delay | WaitChildren | Park | Fail | Restart
# The input of the task from arguments, and its encoding.
EncodeInput = Callable[[tuple[Any, ...], Mapping[str, Any]], tuple[bytes, str]]


class Paused(BaseException):
    """Ends a handler's turn: the execution goes on later, in the same place. It is no `Exception`,
    so that handlers do not catch it by accident. `leave` is how the attempt gives up its lease;
    None when the lease is gone already."""

    def __init__(self, leave: Leave | None = None) -> None:
        super().__init__(leave)
        self.leave = leave


class Recorded(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a step as the journal keeps it: the call, its value, and how many frames it
    put out."""

    call: str
    value: msgspec.Raw = msgspec.Raw(b"null")
    frames: int = 0
    is_bytes: bool = False


_read: Final = msgspec.json.Decoder(Recorded).decode
_write: Final = msgspec.json.Encoder().encode


class JournalKey(msgspec.Struct, frozen=True):
    """The key of a journal entry: a name, and the number of its use within the handler."""

    name: str
    seq: int

    def __str__(self) -> str:
        return f"{self.name} (use {self.seq})"


OnStep = Callable[[Claim, JournalKey, tuple[Any, ...]], object]


class Session:
    """What all parts of a context share."""

    on_step: OnStep | None = None

    def __init__(
        self,
        claim: Claim,
        calls: WorkerCalls,
        monotonic: Callable[[], float] = time.monotonic,
        renew: Callable[[], Awaitable[None]] | None = None,
        threads: Executor | None = None,
    ) -> None:
        """`threads` run the steps that block."""
        self.claim = claim
        # Set for handlers that are called with arguments.
        self.encode_input: EncodeInput | None = None
        self.threads = threads
        self.calls = calls
        self._renew = renew
        self.is_released = False
        # Whether the worker, not the handler, cancelled what runs.
        self.is_cancelled = False
        self.pausing: Paused | None = None
        self._monotonic = monotonic
        self._began = monotonic()
        self.lease_until = claim.lease_expires_at
        # Renewals that failed in a row for another reason than a lost lease.
        self.failures = 0
        # The task that runs the handler.
        self.task: asyncio.Task[Any] | None = None
        # Grows with whatever the handler does through its context.
        self.activity = 0
        self._under_way = 0
        self._idle: asyncio.Event | None = None
        self.is_leaving = False
        # Whether signals have come that this entry has not read.
        self.has_news = claim.mail_count > 0
        # A mistake of the handler that it may not see itself.
        self.refused: ConfigError | None = None
        # Answers that the journal does not have yet, in the order they were given.
        self._unsaved: list[JournalEntry] = []

    # Created on first use: most handlers use few of them.

    @cached_property
    def traces(self) -> Traces:
        return Traces()

    @cached_property
    def output(self) -> FrameSender:
        return FrameSender(partial(_append_with_retries, self.calls, self.claim))

    @cached_property
    def progress(self) -> ProgressSender:
        return ProgressSender(self._send_progress)

    async def _send_progress(self, update: ProgressUpdate) -> None:
        fence = fence_of(self.claim)
        new = Progress(**fence, progress_pct=update.pct, progress_message=update.message)
        try:
            await self.calls.report_progress(new)
        except LEASE_IS_GONE:
            self.lose()

    async def flush_progress(self) -> None:
        if "progress" in vars(self) and not self.is_released:
            await self.progress.flush()

    @cached_property
    def lost(self) -> asyncio.Event:
        return asyncio.Event()

    @cached_property
    def _recorded(self) -> dict[tuple[str, int], JournalEntry]:
        return {}

    @cached_property
    def _unasked(self) -> set[tuple[str, int]]:
        """What the journal held at the beginning and the handler has not asked for."""
        return set()

    @cached_property
    def _size(self) -> JournalSize:
        return JournalSize()

    @cached_property
    def _saving(self) -> asyncio.Lock:
        return asyncio.Lock()

    @cached_property
    def _notes(self) -> list[JournalEntry]:
        """Outcomes that the next append records."""
        return []

    @cached_property
    def step_failures(self) -> Failures:
        return Failures(self._unsaved)

    @cached_property
    def _uses(self) -> Counter[str]:
        return Counter()

    @cached_property
    def _steps_in_flight(self) -> set[asyncio.Future[Any]]:
        return set()

    async def open(self) -> None:
        """Fetch what was recorded before, if anything was."""
        if self.claim.journal_length:
            self._keep(await self.calls.whole_journal(self.claim.execution_id))

    def _keep(self, entries: Iterable[JournalEntry]) -> None:
        self._recorded.update(((one.name, one.seq), one) for one in entries)
        self._unasked.update(self._recorded)
        self._size.load(self._recorded.values())

    @property
    def is_catching_up(self) -> bool:
        """Whether the journal holds answers that this entry has not asked for: the handler has been
        further than it is."""
        return "_unasked" in vars(self) and bool(self._unasked)

    @property
    def policy(self) -> ExecutionPolicy:
        return policy_of(self.claim)

    def now(self) -> int:
        """The store's clock, as far as it is known here."""
        return self.claim.claimed_at + int((self._monotonic() - self._began) * 1000)

    def lose(self) -> None:
        """The lease is gone: from now on no call of the context succeeds."""
        self.is_released = True
        self.lost.set()

    @property
    def is_overdue(self) -> bool:
        """Whether the lease may have run out unnoticed."""
        return self.failures >= _UNHEALTHY or self.is_lease_over

    @property
    def is_lease_over(self) -> bool:
        """Whether the lease has run out, unless a renewal's answer is still on its way."""
        return self.now() >= self.lease_until

    async def confirm_lease(self) -> None:
        """Before something that cannot be undone: a process that was frozen, or whose loop was
        blocked, must not act on a lease that ended meanwhile."""
        failures = 0
        while self._renew is not None and self.is_lease_over:
            await self._renew()
            self.check()
            if self.is_lease_over:
                failures += 1
                await asyncio.sleep(BACKOFF.pause_s(failures, random.random()))

    def check(self) -> None:
        """Refuse the calls of a handler that goes on after its turn is over."""
        if self.is_released:
            raise Paused
        if self.pausing is not None:
            raise self.pausing

    def pause(self, leave: Leave) -> "Paused":
        """The exception that ends the turn; kept, because a handler may swallow it."""
        if self.pausing is None:
            self.pausing = Paused(leave)
        return self.pausing

    def restart(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "Paused":
        """The exception that begins the next round with these arguments."""
        self.check()
        if self.encode_input is None:
            raise ConfigError("restart: only a task can be called again with arguments")
        return self.pause(Restart(*self.encode_input(args, kwargs)))

    # ---- the journal

    def next_key(self, name: str) -> JournalKey:
        """The key of the next use of a name; a handler must make its calls in the same order each
        time."""
        self.check()
        self.activity += 1
        self._uses[name] += 1
        if "step_failures" in vars(self):
            self.step_failures.go_on(name)
        return JournalKey(name, self._uses[name])

    def upcoming(self, name: str) -> JournalKey:
        """What `next_key` is about to return."""
        return JournalKey(name, self._uses[name] + 1)

    def recorded(self, key: JournalKey, digest: str, call: str) -> Recorded | None:
        """What was recorded under the key before; a recorded failure is raised, and a record of
        another call is an error."""
        if not self._recorded:
            return None
        self.raise_recorded(key, digest, call)
        entry = self._recorded.get((key.name, key.seq))
        if entry is None:
            return None
        found = _read(entry.outcome)
        self._require_same_call(key, entry, digest, found.call, call)
        self._unasked.discard((key.name, key.seq))
        self.output.skip(found.frames)
        return found

    def has_recorded(self, key: JournalKey) -> bool:
        return (key.name, key.seq) in self._recorded

    def has_failure(self, key: JournalKey) -> bool:
        return (FAILED + key.name, key.seq) in self._recorded

    def raise_recorded(self, key: JournalKey, digest: str, call: str) -> None:
        """Raise the failure that was recorded under the key, if one was."""
        entry = self._recorded.get((FAILED + key.name, key.seq))
        if entry is not None:
            found = read_failure(entry.outcome)
            self._require_same_call(key, entry, digest, found.call, call)
            self._unasked.discard((entry.name, entry.seq))
            self.output.skip(found.frames)
            raise self.step_failures.met(found, f"{key.name}#{key.seq}")

    def _require_same_call(
        self, key: JournalKey, entry: JournalEntry, digest: str, before: str, now: str
    ) -> None:
        if entry.digest != digest:
            raise self.stop(f"{key}: recorded {before}, now {now}")

    def stop(self, difference: str) -> Paused:
        """The exception that ends the turn of a handler that does not make the recorded calls."""
        reason = f"{difference}; a handler must make the same calls each time it is entered"
        if self.policy.on_nondeterminism == "fail":
            return self.pause(Fail(reason, NONDETERMINISM, False))
        return self.pause(Park(reason))

    async def record(
        self, key: JournalKey, digest: str, outcome: Recorded, take: tuple[int, ...] = ()
    ) -> Recorded:
        """Record an outcome; returns the one that counts, which may be an earlier record. The
        signals with the numbers `take` leave the mailbox in the same step."""
        entry = JournalEntry(key.name, key.seq, digest, _write(outcome))
        (kept,) = await self._append_journal((entry,), take)
        self._recorded[key.name, key.seq] = entry
        return outcome if kept.stored else _read(kept.outcome or b"")

    def record_later(self, key: JournalKey, digest: str, outcome: Recorded) -> None:
        """Record an outcome before anything is done upon it."""
        entry = JournalEntry(key.name, key.seq, digest, _write(outcome))
        self._unsaved.append(entry)
        self._recorded[key.name, key.seq] = entry

    def note(self, key: JournalKey, digest: str, outcome: Recorded) -> None:
        """Record an outcome with the next append, or before a pause: asked again until then, it
        would be the same."""
        if self.has_recorded(key):
            return
        entry = JournalEntry(key.name, key.seq, digest, _write(outcome))
        self._recorded[key.name, key.seq] = entry
        self._notes.append(entry)

    async def begin_effect(self) -> None:
        """Record what is still in memory: no effect may begin upon an outcome that could change."""
        if self._unsaved:
            async with self._saving:
                await self._save()

    async def take_unsaved(self) -> tuple[JournalEntry, ...]:
        """What is still in memory, to be journaled with the end of the attempt; more than a finish
        carries is journaled before it."""
        left = self._unsaved
        if len(left) > MOST_STEPS or sum(len(one.outcome) for one in left) > _MOST_STEP_BYTES:
            await self.begin_effect()
        taken = tuple(left)
        left.clear()
        return taken

    def drop_failures(self) -> None:
        """An attempt that ends by an exception forgets the failures that led to it."""
        self._unsaved[:] = [one for one in self._unsaved if not one.name.startswith(FAILED)]

    async def _save(self) -> None:
        # The output of steps that failed is stored first, as that of a step that succeeded.
        if self.is_putting_out:
            await self.under_lease(self.output.flush())
        entries = tuple(self._unsaved)
        if entries:
            await self._append_journal(entries)
            del self._unsaved[: len(entries)]

    async def _append_journal(
        self, entries: Sequence[JournalEntry], take: tuple[int, ...] = ()
    ) -> list[Kept]:
        held = fence_of(self.claim)
        noted = self._take_notes()
        new = (*noted, *entries)
        if not self._size.has_room(new):
            raise self._overflow()
        items = [NewEntry(**held, entry=one) for one in new]
        if take:
            items[-1] = msgspec.structs.replace(items[-1], take=take)

        async def append() -> list[Kept]:
            return all_of(await self.calls.append_journal(items))

        try:
            kept = await self.call(append)
        except Nondeterminism as fault:
            raise self.stop(fault.detail) from fault
        except BaseException:
            if noted:
                self._notes[:0] = noted
            raise
        self._size.add(new)
        return kept[len(noted) :]

    def _overflow(self) -> Paused:
        """The exception that ends an attempt whose journal has no room left. What is still in
        memory is lost with it."""
        self._unsaved.clear()
        self._take_notes()
        reason = f"journal: {self._size}; a handler that goes on for long calls ctx.restart"
        return self.pause(Fail(reason, JOURNAL_FULL, False))

    def _take_notes(self) -> list[JournalEntry]:
        if "_notes" not in vars(self):
            return []
        noted = list(self._notes)
        self._notes.clear()
        return noted

    def recorded_failure(self, fault: BaseException) -> KeptFailure | None:
        """The recorded failure that ends the handler, so that a retry could only meet it again."""
        return self.step_failures.recorded_in(fault) if "step_failures" in vars(self) else None

    # ---- the lease

    async def under_lease(self, call: Awaitable[T]) -> T:
        """The answer of a call; when it is refused because the lease is gone, the turn ends."""
        if self.is_released:
            if asyncio.iscoroutine(call):
                call.close()
            raise Paused
        self._under_way += 1
        try:
            return await call
        except LEASE_IS_GONE:
            self.lose()
            raise Paused from None
        finally:
            self._under_way -= 1
            if self._idle is not None:
                self._idle.set()

    async def call(self, request: Callable[[], Awaitable[T]]) -> T:
        """A request under the lease, repeated while the store cannot be reached."""
        return await self.under_lease(_retried(request))

    def start_step(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a step so that a pause elsewhere in the handler waits for it."""
        task = asyncio.ensure_future(work)
        self._steps_in_flight.add(task)
        task.add_done_callback(self._step_done)
        return task

    @property
    def is_busy(self) -> bool:
        """Whether a call of the context is under way that does not wait."""
        return bool(self._under_way or vars(self).get("_steps_in_flight"))

    async def idle(self) -> None:
        """Until a call has ended."""
        if self._idle is None:
            self._idle = asyncio.Event()
        self._idle.clear()
        await self._idle.wait()

    @property
    def is_over(self) -> bool:
        """Whether the turn ends for a reason that is not the handler's own."""
        return self.is_cancelled or self.is_released or self.pausing is not None

    def _step_done(self, task: "asyncio.Future[Any]") -> None:
        self._steps_in_flight.discard(task)
        if self._idle is not None:
            self._idle.set()
        # Marks the exception as seen: a handler that has left does not ask for it.
        if not task.cancelled():
            task.exception()

    async def drain_steps(self) -> None:
        """Wait for steps in flight and store their output, before the lease is given up."""
        if is_in_step():
            raise ConfigError("a step cannot wait: sleep, wait_for and call belong outside of it")
        while self._steps_in_flight:
            await asyncio.wait(set(self._steps_in_flight))
        await self.begin_effect()
        if vars(self).get("_notes"):
            await self._append_journal(())
        await self.under_lease(self.output.flush())
        await self.flush_progress()

    @property
    def is_putting_out(self) -> bool:
        """Whether something the handler put out is not known to be stored."""
        return "output" in vars(self) and self.output.is_busy

    def release(self) -> None:
        """The lease was given up on purpose."""
        self.is_released = True


def policy_of(claim: Claim) -> ExecutionPolicy:
    return read_policy(bytes(claim.policy).decode() if claim.policy else "")


async def append(calls: WorkerCalls, claim: Claim, frames: Sequence[NewFrame]) -> Appended:
    """Put frames out, all or none."""
    output = Output(**fence_of(claim), attempt_index=claim.attempt_index, frames=frames)
    return only(await calls.append_frames([output]))


async def _append_with_retries(calls: WorkerCalls, claim: Claim, frames: list[NewFrame]) -> None:
    await _retried(lambda: append(calls, claim, frames))


async def _retried(call: Callable[[], Awaitable[T]]) -> T:
    """For calls that may be repeated: tries again while the store cannot be reached."""
    for failures in range(1, _TRIES):
        try:
            return await call()
        except TransportError as fault:
            if not fault.retryable:
                raise
        await asyncio.sleep(BACKOFF.pause_s(failures))
    return await call()
