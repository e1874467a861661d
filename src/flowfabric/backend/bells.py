"""Doorbells inside one process."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from itertools import repeat
from typing import Final

# Names whose rings are counted; with more, counting begins anew.
_MOST_COUNTED: Final = 10_000


class LocalBells:
    """Rings reach every listener of a name, except on a lane: there one ring wakes the claim that
    has waited longest, because one piece of work needs one worker. Use from one event loop."""

    def __init__(self) -> None:
        self._listeners: dict[str, OrderedDict[LocalListening, None]] = {}
        self._rings: dict[str, int] = {}
        self._unheard = 0
        # When something last came on the way that all rings come, if they have one in common.
        self.proven_at = 0.0

    def listen(self, *names: str) -> "LocalListening":
        listening = LocalListening(self, names)
        for name in names:
            self._listeners.setdefault(name, OrderedDict())[listening] = None
        return listening

    def ring(self, *names: str) -> None:
        for name in names:
            self._ring(name, LocalListening.wake)

    def confirm(self, name: str) -> None:
        """From now on rings are heard: to those who have looked already it counts as one."""
        self._ring(name, LocalListening.confirm)

    def _ring(self, name: str, wake: Callable[["LocalListening"], None]) -> None:
        if name in self._rings:
            self._rings[name] += 1
        listeners = self._listeners.get(name)
        if not listeners:
            return
        if not name.startswith("lane:"):
            for listening in list(listeners):
                wake(listening)
            return
        for longest_waiting in listeners:
            if not longest_waiting.is_rung:
                longest_waiting.wake()
                return

    def ring_all(self) -> None:
        """Wake everybody: something may have happened that no bell told of."""
        self._unheard += 1
        for listeners in list(self._listeners.values()):
            for listening in list(listeners):
                listening.wake()

    def mark(self, *names: str) -> tuple[int, ...]:
        if len(self._rings) > _MOST_COUNTED:
            self._rings.clear()
            self._unheard += 1
        return (self._unheard, *map(self._rings.setdefault, names, repeat(0)))

    @property
    def is_deaf(self) -> bool:
        """Every ring comes from this process."""
        return False

    def has_listener(self, name: str) -> bool:
        return name in self._listeners

    def forget(self, listening: "LocalListening") -> None:
        for name in listening.names:
            listeners = self._listeners.get(name)
            if listeners is not None:
                listeners.pop(listening, None)
                if not listeners:
                    del self._listeners[name]


class LocalListening:
    """For one who waits at a time."""

    def __init__(self, bells: LocalBells, names: tuple[str, ...]) -> None:
        self.names = names
        self.is_rung = False
        self._bells = bells
        self._waiter: asyncio.Future[None] | None = None
        # Whether all it heard is that rings will be heard.
        self._is_confirmed_only = False
        # Whether that counts as a ring.
        self._has_looked = True
        self.is_closed = False
        # Done as soon as rings of other processes are heard; None if they are already.
        self.heard: asyncio.Future[None] | None = None

    @property
    def proven_at(self) -> float:
        return self._bells.proven_at

    def wake(self) -> None:
        self._is_confirmed_only = False
        self._rung()

    def confirm(self) -> None:
        if self._has_looked:
            self._is_confirmed_only |= not self.is_rung
            self._rung()

    def _rung(self) -> None:
        self.is_rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def begun(self, timeout: float) -> None:
        """Until rings are certain to be heard, or the time is up. That they are is no ring to those
        who ask."""
        if self.heard is not None and not self.heard.done():
            self.is_rung = await self.wait(timeout)
        self._forget_confirmed()

    def _forget_confirmed(self) -> None:
        if self._is_confirmed_only:
            self.is_rung = False

    async def wait_unlooked(self, timeout: float) -> bool:
        """Wait as one who has not looked yet: that rings are heard is no ring to them."""
        self._forget_confirmed()
        self._has_looked = False
        try:
            return await self.wait(timeout)
        finally:
            self._has_looked = True

    async def wait(self, timeout: float | None) -> bool:
        """Wait for a ring since the last wait; False when the time or the listening ended first."""
        if not self.is_rung and not self.is_closed:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = None if timeout is None else loop.call_later(timeout, _end, waiter)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        return self.take()

    def take(self) -> bool:
        """Whether it rang since the last look, without waiting."""
        rang, self.is_rung = self.is_rung, False
        return rang

    def close(self) -> None:
        """Stop listening, and waiting. A ring nobody looked at is passed on, so that it is not
        lost."""
        if self.is_closed:
            return
        self.is_closed = True
        self._bells.forget(self)
        if self.is_rung:
            self._bells.ring(*(name for name in self.names if name.startswith("lane:")))
        elif self._waiter is not None:
            _end(self._waiter)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
