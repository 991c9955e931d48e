-- Reads the version of the server and, if the table exists, its kind (r for an
-- ordinary table), its persistence (u for an unlogged table, p for a logged one)
-- and its columns.
SELECT current_setting('server_version_num')::bigint,
	coalesce(class.relkind::text, ''),
	coalesce(class.relpersistence::text, ''),
	ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = class.oid AND attnum > 0 AND NOT attisdropped)
FROM (SELECT to_regclass($1::text) AS oid) AS named
LEFT JOIN pg_class AS class ON class.oid = named.oid
