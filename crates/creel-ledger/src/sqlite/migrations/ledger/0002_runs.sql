-- What is known of each run: what replaying its events gives, up to the number in `sequence`.
-- The events are in a file of their own.
CREATE TABLE runs (
    id               TEXT    NOT NULL PRIMARY KEY,
    name             TEXT    NOT NULL,
    provider         TEXT    NOT NULL,
    owner            TEXT    NOT NULL,
    owner_command    TEXT    NOT NULL,
    owner_started_ms INTEGER NOT NULL,
    on_owner_death   TEXT    NOT NULL,
    created_at_ms    INTEGER NOT NULL,
    changed_at_ms    INTEGER NOT NULL,
    phase            TEXT    NOT NULL,
    class            TEXT,
    attempt          INTEGER NOT NULL,
    kept_until_ms    INTEGER,
    sequence         INTEGER NOT NULL,
    state            TEXT    NOT NULL
) STRICT;

-- Runs with something still to come are few among many that are over.
CREATE INDEX runs_unsettled ON runs (owner)
WHERE phase NOT IN ('succeeded', 'failed', 'cancelled') OR kept_until_ms IS NOT NULL;

CREATE INDEX runs_by_age ON runs (created_at_ms);

-- Resources are asked for by their run when the run is closed.
CREATE INDEX resources_of_run ON resources (run) WHERE run IS NOT NULL;

-- What people wrote for a run. Neither logs nor diagnostics read this table. Secrets are not in
-- it: a workflow has them by reference only.
CREATE TABLE workflows (
    run         TEXT NOT NULL PRIMARY KEY REFERENCES runs (id),
    source_name TEXT NOT NULL,
    source      TEXT NOT NULL,
    inputs      TEXT NOT NULL
) STRICT;

-- What others want of whoever drives a run.
CREATE TABLE orders (
    sequence    INTEGER PRIMARY KEY AUTOINCREMENT,
    key         TEXT    NOT NULL UNIQUE,
    run         TEXT    NOT NULL REFERENCES runs (id),
    at_ms       INTEGER NOT NULL,
    kind        TEXT    NOT NULL,
    body        TEXT    NOT NULL,
    taken_at_ms INTEGER
) STRICT;

CREATE INDEX orders_open ON orders (run, sequence) WHERE taken_at_ms IS NULL;
