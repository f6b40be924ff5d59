-- What happened to each run, numbered from 1 without gaps: the truth.
CREATE TABLE events (
    run      TEXT    NOT NULL,
    sequence INTEGER NOT NULL,
    at_ms    INTEGER NOT NULL,
    spooled  INTEGER,
    version  INTEGER NOT NULL,
    event    TEXT    NOT NULL,
    PRIMARY KEY (run, sequence)
) STRICT, WITHOUT ROWID;

-- Append-only means the database itself refuses anything else.
CREATE TRIGGER events_are_never_changed BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_are_never_deleted BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
