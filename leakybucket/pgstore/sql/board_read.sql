-- Notes the beat of a node, which has no name if it says nothing, and deletes old ones. It
-- reads the posts above a version, and instead of versions the ages of the others' beats.
WITH clock AS MATERIALIZED (
	SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
), beat AS (
	INSERT INTO {board} SELECT $3::bytea, 0, now, $4::bytea FROM clock WHERE length($3::bytea) > 0
	ON CONFLICT (name) DO UPDATE SET at = excluded.at, text = excluded.text
), gone AS (
	DELETE FROM {board} USING clock WHERE version = 0 AND abs(now - at) > 60000000 AND name <> $3::bytea
)
SELECT name, CASE WHEN version = 0 THEN greatest(now - at, 0) ELSE version END, text
FROM {board}, clock
WHERE name >= $5 AND name < $6
	AND CASE WHEN version = 0 THEN abs(now - at) <= 60000000 AND name <> $3::bytea ELSE version > $2 END
