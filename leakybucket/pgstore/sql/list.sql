-- Reads some buckets in the order of their names, from one name on and before
-- another, as lock.sql does, and the clock. Those that have expired are left out.
SELECT name, ctid, level::double precision, at::bigint, blocked_until::bigint, step::bigint, leak::double precision,
	coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
FROM {table}
WHERE name >= $1 AND name < $2
	AND forget >= coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
ORDER BY name
LIMIT $4
