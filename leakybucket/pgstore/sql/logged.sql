-- Makes an unlogged table a logged one. It does nothing to a logged table.
ALTER TABLE {table} SET LOGGED
