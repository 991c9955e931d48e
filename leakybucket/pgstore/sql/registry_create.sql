-- One row is one text, or the mark of the last write. Unlike buckets, they survive a crash.
CREATE TABLE IF NOT EXISTS {registry} (
	name   bytea PRIMARY KEY, -- <prefix><<name> of texts, <prefix>= of the last write
	number bigint NOT NULL, -- or the mark
	ends   bigint NOT NULL, -- microseconds since 1970
	text   bytea NOT NULL
)
