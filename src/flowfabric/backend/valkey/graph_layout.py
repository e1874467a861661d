"""The order of packed arrays of a graph: flows, edges and groups."""

from typing import Final

# Behind these stands how many members are in each public state.
FLOW: Final = (
    "namespace",
    "kind",
    "partition",
    "graph_revision",
    "version",
    "node_count",
    "edge_count",
    "purged_count",
    "cancelled_at",
    "cancel_reason",
    "cancel_policy",
    "unsettled",
    "incomplete",
    "submit_until",
    "digest",
    "due_at",
    "finished_at",
    "retention_ms",
    "purge_at",
    "created_at",
    "changed_at",
    # name, value, whether the deployment searches by it, in turn
    "tags",
)

EDGE: Final = (
    "source",
    "target",
    "kind",
    "data_ref",
    "round",
    "state",
    "outcome",
    "past_ends",
    "resolved_at",
    "created_by",
    # last, because a new edge is stored as it came, with this put behind it
    "created_at",
)

GROUP: Final = (
    "flow_id",
    "policy",
    "k",
    "on_satisfied",
    "n",
    "staged",
    "succeeded",
    "failed",
    "skipped",
    "round",
    "state",
    "fired_at",
    "cancel_reason",
)
