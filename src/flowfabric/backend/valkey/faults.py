"""What a server's error means: the one place that reads error texts."""

from typing import Final

import msgspec

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

_MISSING: Final = ("function not found", "function not loaded", "no matching function")
# The topology has changed, or is about to: ask again for it, wait a little, repeat.
_REARRANGED: Final = frozenset({"TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"})
# The server turns everybody away for a while: somebody's script runs long, or replicas are missing
# without which it must not write.
_TURNED_AWAY: Final = frozenset({"BUSY", "NOREPLICAS"})
_UNSETTLED: Final = _REARRANGED | _TURNED_AWAY
_FULL: Final = "max number of clients"
_AUTH: Final = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})


def code_of(error: Exception) -> str:
    return str(error).partition(" ")[0]


def is_missing_function(error: Exception) -> bool:
    text = str(error).lower()
    return code_of(error) == "NOSCRIPT" or any(words in text for words in _MISSING)


def is_unsettled(error: Exception) -> bool:
    return code_of(error) in _UNSETTLED


class Redirect(msgspec.Struct, frozen=True):
    """Another server has the slot: from now on, or for this one request while it is moved."""

    slot: int
    host: str
    port: int
    is_lasting: bool


def redirect_of(error: Exception) -> Redirect | None:
    """What `MOVED 3999 host:port` says; an empty host is the one that was asked."""
    code, *words = str(error).split(" ")
    if code not in ("MOVED", "ASK") or len(words) < 2:
        return None
    host, _, port = words[1].rpartition(":")
    if not words[0].isdigit() or not port.isdigit():
        return None
    return Redirect(int(words[0]), host, int(port), code == "MOVED")


def fault_of(error: Exception, server: str = "valkey") -> FlowFabricError:
    """An error of a server, which is called what its messages begin with, as ours."""
    code, text = code_of(error), str(error)
    if is_missing_function(error):
        return ScriptNotLoaded(f"{server}: {text}")
    if code in _AUTH:
        return AuthFault(f"{server}: {text}")
    if code == "LOADING":
        return BusyLoading(f"{server}: {text}")
    if code in ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"):
        return ClusterFault(f"{server}: {text}")
    if code == "READONLY" or code in _TURNED_AWAY or _FULL in text:
        return TransportFault(f"{server}: {text}")
    if code == "OOM":
        return _exhausted("valkey_memory", f"{server} has reached its maxmemory: give it more")
    if code == "MISCONF":
        why = text.removeprefix("MISCONF ")
        return _exhausted("valkey_disk", f"{server} cannot write to its disk: make room: {why}")
    if code == "CROSSSLOT":
        return Bug(f"{server}: keys of one call lie in several slots: {text}")
    if "non local key" in text:
        return ClusterFault(f"{server}: a slot is being moved: {text}")
    if code == "WRONGTYPE" or "unknown command" in text.lower() or code == "NOPROTO":
        return ProtocolFault(f"{server}: {text}")
    if "user_function" in text or "script" in text.lower():
        return Bug(f"{server}: {text}")
    return OtherFault(f"{server}: {text}")


def _exhausted(resource: str, what: str) -> ResourceExhausted:
    """Nothing was changed: a server refuses a call that would write before it begins."""
    return ResourceExhausted(f"{resource}: {what}", resource=resource)
