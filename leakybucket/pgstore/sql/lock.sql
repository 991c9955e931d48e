-- Locks the rows of a batch in the order of their names. Every batch does, so no
-- two of them can wait for each other. All numbers are sent in eight bytes,
-- whatever columns somebody has made by hand.
SELECT name, ctid, level::double precision, at::bigint, blocked_until::bigint, step::bigint, leak::double precision
FROM {table}
WHERE name = ANY ($1)
ORDER BY name
FOR UPDATE
