-- Writes a post if the board has $3 as the version of its name, and no version at or above
-- its own. Without a text it deletes it.
WITH may AS (
	SELECT FROM {board} WHERE name >= $5 AND name < $6
	HAVING $2::bigint > coalesce(max(version), 0) AND coalesce(max(version) FILTER (WHERE name = $1::bytea), 0) = $3::bigint
), gone AS (
	DELETE FROM {board} WHERE name = $1::bytea AND length($4::bytea) = 0 AND EXISTS (SELECT FROM may)
)
INSERT INTO {board} SELECT $1::bytea, $2::bigint, 0, $4::bytea FROM may WHERE length($4::bytea) > 0
ON CONFLICT (name) DO UPDATE SET version = excluded.version, text = excluded.text
