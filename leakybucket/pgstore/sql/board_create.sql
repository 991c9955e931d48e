-- One row is one post, or a beat, which has version 0. Unlike buckets, they survive a crash.
CREATE TABLE IF NOT EXISTS {board} (
	name    bytea PRIMARY KEY, -- <prefix><<name> of posts, <prefix>=<node> of beats
	version bigint NOT NULL,
	at      bigint NOT NULL, -- microseconds since 1970, of beats
	text    bytea NOT NULL
)
