-- What tells an object from a replacement that took its name; records of older versions have none.
ALTER TABLE resources ADD COLUMN identity TEXT;

-- What allowed a release: the proof of ownership, or the rule that selected the object.
ALTER TABLE tries ADD COLUMN evidence TEXT;

-- The name people know the object by.
ALTER TABLE tries ADD COLUMN name TEXT;

-- Releases are asked for by the object or its name, and it may be nobody's record.
CREATE INDEX tries_of_object ON tries (object, sequence);
CREATE INDEX tries_of_name ON tries (name, sequence) WHERE name IS NOT NULL;
