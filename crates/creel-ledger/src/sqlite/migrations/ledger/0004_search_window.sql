-- Since when an unanswered create is searched for, on the clocks of one boot. Records that were
-- made before have none: their search starts again when it is looked at next.
ALTER TABLE resources ADD COLUMN search_wall_ms INTEGER;
ALTER TABLE resources ADD COLUMN search_awake_ms INTEGER;
ALTER TABLE resources ADD COLUMN search_boot TEXT;
