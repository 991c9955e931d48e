-- Locks the rows of a batch in the order of their names. Every batch does, so no
-- two of them can wait for each other.
SELECT name, ctid, level, at, blocked_until, step, leak
FROM {table}
WHERE name = ANY ($1)
ORDER BY name
FOR UPDATE
