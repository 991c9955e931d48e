-- Inserts empty rows for buckets that have none. All transactions that insert do
-- so in the order of the names, so no two of them can wait for each other. The
-- rows expire in ten seconds unless the batch writes them.
INSERT INTO {table} (name, level, at, blocked_until, step, leak, forget)
SELECT name, 0, 0, 0, 0, 0, coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + 10000000
FROM unnest($1) AS names (name)
ORDER BY name
ON CONFLICT DO NOTHING
