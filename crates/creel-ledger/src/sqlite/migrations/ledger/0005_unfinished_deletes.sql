-- Deletes that a provider accepted and that did not finish, of our own objects and of others'. A
-- row leaves when the absence of its object is verified.
CREATE TABLE unfinished_deletes (
    provider      TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    object        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    resource      TEXT,
    reason        TEXT    NOT NULL,
    kept_until_ms INTEGER,
    first_seen_ms INTEGER NOT NULL,
    PRIMARY KEY (provider, kind, object)
) STRICT;
