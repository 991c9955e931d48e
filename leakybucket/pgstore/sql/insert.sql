-- Fails if another batch has made one of the buckets since this one looked, and
-- waits to see if that one is still at it. The names come in their order.
INSERT INTO {table} (name, level, at, blocked_until, step, forget)
SELECT * FROM unnest($1, $2, $3, $4, $5, $6)
