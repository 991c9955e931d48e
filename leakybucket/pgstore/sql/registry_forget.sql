-- Deletes texts that have ended.
DELETE FROM {registry}
WHERE name >= $2 AND name < $3
	AND ends <= coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
