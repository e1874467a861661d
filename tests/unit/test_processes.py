"""Which process this is, and whether another one still runs."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from flowfabric.config.processes import is_gone, own_process, ticks_at_start
from flowfabric.core.processes import ProcessId, parse_process


def test_a_process_knows_itself() -> None:
    own = own_process()
    assert own is not None
    assert (own.pid, own.user) == (str(os.getpid()), str(os.getuid()))
    assert not is_gone(own)
    assert parse_process(str(own)) == own


def _child() -> tuple["subprocess.Popen[bytes]", ProcessId]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    own = own_process()
    assert own is not None
    return child, ProcessId(*own.place, str(child.pid), ticks_at_start(child.pid))


async def test_a_killed_process_is_gone_before_its_parent_looks() -> None:
    child, process = _child()
    assert not is_gone(process)
    child.send_signal(signal.SIGKILL)
    ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    assert is_gone(process)
    child.communicate()
    assert is_gone(process)


async def test_a_frozen_process_is_not_gone() -> None:
    child, process = _child()
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert not is_gone(process)
    child.kill()
    await asyncio.to_thread(child.communicate)


def test_a_number_that_was_given_again_is_another_process() -> None:
    own = own_process()
    assert own is not None
    assert is_gone(ProcessId(*own.place, own.pid, "1"))


@pytest.mark.parametrize("text", ["", "a", "a/b/c/d", "a/b/c/d/e/f", "a/b/c//e"])
def test_what_does_not_tell_a_process_is_none(text: str) -> None:
    assert parse_process(text) is None
