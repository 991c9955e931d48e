-- One row for each bucket. No index but the primary key, and half of each page
-- left free: so an update finds room beside the old row and touches no index.
CREATE {unlogged} TABLE IF NOT EXISTS {table} (
	name          bytea PRIMARY KEY, -- <prefix>:<zone>/<key>, with ~ for : in shadow
	level         double precision NOT NULL,
	at            bigint NOT NULL, -- microseconds since 1970, as all instants here
	blocked_until bigint NOT NULL,
	step          smallint NOT NULL,
	forget        bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)
