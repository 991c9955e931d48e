-- Writes texts, each unless it has ended or the table has one of its name with a number at or
-- above its own. If any is written, this write gets the mark $7. It returns the mark of the last
-- write before and after this one. Numbers from 2^52 on are not ours.
WITH clock AS MATERIALIZED (
	SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
), written AS (
	INSERT INTO {registry} AS kept
	SELECT fresh.* FROM unnest($2::bytea[], $3::bigint[], $4::bigint[], $5::bytea[]) AS fresh (name, number, ends, text), clock
	WHERE fresh.number > 0 AND fresh.ends > now
	ON CONFLICT (name) DO UPDATE SET number = excluded.number, ends = excluded.ends, text = excluded.text
	WHERE kept.number < excluded.number OR kept.number >= 4503599627370496
	RETURNING number
), before AS (
	SELECT coalesce(max(number) FILTER (WHERE number < 4503599627370496), 0) AS number FROM {registry} WHERE name = $6
), last AS (
	INSERT INTO {registry} AS kept
	SELECT $6::bytea, $7::bigint, 0, ''
	WHERE EXISTS (SELECT FROM written)
	ON CONFLICT (name) DO UPDATE SET number = excluded.number
	RETURNING number
)
SELECT before.number, coalesce((SELECT number FROM last), before.number) FROM before
