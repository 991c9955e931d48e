-- Writes rows that the batch has locked. They are found by their position, which
-- cannot change while they are locked: that saves a second search by name.
UPDATE {table} AS bucket
SET level = new.level, at = new.at, blocked_until = new.blocked_until, step = new.step, forget = new.forget, leak = new.leak
FROM unnest($1, $2, $3, $4, $5, $6, $7) AS new (ctid, level, at, blocked_until, step, forget, leak)
WHERE bucket.ctid = new.ctid
