-- Locks the rows of a batch in the order of their names, which every batch does,
-- so that none can wait for each other in a circle.
SELECT name, level, at, blocked_until, step
FROM {table}
WHERE name = ANY ($1)
ORDER BY name
FOR UPDATE
