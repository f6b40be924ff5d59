-- Long events are stored packed (raw deflate of the same JSON): `event` is empty then.
ALTER TABLE events ADD COLUMN packed BLOB;
