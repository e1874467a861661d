"""The page of defaults and limits, written from the values that the code goes by.

`make pages` writes it anew; a test compares.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from flowfabric.config import Settings
from flowfabric.core import (
    bounds,
    capabilities,
    condition_checks,
    declared_tasks,
    ids,
    journal,
    json_schema,
    merge_patch,
    pages,
    policy,
    schedules,
    streams,
)
from flowfabric.core.limits import asks, budgets
from flowfabric.core.policy import ExecutionPolicy, ExponentialBackoff, RetryPolicy, StreamPolicy
from flowfabric.core.retention import LOG_LIMITS
from flowfabric.core.rules import mailbox
from flowfabric.core.rules.operators import MAX_PRIORITY
from flowfabric.engine.attempts.claimed import LEASE_MS, MOST_CLAIMED
from flowfabric.engine.flows.graphs import MOST_EDGES, MOST_NODES
from flowfabric.engine.limits import budgets as limits
from flowfabric.engine.limits.descriptions import MOST_DIMENSIONS
from flowfabric.engine.limits.names import MOST_NAME_BYTES
from flowfabric.engine.schedules.schedules import MAX_PAYLOAD_BYTES as SCHEDULED_BYTES
from flowfabric.engine.suspensions.mailbox import ID_BYTES
from flowfabric.engine.suspensions.orders import MAX_KEY_BYTES
from flowfabric.engine.suspensions.signals import MOST_PAYLOAD_BYTES
from flowfabric.operations.types import MAX_BATCH_ITEMS
from flowfabric.worker import journal_size
from flowfabric.worker.worker_options import WorkerOptions

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "limits.md"
Rows = list[tuple[str, str]]

_DEFAULTS: Final = WorkerOptions(worker_id="w")
_POLICY: Final = ExecutionPolicy()
_SETTINGS: Final = Settings()
_DAY_MS: Final = 86_400_000


def size(number: int) -> str:
    """Bytes as people write them, exactly."""
    for unit, factor in (("MiB", 1024 * 1024), ("KiB", 1024)):
        if number >= factor and number % factor == 0:
            return f"{number // factor:,} {unit}"
    return f"{number:,} bytes"


def length(ms: int) -> str:
    for unit, factor in (("days", _DAY_MS), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= factor and ms % factor == 0 and ms != _DAY_MS:
            return f"{ms // factor:,} {unit}"
    return "24 h" if ms == _DAY_MS else f"{ms:,} ms"


_BEFORE: Final = """# Defaults and limits

Written from the code by `make pages`. `GET /v1/capabilities` tells most limits. More than a limit
is refused with `invalid_input` (400) unless the table says otherwise, and nothing is changed.
Bodies of requests have their own bounds, by route: see [REST](rest.md). Settings of a process have
theirs in [configuration](configuration.md).
"""
_SCHEDULED: Final = """Two tags that a schedule adds to what it submits count; the tag with the
trace of a call does not.
"""
_PAGES: Final = f"""## Pages

A page of a list ends after `limit` items, or before the item with which it would pass
{pages.MAX_PAGE_BYTES // 2**20} MiB; an item that is larger by itself is a page. A short page may
have a successor: go on until `next_cursor` is empty. This holds for searches and lists of
executions, flows, schedules, workers and waitpoints, for histories, journals and pages of events.
"""


def text() -> str:
    limit = ("what", "at most")
    parts = [
        _BEFORE,
        *_section("Defaults of an execution", ("option", "without it"), _execution()),
        *_section("Defaults of a worker", ("option", "without it"), _worker()),
        *_section("What is kept", ("what", "how long, how much"), _kept()),
        *_section("Names", limit, _names()),
        *_section("Submit", limit, _submit()),
        _SCHEDULED,
        *_section("Work", limit, _work()),
        *_section("Suspend", limit, _suspend()),
        *_section("Flows, schedules, budgets", limit, _others()),
        _PAGES,
    ]
    return "\n".join(parts)


def _section(title: str, columns: tuple[str, str], rows: Rows) -> Iterator[str]:
    lines = [f"| {columns[0]} | {columns[1]} |", "|---|---|"]
    yield f"## {title}\n"
    yield "\n".join([*lines, *(f"| {what} | {value} |" for what, value in rows)]) + "\n"


# What the members of a policy mean, where its value does not say it.
_MEANS: Final = {
    "delay_until": "runs at once",
    "retry_policy": "no retries",
    "timeout_policy": "no timeout, no deadline",
    "max_reclaim_count": f"{policy.DEFAULT_RECLAIM_CAP} lost leases",
    "suspension_policy": "no timeout; at a timeout it fails",
    "fallback_policy": "none",
    "budget_ids": "none",
    "quota_ids": "none",
    "concurrency_key": "any number runs at once",
    "fairness_key": "none",
    "routing_requirements": "any worker may run it",
    "stream_policy": f"the last {StreamPolicy().retention_maxlen:,} frames",
    "retention_ms": f"{length(_POLICY.kept_for_ms)} after its end",
    "dedup_window_ms": length(_POLICY.dedup_window_ms),
}


def _execution() -> Rows:
    rows = []
    for name in ExecutionPolicy.__struct_fields__:
        value: Any = getattr(_POLICY, name)
        told = f"{value:,}" if type(value) is int else f"`{value}`"
        rows.append((f"`{name}`", _MEANS.get(name, told)))
    backoff = ExponentialBackoff()
    grown = f"{length(backoff.initial_delay_ms)}, times {backoff.multiplier:g}"
    return [
        *rows,
        ("`retry_policy` without `max_retries`", f"{RetryPolicy().max_retries} retries"),
        ("`retry_policy` without `backoff`", f"{grown}, up to {length(backoff.max_delay_ms)}"),
    ]


def _worker() -> Rows:
    return [
        ("`concurrency`", f"{_DEFAULTS.concurrency} executions at once"),
        ("`lease`", f"{length(_DEFAULTS.lease_ms)}, renewed every third of it"),
        ("`drain`", f"{_DEFAULTS.drain_s:g} s"),
    ]


def _kept() -> Rows:
    return [
        ("an execution and all it has, after its end", length(_POLICY.kept_for_ms)),
        ("an idempotency key, after the submit", length(_POLICY.dedup_window_ms)),
        ("the event log", f"{length(LOG_LIMITS.keep_ms)}, {LOG_LIMITS.keep:,} entries"),
        ("the dedup key of a spend", length(asks.DEDUP_MS)),
        ("the id of a signal by name", length(mailbox.REMEMBERED_MS)),
        ("a task that no worker registers any more", length(declared_tasks.KEPT_MS)),
        ("the signing key before the current one", length(_SETTINGS.waitpoint_grace_ms)),
    ]


def _names() -> Rows:
    return [
        ("lane", size(ids.MAX_LANE_BYTES)),
        ("namespace", size(ids.MAX_NAMESPACE_BYTES)),
        ("worker id", size(ids.MAX_WORKER_ID_BYTES)),
        ("concurrency key, fairness key", size(policy.MAX_KEY_BYTES)),
        ("budget, quota", size(MOST_NAME_BYTES)),
        ("waitpoint key", size(MAX_KEY_BYTES)),
    ]


def _submit() -> Rows:
    tokens, csv = capabilities.MAX_TOKENS, size(capabilities.MAX_CSV_BYTES)
    return [
        (
            "input or result of an execution",
            f"{size(_SETTINGS.max_payload_bytes)} (`payload_too_large`)",
        ),
        ("priority", f"{MAX_PRIORITY:,}; others count as the nearest of 0 and this"),
        (
            "tags of an execution, a flow or a schedule",
            f"{bounds.MAX_TAGS}, and {size(bounds.MAX_TAG_BYTES)} of keys and values together",
        ),
        ("policy, as JSON", f"{size(bounds.MAX_POLICY_BYTES)} (`invalid_policy_json`)"),
        (
            "`budget_ids`, `quota_ids` of a policy",
            f"{bounds.MAX_LIMIT_IDS} each (`invalid_policy_json`)",
        ),
        (
            "capabilities, required or offered",
            (
                f"{tokens}, and {csv} joined by commas (`invalid_capabilities`);"
                f" {capabilities.MAX_LISTED_TOKENS:,} with repeats"
            ),
        ),
        ("items of a batch", f"{MAX_BATCH_ITEMS}"),
        ("registered tasks of a namespace", f"{declared_tasks.MOST_TASKS:,}"),
        (
            "what is kept of one task",
            (
                f"{size(declared_tasks.MOST_BYTES)}, {declared_tasks.MOST_ENTRIES} declarations;"
                " schemas are left out first, those of the oldest declaration before others"
            ),
        ),
        (
            "the docstring of a task",
            f"{size(declared_tasks.MOST_DESCRIPTION_BYTES)}; a worker cuts it",
        ),
        (
            "arguments checked against a schema",
            (
                f"depth {json_schema.MOST_DEPTH}, {json_schema.MOST_STEPS:,} steps; beyond that"
                " the worker alone checks them"
            ),
        ),
    ]


def _work() -> Rows:
    shortest, longest = LEASE_MS
    return [
        ("lease", f"{length(shortest)} to {length(longest)}"),
        ("executions of one claim", f"{MOST_CLAIMED}"),
        ("lanes of a claim, or of a worker's registration", f"{bounds.MAX_LANES}"),
        ("frame", size(streams.MAX_FRAME_BYTES)),
        ("frames that one attempt appends in one call", f"{bounds.MAX_FRAMES:,}"),
        ("summary document of an attempt", size(merge_patch.MAX_DOCUMENT_BYTES)),
        (
            "journal of an execution",
            (
                f"{journal.MAX_ENTRIES:,} entries, {size(journal_size.MAX_BYTES)}; a warning at"
                f" {journal_size.WARN_ENTRIES:,} or {size(journal_size.WARN_BYTES)}; beyond, the"
                f" attempt fails with category `{journal_size.JOURNAL_FULL}`"
            ),
        ),
        ("one entry of a journal, the value of a step", size(journal.MAX_ENTRY_BYTES)),
        ("members a handler waits for, members named in a replay", f"{bounds.MAX_NAMED:,}"),
    ]


def _suspend() -> Rows:
    return [
        ("waitpoints of a suspension", f"{bounds.MAX_WAITPOINTS}"),
        ("condition, encoded", size(bounds.MAX_CONDITION_BYTES)),
        ("levels of a composite", f"{condition_checks.MAX_DEPTH}"),
        (
            "`n` of a count",
            (
                f"{condition_checks.MAX_COUNT:,}; all counts of a condition together"
                f" {condition_checks.MAX_COUNTED:,}"
            ),
        ),
        (
            "unread signals in a mailbox",
            (
                f"{mailbox.MOST_UNREAD:,}, and {size(mailbox.MOST_UNREAD_BYTES)} with their"
                " names and ids (`resource_exhausted`)"
            ),
        ),
        ("payload of a signal", f"{size(MOST_PAYLOAD_BYTES)} (`payload_too_large`)"),
        ("id of a signal by name", size(ID_BYTES)),
        ("signals of an execution", f"{_POLICY.max_signals_per_execution:,} without another limit"),
    ]


def _others() -> Rows:
    return [
        ("nodes, edges of a graph", f"{MOST_NODES:,}, {MOST_EDGES:,}"),
        ("payload of a schedule", size(SCHEDULED_BYTES)),
        ("interval of a schedule", f"from {length(schedules.SHORTEST_EVERY_MS)}"),
        ("times of a backfill or of a `catch_up` of `all`", f"{schedules.MOST_TIMES:,}"),
        ("dimensions of a budget", f"{MOST_DIMENSIONS}"),
        ("budgets above a budget, itself counted", f"{budgets.MAX_DEPTH}"),
        ("reservation", length(limits.LONGEST_RESERVATION_MS)),
    ]


if __name__ == "__main__":
    PAGE.write_text(text())
