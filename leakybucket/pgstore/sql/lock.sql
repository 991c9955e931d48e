-- Locks the rows of a batch in the order of their names. Every batch does, so no
-- two of them can wait for each other. All numbers are sent in eight bytes.
SELECT name, ctid, level, at, blocked_until, step::bigint, leak
FROM {table}
WHERE name = ANY ($1)
ORDER BY name
FOR UPDATE
