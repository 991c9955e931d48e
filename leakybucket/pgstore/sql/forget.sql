-- Deletes expired buckets from a range of pages. Rows that are locked are left
-- for the next search.
DELETE FROM {table}
WHERE ctid = ANY (ARRAY(
	SELECT ctid
	FROM {table}
	WHERE ctid >= $1 AND ctid < $2
		AND forget < coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
	LIMIT $4
	FOR UPDATE SKIP LOCKED
))
RETURNING 1
