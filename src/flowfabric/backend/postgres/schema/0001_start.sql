-- compatible: true
-- One row per execution. The packed record is the truth; the other columns repeat what views and
-- filters need. Unset is '' or 0, never NULL, as in the record.
CREATE TABLE exec (
    execution_id       text COLLATE "C" CONSTRAINT exec_id PRIMARY KEY,
    seq                bigint NOT NULL,
    part               bigint NOT NULL,
    namespace          text COLLATE "C" NOT NULL,
    lane               text COLLATE "C" NOT NULL,
    req_set            text COLLATE "C" NOT NULL,
    kind               text COLLATE "C" NOT NULL,
    state              text COLLATE "C" NOT NULL,
    bucket             text COLLATE "C" NOT NULL,
    sort               bigint NOT NULL,
    rank               bigint NOT NULL,
    created_at         bigint NOT NULL,
    due_at             bigint NOT NULL,
    purge_at           bigint NOT NULL,
    grant_until        bigint NOT NULL,
    worker_instance_id text COLLATE "C" NOT NULL,
    flow_id            text COLLATE "C" NOT NULL,
    parent_id          text COLLATE "C" NOT NULL,
    tied               bigint NOT NULL,
    body               bytea NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);

-- Numbers are taken in blocks. They have no index: every change of state would write it, too.
CREATE SEQUENCE exec_number INCREMENT BY 1000;

-- One index for each view; ids of a partition share a prefix, so the key serves `partition`.
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
-- rows written together lie together. Foreign keys would lock the owner once for each row.
CREATE TABLE blob (
    owner bigint NOT NULL,
    name  text COLLATE "C" NOT NULL,
    body  bytea NOT NULL,
    PRIMARY KEY (owner, name)
);

CREATE TABLE document (
    owner    bigint NOT NULL,
    name     text COLLATE "C" NOT NULL,
    body     bytea NOT NULL,
    first_at bigint NOT NULL,
    last_at  bigint NOT NULL,
    PRIMARY KEY (owner, name)
);

CREATE TABLE attempt (
    owner    bigint NOT NULL,
    position bigint NOT NULL,
    body     bytea NOT NULL,
    PRIMARY KEY (owner, position)
);

CREATE TABLE kept (
    owner   bigint NOT NULL,
    version bigint NOT NULL,
    body    bytea NOT NULL,
    PRIMARY KEY (owner, version)
);

CREATE TABLE stream (
    owner   bigint NOT NULL,
    attempt bigint NOT NULL,
    body    bytea NOT NULL,
    PRIMARY KEY (owner, attempt)
);

CREATE TABLE summary (
    owner   bigint NOT NULL,
    attempt bigint NOT NULL,
    body    bytea NOT NULL,
    PRIMARY KEY (owner, attempt)
);

CREATE TABLE frame (
    owner   bigint NOT NULL,
    attempt bigint NOT NULL,
    ms      bigint NOT NULL,
    seq     bigint NOT NULL,
    body    bytea NOT NULL,
    PRIMARY KEY (owner, attempt, ms, seq)
);

CREATE TABLE frame_number (
    owner   bigint NOT NULL,
    attempt bigint NOT NULL,
    slot    bigint NOT NULL,
    number  bigint NOT NULL,
    ms      bigint NOT NULL,
    seq     bigint NOT NULL,
    PRIMARY KEY (owner, attempt, slot)
);

CREATE TABLE journal (
    owner  bigint NOT NULL,
    name   text COLLATE "C" NOT NULL,
    seq    bigint NOT NULL,
    number bigint NOT NULL,
    body   bytea NOT NULL,
    PRIMARY KEY (owner, name, seq)
);

CREATE INDEX journal_number ON journal (owner, number);

-- The view `tag`: only of tags that this deployment searches by, which `searchable` lists.
CREATE TABLE tag (
    namespace    text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    value        text COLLATE "C" NOT NULL,
    created_at   bigint NOT NULL,
    execution_id text COLLATE "C" NOT NULL,
    owner        bigint NOT NULL,
    PRIMARY KEY (namespace, name, value, created_at, execution_id)
);

CREATE TABLE searchable (
    name text COLLATE "C" NOT NULL PRIMARY KEY
);

-- `purge_at` is set only when all members are gone.
CREATE TABLE flow (
    flow_id    text COLLATE "C" NOT NULL PRIMARY KEY,
    part       bigint NOT NULL,
    due_at     bigint NOT NULL,
    purge_at   bigint NOT NULL,
    created_at bigint NOT NULL,
    body       bytea NOT NULL
);

CREATE INDEX flow_part ON flow (part, flow_id);
CREATE INDEX flow_ages ON flow (created_at, flow_id);

CREATE INDEX flow_due ON flow (due_at, flow_id)
    WHERE due_at <> 0;
CREATE INDEX flow_purge ON flow (purge_at, flow_id)
    WHERE purge_at <> 0;

CREATE TABLE edge (
    flow_id text COLLATE "C" NOT NULL,
    edge_id text COLLATE "C" NOT NULL,
    source  text COLLATE "C" NOT NULL,
    target  text COLLATE "C" NOT NULL,
    body    bytea NOT NULL,
    PRIMARY KEY (flow_id, edge_id)
);

CREATE INDEX edge_source ON edge (source, edge_id);
CREATE INDEX edge_target ON edge (target, edge_id);

CREATE TABLE edge_group (
    target text COLLATE "C" NOT NULL PRIMARY KEY,
    body   bytea NOT NULL
);

CREATE TABLE idempotency (
    scope        text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    execution_id text COLLATE "C" NOT NULL,
    expires_at   bigint NOT NULL,
    PRIMARY KEY (scope, key)
);

CREATE INDEX idempotency_expiry ON idempotency (expires_at);

CREATE TABLE fairness (
    part         bigint NOT NULL,
    namespace    text COLLATE "C" NOT NULL,
    lane         text COLLATE "C" NOT NULL,
    fairness_key text COLLATE "C" NOT NULL,
    last_time    bigint NOT NULL,
    PRIMARY KEY (part, namespace, lane, fairness_key)
);

CREATE TABLE worker (
    namespace text COLLATE "C" NOT NULL,
    instance  text COLLATE "C" NOT NULL,
    body      bytea NOT NULL,
    PRIMARY KEY (namespace, instance)
);

-- What limits count. A gate is a quota ('q:…') or a concurrency key ('k:…'); waiters also stand
-- before budgets ('b:…'). Every end and every place in a line has an index of its own: nothing that
-- is trimmed or unlisted is searched for.
CREATE TABLE budget (
    budget_id text COLLATE "C" NOT NULL PRIMARY KEY,
    root_id   text COLLATE "C" NOT NULL,
    parent_id text COLLATE "C" NOT NULL,
    due_at    bigint NOT NULL,
    body      bytea NOT NULL
);

CREATE INDEX budget_timers ON budget (due_at, budget_id)
    WHERE due_at <> 0;

CREATE TABLE ledger (
    execution_id text COLLATE "C" NOT NULL,
    budget_id    text COLLATE "C" NOT NULL,
    body         bytea NOT NULL,
    PRIMARY KEY (execution_id, budget_id)
);

CREATE TABLE reservation (
    budget_id      text COLLATE "C" NOT NULL,
    reservation_id text COLLATE "C" NOT NULL,
    root_id        text COLLATE "C" NOT NULL,
    until          bigint NOT NULL,
    body           bytea NOT NULL,
    PRIMARY KEY (budget_id, reservation_id)
);

CREATE INDEX reservation_ends ON reservation (root_id, until, budget_id, reservation_id);

CREATE TABLE dedup_mark (
    budget_id text COLLATE "C" NOT NULL,
    dedup_key text COLLATE "C" NOT NULL,
    until     bigint NOT NULL,
    PRIMARY KEY (budget_id, dedup_key)
);

CREATE INDEX mark_ends ON dedup_mark (until, budget_id, dedup_key);

CREATE TABLE attached (
    budget_id    text COLLATE "C" NOT NULL,
    execution_id text COLLATE "C" NOT NULL,
    created_at   bigint NOT NULL,
    PRIMARY KEY (budget_id, execution_id)
);

CREATE TABLE gate (
    gate    text COLLATE "C" NOT NULL PRIMARY KEY,
    ends_at bigint NOT NULL,
    body    bytea NOT NULL
);

CREATE INDEX gate_ends ON gate (ends_at, gate)
    WHERE ends_at <> 0;

CREATE TABLE slot (
    gate         text COLLATE "C" NOT NULL,
    execution_id text COLLATE "C" NOT NULL,
    holder       text COLLATE "C" NOT NULL,
    until        bigint NOT NULL,
    PRIMARY KEY (gate, execution_id)
);

CREATE INDEX slot_ends ON slot (gate, until, execution_id);

CREATE TABLE window_entry (
    gate         text COLLATE "C" NOT NULL,
    execution_id text COLLATE "C" NOT NULL,
    at           bigint NOT NULL,
    holder       text COLLATE "C" NOT NULL,
    PRIMARY KEY (gate, execution_id)
);

CREATE INDEX window_entries ON window_entry (gate, at, execution_id);

CREATE TABLE waiter (
    gate         text COLLATE "C" NOT NULL,
    execution_id text COLLATE "C" NOT NULL,
    rank         bigint NOT NULL,
    until        bigint NOT NULL,
    needs_entry  bigint NOT NULL,
    cap          bigint NOT NULL,
    grant_id     text COLLATE "C" NOT NULL,
    PRIMARY KEY (gate, execution_id)
);

CREATE INDEX waiter_ranks ON waiter (gate, rank, execution_id);
CREATE INDEX waiter_ends ON waiter (until, gate, execution_id);

CREATE TABLE config (
    name    text COLLATE "C" NOT NULL PRIMARY KEY,
    version bigint NOT NULL,
    body    bytea NOT NULL,
    due_at  bigint NOT NULL
);

-- The sum of all versions is the revision of the configuration; it is read at every heartbeat.
CREATE INDEX config_version ON config (version);

CREATE INDEX config_timers ON config (due_at, name)
    WHERE due_at <> 0;

-- A number stands in readers' cursors and must not come back after a trim. It is taken when the
-- entry is written, so that a later change of one record has a greater number.
CREATE SEQUENCE log_number;
CREATE TABLE log (
    number bigint PRIMARY KEY DEFAULT nextval('log_number'),
    at     bigint NOT NULL,
    body   bytea NOT NULL
);

-- Processes that wait for notifications; without any, none is sent.
CREATE TABLE listener (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    until bigint NOT NULL
);
