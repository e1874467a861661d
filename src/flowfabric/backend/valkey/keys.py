"""Keys a call is routed by. Every other key is built inside the functions from the same tag, so one
declared key per call names the slot of all of them."""

from typing import Final

from flowfabric.core.ids import partition_of

PREFIX: Final = "ff:"
CONFIG: Final = "ff:p:{cfg}"
REVISION: Final = "ff:rev:{cfg}"
# Bells of a standalone server have a channel each; in a cluster each partition has one.
BELL: Final = "ff:bell:"


def partition_key(partition: int) -> str:
    """Of executions, flows, their views and logs."""
    return f"ff:p:{{fp:{partition}}}"


def key_at(tag: str) -> str:
    return f"ff:p:{tag}"


def execution_partition_key(execution_id: str) -> str:
    return partition_key(partition_of(execution_id))


def budget_key(partition: int) -> str:
    return f"ff:p:{{b:{partition}}}"


def quota_key(partition: int) -> str:
    return f"ff:p:{{q:{partition}}}"


def lane_key(namespace: str, lane: str) -> str:
    """Of the hints where a lane has work."""
    return f"ff:p:{{l:{namespace}:{lane}}}"


def presence_key(namespace: str) -> str:
    return f"ff:p:{{ns:{namespace}}}"


def state_view(bucket: str, namespace: str, lane: str) -> str:
    """The name, in its partition, of a lane's records in one state that stand in no queue."""
    return f"by_state:{bucket}:{namespace}:{lane}"


def tag_view(namespace: str, name: str, value: str) -> str:
    """The name, in its partition, of the records of a namespace that bear a tag."""
    return f"tag:{namespace}:{len(name.encode())}:{name}:{value}"
