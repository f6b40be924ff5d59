-- Which ledger this is: one row.
CREATE TABLE ledger (
    id            TEXT    NOT NULL PRIMARY KEY,
    created_at_ms INTEGER NOT NULL
) STRICT;

-- What is known of each resource: what replaying its events gives, kept for quick reading.
CREATE TABLE resources (
    id               TEXT    NOT NULL PRIMARY KEY,
    run              TEXT,
    provider         TEXT    NOT NULL,
    kind             TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    labels           TEXT    NOT NULL,
    state            TEXT    NOT NULL,
    object           TEXT,
    reason           TEXT,
    owner            TEXT    NOT NULL,
    owner_command    TEXT    NOT NULL,
    owner_started_ms INTEGER NOT NULL,
    on_owner_death   TEXT    NOT NULL,
    lease_ms         INTEGER NOT NULL,
    renewed_wall_ms  INTEGER NOT NULL,
    renewed_awake_ms INTEGER NOT NULL,
    renewed_boot     TEXT    NOT NULL,
    intended_at_ms   INTEGER NOT NULL,
    changed_at_ms    INTEGER NOT NULL
) STRICT;

-- Open records are few among many closed ones.
CREATE INDEX resources_open ON resources (owner) WHERE state NOT IN ('gone', 'lost');

-- What happened, in order: the truth.
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    resource TEXT    NOT NULL REFERENCES resources (id),
    at_ms    INTEGER NOT NULL,
    actor    TEXT    NOT NULL,
    version  INTEGER NOT NULL,
    event    TEXT    NOT NULL
) STRICT;

CREATE INDEX events_of_resource ON events (resource, sequence);

-- Every try of every provider call that changes something, ours or foreign.
CREATE TABLE tries (
    sequence  INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms     INTEGER NOT NULL,
    actor     TEXT    NOT NULL,
    resource  TEXT,
    provider  TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    object    TEXT    NOT NULL,
    operation TEXT    NOT NULL,
    attempt   INTEGER NOT NULL,
    outcome   TEXT    NOT NULL,
    detail    TEXT    NOT NULL
) STRICT;

CREATE INDEX tries_of_resource ON tries (resource, sequence) WHERE resource IS NOT NULL;

-- Append-only means the database itself refuses anything else.
CREATE TRIGGER events_are_never_changed BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_are_never_deleted BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER tries_are_never_changed BEFORE UPDATE ON tries
BEGIN SELECT RAISE(ABORT, 'tries are append-only'); END;
CREATE TRIGGER tries_are_never_deleted BEFORE DELETE ON tries
BEGIN SELECT RAISE(ABORT, 'tries are append-only'); END;
