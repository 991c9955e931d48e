-- One row is one bucket. The primary key is the only index, and half of each page
-- is kept free, so an update finds space beside the old row and touches no index.
CREATE {unlogged} TABLE IF NOT EXISTS {table} (
	name          bytea PRIMARY KEY, -- <prefix>:<zone>/<key>, with ~ for : in shadow
	level         double precision NOT NULL,
	at            bigint NOT NULL, -- microseconds since 1970, as all instants here
	blocked_until bigint NOT NULL,
	step          smallint NOT NULL,
	forget        bigint NOT NULL,
	leak          double precision NOT NULL -- with which the level drains
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)
