-- Reads some buckets in the order of their names, from one name on and before
-- another, and the clock. Those that have expired are left out.
SELECT name, level, at, blocked_until, step, leak,
	coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
FROM {table}
WHERE name >= $1 AND name < $2
	AND forget >= coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
ORDER BY name
LIMIT $4
