-- Notes the version of the schema. A comment is in the catalog, so it outlives
-- a crash, which empties an unlogged table.
COMMENT ON TABLE {table} IS '{comment}'
