-- Locks the rows of a batch in the order of their names, which every batch does,
-- so that none can wait for each other in a circle. The last row is the clock:
-- it is read when all rows are locked, so that the decisions on a bucket are
-- made in the order of their instants.
WITH kept AS MATERIALIZED (
	SELECT name, level, at, blocked_until, step
	FROM {table}
	WHERE name = ANY ($1)
	ORDER BY name
	FOR UPDATE
)
SELECT name, level, at, blocked_until, step FROM kept
UNION ALL
SELECT NULL, 0, coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), 0, 0::smallint
FROM (SELECT count(*) AS locked FROM kept) AS all_of_them
WHERE locked >= 0
