-- Inserts new rows, in the order of their names. It fails if another batch has
-- inserted one of them since this batch looked; if that batch has not committed
-- yet, this statement waits for it.
INSERT INTO {table} (name, level, at, blocked_until, step, forget, leak)
SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7)
