-- Reads the clock, or in tests what stands in for it. It is a statement of its
-- own that follows the one which locks: decisions on a bucket are made in the
-- order of their instants only if the clock is read when all rows are locked.
SELECT coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
