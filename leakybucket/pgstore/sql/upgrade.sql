-- Upgrades a table of schema 1 in place. Nothing is rewritten: the default is
-- kept in the catalog. It says what rows of schema 1 mean, so nodes of that
-- version can go on writing to the table.
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS leak double precision NOT NULL DEFAULT 0
