-- Reads the version of the server and, if the table exists, its kind (r for an
-- ordinary table), its persistence (u for an unlogged table, p for a logged one),
-- its comment and its columns.
SELECT current_setting('server_version_num')::bigint,
	coalesce(class.relkind::text, ''),
	coalesce(class.relpersistence::text, ''),
	coalesce(obj_description(class.oid, 'pg_class'), ''),
	ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = class.oid AND attnum > 0 AND NOT attisdropped)
FROM (SELECT to_regclass($1::text) AS oid) AS named
LEFT JOIN pg_class AS class ON class.oid = named.oid
