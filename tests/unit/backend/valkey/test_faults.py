"""What each error of a server means to a caller."""

import libvalkey
import pytest

from flowfabric.backend.valkey.faults import (
    Redirect,
    fault_of,
    is_missing_function,
    is_unsettled,
    redirect_of,
)
from flowfabric.errors import (
    AuthFault,
    Bug,
    BusyLoading,
    ClusterFault,
    FlowFabricError,
    OtherFault,
    ProtocolFault,
    ResourceExhausted,
    ScriptNotLoaded,
    TransportFault,
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("ERR Function not found", ScriptNotLoaded),
        ("NOSCRIPT No matching script", ScriptNotLoaded),
        ("NOAUTH Authentication required.", AuthFault),
        ("WRONGPASS invalid username-password pair", AuthFault),
        ("NOPERM User flow has no permissions", AuthFault),
        ("LOADING Valkey is loading the dataset in memory", BusyLoading),
        ("MOVED 3999 127.0.0.1:6381", ClusterFault),
        ("ASK 3999 127.0.0.1:6381", ClusterFault),
        ("TRYAGAIN Multiple keys request during rehashing of slot", ClusterFault),
        ("CLUSTERDOWN Hash slot not served", ClusterFault),
        ("MASTERDOWN Link with MASTER is down", ClusterFault),
        ("ERR Script attempted to access a non local key in a cluster node", ClusterFault),
        ("READONLY You can't write against a read only replica.", TransportFault),
        ("OOM command not allowed when used memory > 'maxmemory'.", ResourceExhausted),
        ("BUSY Valkey is busy running a script.", TransportFault),
        ("NOREPLICAS Not enough good replicas to write.", TransportFault),
        ("ERR max number of clients reached", TransportFault),
        ("MISCONF Errors writing to the AOF file: No space left on device", ResourceExhausted),
        ("CROSSSLOT Keys in request don't hash to the same slot", Bug),
        ("ERR user_function:12: attempt to index a nil value", Bug),
        ("WRONGTYPE Operation against a key", ProtocolFault),
        ("ERR unknown command 'FCALL'", ProtocolFault),
        ("ERR something nobody has heard of", OtherFault),
    ],
)
def test_each_error_has_one_meaning(text: str, fault: type[FlowFabricError]) -> None:
    assert type(fault_of(libvalkey.ReplyError(text))) is fault


@pytest.mark.parametrize(
    "text",
    [
        "TRYAGAIN x",
        "CLUSTERDOWN x",
        "LOADING x",
        "MASTERDOWN x",
        "READONLY x",
        "BUSY x",
        "NOREPLICAS x",
    ],
)
def test_what_passes_is_waited_for(text: str) -> None:
    assert is_unsettled(libvalkey.ReplyError(text))


@pytest.mark.parametrize("text", ["NOAUTH x", "OOM x", "CROSSSLOT x", "ERR x", "MOVED 1 a:1"])
def test_what_does_not_pass_is_not(text: str) -> None:
    assert not is_unsettled(libvalkey.ReplyError(text))


def test_redirects_are_read() -> None:
    moved = redirect_of(libvalkey.ReplyError("MOVED 3999 127.0.0.1:6381"))
    assert moved == Redirect(3999, "127.0.0.1", 6381, is_lasting=True)
    ask = redirect_of(libvalkey.ReplyError("ASK 0 ::1:6381"))
    assert ask == Redirect(0, "::1", 6381, is_lasting=False)
    nameless = redirect_of(libvalkey.ReplyError("MOVED 1 :7000"))
    assert nameless == Redirect(1, "", 7000, is_lasting=True)


@pytest.mark.parametrize("text", ["ERR x", "MOVED", "MOVED x 1:2", "MOVED 1 host"])
def test_what_is_no_redirect_is_none(text: str) -> None:
    assert redirect_of(libvalkey.ReplyError(text)) is None


def test_only_a_missing_function_is_loaded() -> None:
    assert is_missing_function(libvalkey.ReplyError("ERR Function not found"))
    assert not is_missing_function(libvalkey.ReplyError("ERR user_function:1: bad"))
