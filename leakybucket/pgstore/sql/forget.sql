-- Forgets what may be forgotten in some pages of the table. A row that somebody
-- works on is left for the next time.
DELETE FROM {table}
WHERE ctid = ANY (ARRAY(
	SELECT ctid
	FROM {table}
	WHERE ctid >= $1 AND ctid < $2
		AND forget < coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
	LIMIT $4
	FOR UPDATE SKIP LOCKED
))
