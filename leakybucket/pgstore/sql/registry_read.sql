-- Reads the texts that have not ended, unless the last write has the mark $3.
SELECT name, CASE WHEN fits THEN number ELSE 0 END, ends, CASE WHEN fits THEN text ELSE '' END, count(*) OVER ()
FROM {registry}, LATERAL (SELECT length(name) + length(text) <= 4096 + 100) AS short (fits)
WHERE name >= $4 AND name < $5
	AND ends > coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
	AND $3::bigint <> (SELECT coalesce(max(number), 0) FROM {registry} WHERE name = $2)
LIMIT 10000
