-- Reads the clock; tests pass an instant of their own. This is a statement of its
-- own, after the one that locks: decisions on a bucket are made in the order of
-- their instants only if the clock is read once all rows are locked. The settings that it makes
-- end with the transaction, because a pooler may give the session to another client then.
SELECT coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
	set_config('idle_in_transaction_session_timeout', '{patience}', true){unsynced}
