UPDATE {table} AS bucket
SET level = new.level, at = new.at, blocked_until = new.blocked_until, step = new.step, forget = new.forget
FROM unnest($1, $2, $3, $4, $5, $6) AS new (name, level, at, blocked_until, step, forget)
WHERE bucket.name = new.name
