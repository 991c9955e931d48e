-- Makes the rows that are not there, in the order of their names, which all do
-- who make rows, so that none can wait for each other in a circle. They may be
-- forgotten in ten seconds, if nobody has poured by then.
INSERT INTO {table} (name, level, at, blocked_until, step, forget)
SELECT name, 0, 0, 0, 0, coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + 10000000
FROM unnest($1) AS names (name)
ORDER BY name
ON CONFLICT DO NOTHING
