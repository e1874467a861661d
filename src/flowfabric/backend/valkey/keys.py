"""Keys a call is routed by. Every other key is built inside the functions from the same tag, so one
declared key per call names the slot of all of them; in a cluster a second one guards it."""

from typing import Final, Protocol

from flowfabric.core.ids import crc16
from flowfabric.core.states import STATES

PREFIX: Final = "ff:"
CONFIG: Final = "ff:p:{cfg}"
REVISION: Final = "ff:rev:{cfg}"
# On a standalone server each topic has a channel, in a cluster each partition.
CHANNEL: Final = "ff:topic:"
# Whoever subscribes to a topic of a single execution subscribes to this one too.
WATCHED: Final = "watched"
# Behind the prefix of a key: what it holds.
KINDS: Final = {
    "partition": "p",
    "execution": "x",
    "documents": "d",
    "history": "h",
    "journal": "j",
    "meter": "m",
    "frames": "s",
    "view": "v",
    "counters": "c",
    "ready": "r",
    "queues": "lq",
    "timer_hints": "t",
    "hinted_queues": "hq",
    "ready_sequences": "rq",
    "timer_sequences": "tq",
    "config": "cfg",
    "config_names": "cfgn",
    "config_timers": "cfgt",
    "revision": "rev",
    "log": "ev",
    "idempotency": "i",
    "fairness": "fair",
    "workers": "w",
    "worker_names": "wn",
    "flow": "f",
    "edges": "e",
    "edge_lists": "el",
    "late_edges": "em",
    "budget": "b",
    "attached": "ba",
    "reservation_ends": "be",
    "reservations": "br",
    "spend_keys": "bk",
    "ledgers": "bl",
    "quota": "q",
    "entries": "qe",
    "holders": "qh",
    "slots": "qs",
    "gate_ends": "qt",
    "waiter_ranks": "wr",
    "waiters": "wd",
    "waiter_ends": "we",
}
# Fields of an execution's hash; that of an ended attempt has its index behind it.
FIELDS: Final = {
    "record": "r",
    "static": "s",
    "input": "in",
    "result": "out",
    "group": "g",
    "attempt": "a",
}
# Views of what is no execution.
OTHER_VIEWS: Final = frozenset(
    {"tag", "flows", "flows_by_age", "flow_timers", "flow_purge", "budget_timers"}
)
SLOTS: Final = 16_384
# The partition whose tag the views, counters and logs of all partitions have on a single server.
INDEX_PARTITION: Final = 0
# Views that lie with their partition even there, because they are asked for by partition or flow.
OF_PARTITIONS: Final = frozenset({"flow", "children", "partition"})


def slot_of(key: str) -> int:
    """The slot of a key in a cluster: by what is between the first braces, if anything is."""
    start = key.find("{")
    end = key.find("}", start + 1)
    text = key[start + 1 : end] if start >= 0 and end > start + 1 else key
    return crc16(text.encode()) % SLOTS


def tag_of(key: str) -> str:
    """`{fp:7}` of `ff:p:{fp:7}`."""
    return key[key.index("{") :]


def key_of(tag: str) -> str:
    return f"ff:p:{tag}"


def declared_key_of(key: str) -> str:
    """The key that routes a call for another one, by its tag."""
    return key_of(key[key.index("{") : key.index("}") + 1])


def stored_key(kind: str, tag: str, rest: str = "") -> str:
    """Where something lies, by what it is (of `KINDS`), the tag of its partition, and its name."""
    return f"{PREFIX}{KINDS[kind]}:{tag}:{rest}" if rest else f"{PREFIX}{KINDS[kind]}:{tag}"


def ready_key(namespace: str, lane: str, req_set: str) -> str:
    """Where the partitions are listed that have work of a lane for a requirement set."""
    return f"{PREFIX}{KINDS['ready']}:{{l:{namespace}:{lane}}}:{req_set}"


def queues_key(tag: str, namespace: str, lane: str) -> str:
    """Where the queues of a lane are listed that have work there, by the rank of their first."""
    return stored_key("queues", tag, f"{namespace}:{lane}")


def guard_of(key: str) -> str:
    """A key of the same slot that never exists. A server that has some keys of a slot refuses
    calls for keys of which it lacks one, so none runs on half of a slot while it is moved."""
    return f"ff:g:{tag_of(key)}"


def partition_key(partition: int) -> str:
    """Of executions, flows, their views and logs."""
    return f"ff:p:{{fp:{partition}}}"


def partition_tag(partition: int) -> str:
    return f"{{fp:{partition}}}"


def execution_partition_key(execution_id: str) -> str:
    """Of the partition that the id names."""
    return f"ff:p:{execution_id[: execution_id.index('}') + 1]}"


class _OfExecution(Protocol):
    @property
    def execution_id(self) -> str: ...


def key_of_item(item: _OfExecution) -> str:
    """As `execution_partition_key` of the execution that the item is about."""
    return f"ff:p:{item.execution_id[: item.execution_id.index('}') + 1]}"


def lane_key(namespace: str, lane: str) -> str:
    """Of the hints where a lane has work."""
    return f"ff:p:{{l:{namespace}:{lane}}}"


def presence_key(namespace: str) -> str:
    return f"ff:p:{{ns:{namespace}}}"


# All members of a flow stand in one sorted set, so that a move is one command: each state has a
# range of scores of its own, wider than any instant.
FLOW_RANGE: Final = 10**13
FLOW_RANGES: Final[dict[str, int]] = {
    state: place * FLOW_RANGE for place, state in enumerate(sorted(STATES))
}


# A parent's children stand in one sorted set, those that end with it in front of the others.
CHILD_RANGES: Final = {1: 0, 0: FLOW_RANGE}


def state_view(bucket: str, namespace: str, lane: str) -> str:
    """The name, in its partition, of a lane's records in one state that stand in no queue."""
    return f"by_state:{bucket}:{namespace}:{lane}"


def queue_view(req_set: str, namespace: str, lane: str) -> str:
    """The name, in its partition, of what waits in a lane for workers of a requirement set."""
    return f"claimable:{req_set}:{namespace}:{lane}"


def tag_view(namespace: str, name: str, value: str) -> str:
    """The name, in its partition, of the records of a namespace that have a tag."""
    return f"tag:{namespace}:{len(name.encode())}:{name}:{value}"
