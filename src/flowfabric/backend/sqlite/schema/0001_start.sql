-- One row per execution. The packed record is the truth; the other columns repeat what views and
-- filters need. Unset is '' or 0, never NULL, as in the record.
CREATE TABLE exec (
    seq                INTEGER PRIMARY KEY,
    execution_id       TEXT    NOT NULL,
    part               INTEGER NOT NULL,
    namespace          TEXT    NOT NULL,
    lane               TEXT    NOT NULL,
    req_set            TEXT    NOT NULL,
    kind               TEXT    NOT NULL,
    state              TEXT    NOT NULL,
    bucket             TEXT    NOT NULL,
    sort               INTEGER NOT NULL,
    rank               INTEGER NOT NULL,
    created_at         INTEGER NOT NULL,
    due_at             INTEGER NOT NULL,
    purge_at           INTEGER NOT NULL,
    grant_until        INTEGER NOT NULL,
    worker_instance_id TEXT    NOT NULL,
    flow_id            TEXT    NOT NULL,
    parent_id          TEXT    NOT NULL,
    tied               INTEGER NOT NULL,
    body               BLOB    NOT NULL
) STRICT;

-- Ids of one partition share a prefix, so this index serves the view `partition` as well.
CREATE UNIQUE INDEX exec_id ON exec (execution_id);

-- The conditions say `<> 0`, not `> 0`: SQLite would take the latter for the start of a range and
-- walk every page of a listing from the beginning.
CREATE INDEX exec_claimable ON exec (namespace, lane, req_set, rank, execution_id)
    WHERE state IN ('lost', 'waiting') AND grant_until = 0;
CREATE INDEX exec_timers ON exec (due_at, execution_id)
    WHERE due_at <> 0;
CREATE INDEX exec_final ON exec (purge_at, execution_id)
    WHERE state IN ('cancelled', 'completed', 'expired', 'failed', 'skipped');
CREATE INDEX exec_by_state ON exec (namespace, lane, bucket, sort, execution_id);
CREATE INDEX exec_worker ON exec (worker_instance_id, execution_id)
    WHERE state IN ('active');
CREATE INDEX exec_flow ON exec (flow_id, state, created_at, execution_id)
    WHERE flow_id <> '';
CREATE INDEX exec_children ON exec (parent_id, tied, created_at, execution_id)
    WHERE parent_id <> '';
CREATE INDEX exec_all ON exec (namespace, created_at, execution_id);

-- What an execution owns is keyed by its number: ids are random, numbers follow each other, so
-- rows written together lie together. The reference keeps a purge from leaving rows that the next
-- execution with this number would inherit.
CREATE TABLE blob (
    owner INTEGER NOT NULL REFERENCES exec (seq),
    name  TEXT    NOT NULL,
    body  BLOB    NOT NULL,
    PRIMARY KEY (owner, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE document (
    owner    INTEGER NOT NULL REFERENCES exec (seq),
    name     TEXT    NOT NULL,
    body     BLOB    NOT NULL,
    first_at INTEGER NOT NULL,
    last_at  INTEGER NOT NULL,
    PRIMARY KEY (owner, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempt (
    owner    INTEGER NOT NULL REFERENCES exec (seq),
    position INTEGER NOT NULL,
    body     BLOB    NOT NULL,
    PRIMARY KEY (owner, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE kept (
    owner   INTEGER NOT NULL REFERENCES exec (seq),
    version INTEGER NOT NULL,
    body    BLOB    NOT NULL,
    PRIMARY KEY (owner, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE stream (
    owner   INTEGER NOT NULL REFERENCES exec (seq),
    attempt INTEGER NOT NULL,
    body    BLOB    NOT NULL,
    PRIMARY KEY (owner, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE summary (
    owner   INTEGER NOT NULL REFERENCES exec (seq),
    attempt INTEGER NOT NULL,
    body    BLOB    NOT NULL,
    PRIMARY KEY (owner, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE frame (
    owner   INTEGER NOT NULL REFERENCES exec (seq),
    attempt INTEGER NOT NULL,
    ms      INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    body    BLOB    NOT NULL,
    PRIMARY KEY (owner, attempt, ms, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE frame_number (
    owner   INTEGER NOT NULL REFERENCES exec (seq),
    attempt INTEGER NOT NULL,
    slot    INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    ms      INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (owner, attempt, slot)
) STRICT, WITHOUT ROWID;

CREATE TABLE journal (
    owner  INTEGER NOT NULL REFERENCES exec (seq),
    name   TEXT    NOT NULL,
    seq    INTEGER NOT NULL,
    number INTEGER NOT NULL,
    body   BLOB    NOT NULL,
    PRIMARY KEY (owner, name, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX journal_number ON journal (owner, number);

-- The view `tag`: only of tags that this deployment searches by, which `searchable` lists.
CREATE TABLE tag (
    namespace    TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    value        TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    execution_id TEXT    NOT NULL,
    owner        INTEGER NOT NULL,
    PRIMARY KEY (namespace, name, value, created_at, execution_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE searchable (
    name TEXT NOT NULL PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- `purge_at` is set only when all members are gone.
CREATE TABLE flow (
    flow_id    TEXT    NOT NULL PRIMARY KEY,
    part       INTEGER NOT NULL,
    due_at     INTEGER NOT NULL,
    purge_at   INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    body       BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX flow_part ON flow (part, flow_id);
CREATE INDEX flow_ages ON flow (created_at, flow_id);

CREATE INDEX flow_due ON flow (due_at, flow_id)
    WHERE due_at <> 0;
CREATE INDEX flow_purge ON flow (purge_at, flow_id)
    WHERE purge_at <> 0;

CREATE TABLE edge (
    flow_id TEXT NOT NULL,
    edge_id TEXT NOT NULL,
    source  TEXT NOT NULL,
    target  TEXT NOT NULL,
    body    BLOB NOT NULL,
    PRIMARY KEY (flow_id, edge_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX edge_source ON edge (source, edge_id);
CREATE INDEX edge_target ON edge (target, edge_id);

CREATE TABLE edge_group (
    target TEXT NOT NULL PRIMARY KEY,
    body   BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
    scope        TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    execution_id TEXT    NOT NULL,
    expires_at   INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_expiry ON idempotency (expires_at);

CREATE TABLE fairness (
    part         INTEGER NOT NULL,
    namespace    TEXT    NOT NULL,
    lane         TEXT    NOT NULL,
    fairness_key TEXT    NOT NULL,
    last_time    INTEGER NOT NULL,
    PRIMARY KEY (part, namespace, lane, fairness_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE worker (
    namespace TEXT NOT NULL,
    instance  TEXT NOT NULL,
    body      BLOB NOT NULL,
    PRIMARY KEY (namespace, instance)
) STRICT, WITHOUT ROWID;

-- What limits count. A gate is a quota ('q:…') or a concurrency key ('k:…'); waiters also stand
-- before budgets ('b:…'). Every end and every place in a line has an index of its own: nothing that
-- is trimmed or unlisted is searched for.
CREATE TABLE budget (
    budget_id TEXT    NOT NULL PRIMARY KEY,
    due_at    INTEGER NOT NULL,
    body      BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX budget_timers ON budget (due_at, budget_id)
    WHERE due_at <> 0;

CREATE TABLE ledger (
    execution_id TEXT NOT NULL,
    budget_id    TEXT NOT NULL,
    body         BLOB NOT NULL,
    PRIMARY KEY (execution_id, budget_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE reservation (
    budget_id      TEXT    NOT NULL,
    reservation_id TEXT    NOT NULL,
    root_id        TEXT    NOT NULL,
    until          INTEGER NOT NULL,
    body           BLOB    NOT NULL,
    PRIMARY KEY (budget_id, reservation_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX reservation_ends ON reservation (root_id, until, budget_id, reservation_id);

CREATE TABLE dedup_mark (
    budget_id TEXT    NOT NULL,
    dedup_key TEXT    NOT NULL,
    until     INTEGER NOT NULL,
    PRIMARY KEY (budget_id, dedup_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX mark_ends ON dedup_mark (until, budget_id, dedup_key);

CREATE TABLE attached (
    budget_id    TEXT    NOT NULL,
    execution_id TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (budget_id, execution_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE gate (
    gate    TEXT    NOT NULL PRIMARY KEY,
    ends_at INTEGER NOT NULL,
    body    BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX gate_ends ON gate (ends_at, gate)
    WHERE ends_at <> 0;

CREATE TABLE slot (
    gate         TEXT    NOT NULL,
    execution_id TEXT    NOT NULL,
    holder       TEXT    NOT NULL,
    until        INTEGER NOT NULL,
    PRIMARY KEY (gate, execution_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX slot_ends ON slot (gate, until, execution_id);

CREATE TABLE window_entry (
    gate         TEXT    NOT NULL,
    execution_id TEXT    NOT NULL,
    at           INTEGER NOT NULL,
    holder       TEXT    NOT NULL,
    PRIMARY KEY (gate, execution_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX window_entries ON window_entry (gate, at, execution_id);

CREATE TABLE waiter (
    gate         TEXT    NOT NULL,
    execution_id TEXT    NOT NULL,
    rank         INTEGER NOT NULL,
    until        INTEGER NOT NULL,
    needs_entry  INTEGER NOT NULL,
    cap          INTEGER NOT NULL,
    grant_id     TEXT    NOT NULL,
    PRIMARY KEY (gate, execution_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX waiter_ranks ON waiter (gate, rank, execution_id);
CREATE INDEX waiter_ends ON waiter (until, gate, execution_id);

CREATE TABLE config (
    name    TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    body    BLOB    NOT NULL,
    due_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The sum of all versions is the revision of the configuration; it is read at every heartbeat.
CREATE INDEX config_version ON config (version);

CREATE INDEX config_timers ON config (due_at, name)
    WHERE due_at <> 0;

-- AUTOINCREMENT: a number stands in readers' cursors and must not come back after a trim.
CREATE TABLE log (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL,
    body   BLOB    NOT NULL
) STRICT;

-- Who has the file open. A row whose process is gone tells of a stop that was not clean.
CREATE TABLE process (
    token TEXT    NOT NULL PRIMARY KEY,
    pid   INTEGER NOT NULL,
    start TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
